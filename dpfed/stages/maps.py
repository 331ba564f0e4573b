"""Public linear maps: from a client's update in R^d to what is sent, and back.

A map is fixed for a round before any client trains. Its adjoint turns the (noisy) sum of what was sent into a vector
of R^d; the server divides that by the cohort size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfed.seeds import Seeds

FLOAT_BITS = 32
SEED_BITS = 64


class Map(Protocol):
    """One round's map. `sent` is the number of values in what `forward` returns."""

    @property
    def sent(self) -> int: ...

    @property
    def description(self) -> dict[str, Any] | None:
        """Record of a map that public data chose; None for any other."""
        return None

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        """[c, d] -> [c, sent]; may write into its argument."""

    def adjoint(self, total: Tensor) -> Tensor:
        """[sent] -> [d]."""

    def restrict(self, broadcast: Tensor) -> Tensor:
        """[d] -> [sent]: the broadcast entries at the sent coordinates, without scaling."""


class MapChoice(Protocol):
    """Fixes the map of a round from public things only: the broadcast weights, seeds, public data.

    `sent` is how many values a client sends, `downlink_bits` what it gets: the weights and the mask.
    """

    @property
    def sent(self) -> int: ...

    @property
    def downlink_bits(self) -> int: ...

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map: ...


@dataclass(frozen=True, kw_only=True)
class Identity(Map):
    """Everything is sent."""

    size: int

    @property
    def sent(self) -> int:
        return self.size

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return updates

    def adjoint(self, total: Tensor) -> Tensor:
        return total

    def restrict(self, broadcast: Tensor) -> Tensor:
        return broadcast


@dataclass(frozen=True, kw_only=True)
class SendAll(MapChoice):
    """No compression."""

    size: int

    @property
    def sent(self) -> int:
        return self.size

    @property
    def downlink_bits(self) -> int:
        return FLOAT_BITS * self.size

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        return Identity(size=self.size)
