"""Weigh: clients are weighted by their number of examples, in runs without privacy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.stages.stage import Round, Stage


@dataclass(frozen=True, kw_only=True, eq=False)
class Weigh(Stage):
    """Row i is multiplied by weights[i]; the sum of the weights is the divisor. Weights are public but depend on
    clients' numbers of examples, so no private chain has this stage.

    weights: [clients], float64
    """

    weights: NDArray[np.float64]

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        factors = torch.from_numpy(self.weights[ids]).to(rows.device, rows.dtype)
        return rows.mul_(factors[:, None])
