"""Project: a client sends the k values to which the round's public linear map takes its update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfed.stages.maps import MapChoice
from dpfed.stages.shared_layers import SharedLayers
from dpfed.stages.stage import Round, Stage


@dataclass(frozen=True, kw_only=True, eq=False)
class Project(Stage):
    """Map [c, d] -> [c, k] that `choice` fixes before any client trains; its adjoint maps the sum back to R^d.

    The map is linear and public, so it is post-processing at the sum; the mapped rows are clipped and sent.
    """

    choice: MapChoice

    @property
    def sent(self) -> int:
        """k."""
        return self.choice.sent

    @property
    def remembers_clients(self) -> bool:
        """True if a client keeps the layers that are not sent for its next round (local.personal)."""
        return isinstance(self.choice, SharedLayers)

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        return now.projection.forward(rows, ids)

    def server(self, total: Tensor, now: Round) -> Tensor:
        return now.projection.adjoint(total)
