"""Public linear maps from a client's update in R^d to the values that are sent, with their adjoints.

A map is fixed for a round before any client trains. Its adjoint maps the (noisy) sum of sent values to a vector of
R^d; the server divides that by the cohort size.
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
    """Linear map of one round. `sent` is the number of values that `forward` returns for a client."""

    @property
    def sent(self) -> int: ...

    @property
    def description(self) -> dict[str, Any] | None:
        """Record of a map that was chosen from public data; None for any other map."""
        return None

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        """Return the values to send [c, sent] of updates [c, d]; may overwrite its argument."""

    def adjoint(self, total: Tensor) -> Tensor:
        """Return the adjoint's vector [d] of a sum [sent]."""

    def restrict(self, broadcast: Tensor) -> Tensor:
        """Return the entries [sent] of the broadcast [d] at the sent coordinates, without scaling."""


class MapChoice(Protocol):
    """Choice of a round's map from public things only: the broadcast weights, seeds, public data.

    `sent` is the number of values that a client sends; `downlink_bits` counts the bits that it receives: weights and
    mask.
    """

    @property
    def sent(self) -> int: ...

    @property
    def downlink_bits(self) -> int: ...

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map: ...


@dataclass(frozen=True, kw_only=True)
class Identity(Map):
    """Map that sends every entry unchanged."""

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
