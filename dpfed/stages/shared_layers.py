"""Shared layers: their entries are sent; personal layers (local.personal) stay with their clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfed.seeds import Seeds
from dpfed.stages.maps import Map, MapChoice


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedEntries(Map):
    """Map of the entries `shared` [m] of updates [c, d] by the map `inside`; its adjoint is 0 at all other entries."""

    size: int
    shared: Tensor
    inside: Map

    @property
    def sent(self) -> int:
        return self.inside.sent

    @property
    def description(self) -> dict[str, Any] | None:
        return self.inside.description

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return self.inside.forward(updates[:, self.shared], clients)

    def adjoint(self, total: Tensor) -> Tensor:
        shared = self.inside.adjoint(total)
        return shared.new_zeros(self.size).index_copy_(0, self.shared, shared)

    def restrict(self, broadcast: Tensor) -> Tensor:
        return self.inside.restrict(broadcast[self.shared])


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedLayers(MapChoice):
    """Choice of a map `inside` of the shared entries; the server's personal entries keep their first values."""

    size: int
    shared: Tensor
    inside: MapChoice

    @property
    def sent(self) -> int:
        return self.inside.sent

    @property
    def downlink_bits(self) -> int:
        return self.inside.downlink_bits

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        inside = self.inside.for_round(weights[self.shared], number, seeds)
        return SharedEntries(size=self.size, shared=self.shared, inside=inside)
