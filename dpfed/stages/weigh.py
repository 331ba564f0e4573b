"""Weigh: clients count by their number of examples, where nothing is private."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.stages.stage import Round, Stage


@dataclass(frozen=True, kw_only=True, eq=False)
class Weigh(Stage):
    """Row i times weights[i]; the sum of those is the divisor. Public weights: they depend on how many examples clients
    hold, so no private chain has this stage.

    weights: [clients], float64
    """

    weights: NDArray[np.float64]

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        factors = torch.from_numpy(self.weights[ids]).to(rows.device, rows.dtype)
        return rows.mul_(factors[:, None])
