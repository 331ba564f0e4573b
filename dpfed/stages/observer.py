"""Observers: what an operator or an audit looks at on the way, without a part in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Observer(Protocol):
    """Is shown rows and sums as they enter and leave stages. It must not write into them.

    What it collects depends on private data and is covered by no epsilon: for diagnostics.jsonl alone.
    """

    def entering(self, stage: Any, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """Rows [c, k] before the client half of a stage."""

    def left(self, stage: Any, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """Rows after it."""

    def added(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """Rows as they go into the sum."""

    def noise(self, noise: Tensor, draws: int = 1) -> None:
        """What a stage adds to a sum: so many draws of its noise."""

    def summed(self, stage: Any, total: Tensor) -> None:
        """A sum before the server half of a stage."""


class Together:
    """Several observers at once."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def entering(self, stage: Any, rows: Tensor, ids: NDArray[np.int64]) -> None:
        for each in self._observers:
            each.entering(stage, rows, ids)

    def left(self, stage: Any, rows: Tensor, ids: NDArray[np.int64]) -> None:
        for each in self._observers:
            each.left(stage, rows, ids)

    def added(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        for each in self._observers:
            each.added(rows, ids)

    def noise(self, noise: Tensor, draws: int = 1) -> None:
        for each in self._observers:
            each.noise(noise, draws)

    def summed(self, stage: Any, total: Tensor) -> None:
        for each in self._observers:
            each.summed(stage, total)
