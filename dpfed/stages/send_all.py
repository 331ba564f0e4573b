"""Everything is sent: no compression by a map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfed.seeds import Seeds
from dpfed.stages.maps import FLOAT_BITS, Map


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Everything is sent."""

    size: int

    @property
    def sent(self) -> int:
        return self.size

    @property
    def facts(self) -> None:
        return None

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return updates

    def adjoint(self, total: Tensor) -> Tensor:
        return total

    def restrict(self, broadcast: Tensor) -> Tensor:
        return broadcast


@dataclass(frozen=True, kw_only=True)
class SendAll:
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
