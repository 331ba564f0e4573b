"""A round of a training loop of one's own: who takes part, and the release of what they sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Releasing(Protocol):
    """What a step is a round of."""

    def release(self, step: Step, updates: Any) -> Tensor | dict[str, Tensor]: ...

    def names_of(self, cohort: NDArray[np.int64]) -> tuple[str, ...]: ...


class Step:
    """round: its number, from 0. cohort: the clients that were drawn, int64 [c], sorted; under Poisson sampling there
    may be none. Secret: a guarantee with sampling holds against those who do not know it.
    """

    def __init__(self, loop: Releasing, number: int, cohort: NDArray[np.int64]) -> None:
        self._loop = loop
        self.round, self.cohort = number, cohort

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the cohort, in its order; their numbers where clients have no names."""
        return self._loop.names_of(self.cohort)

    @overload
    def release(self, updates: Tensor | NDArray[Any] | Iterable[Tensor] | Iterable[NDArray[Any]]) -> Tensor: ...

    @overload
    def release(self, updates: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]: ...

    def release(self, updates: Any) -> Tensor | dict[str, Tensor]:
        """The noisy mean of the cohort's updates, float32 [d]: each clipped, summed, noised, charged, divided by the
        expected cohort. Of dictionaries: a dictionary.

        updates: a matrix [c, d], or an iterable with one update a client, in the order of `cohort`: vectors [d], or
                 dictionaries of tensors (the differences of two state dicts). An iterable is read a few updates at a
                 time, and so may be a generator that trains. They are not changed. A client whose update holds NaN or
                 infinity counts as zeros: an error would tell of it.

        Claim: the release is on the disk, in the ledger, before this returns. ConfigError for other updates, RunError
        for a second release or a round that is over, LedgerError where the line cannot be written: then nothing was
        released. After a ConfigError the same round can still be released.
        """
        return self._loop.release(self, updates)

    def __repr__(self) -> str:
        return f"Step(round={self.round}, cohort of {len(self.cohort)})"
