"""Local SGD: how a client of FedAvg and its compressed kin trains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.errors import ConfigError
from dpfed.seeds import Seeds


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Mini-batch SGD from the broadcast weights, as torch.optim.SGD does it.

    Per batch, with v = 0 at the start of every round and g the gradient of the batch's mean loss at w:
        v = momentum * v + g;   w = w - lr * v,   lr = learning_rate * learning_rate_decay ** round
    What training returns is the update: local minus broadcast weights. Raises ConfigError.
    """

    size: int
    learning_rate: float
    learning_rate_decay: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "learning_rate_decay"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name)}: must be positive and finite. Change it in [local].")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum={self.momentum}: must be in [0, 1). Change it in [local].")

    def begin(
        self, broadcast: Tensor, clients: NDArray[np.int64], *, steps: NDArray[np.int64], number: int, seeds: Seeds
    ) -> SgdWalk:
        rate = self.learning_rate * self.learning_rate_decay**number
        return SgdWalk(broadcast, len(clients), learning_rate=rate, momentum=self.momentum)


class SgdWalk:
    """Clients under way: their weights, and their velocities where there is momentum."""

    def __init__(self, broadcast: Tensor, clients: int, *, learning_rate: float, momentum: float) -> None:
        self.room = broadcast.repeat(clients, 1)
        self._start, self._rate, self._momentum = broadcast, learning_rate, momentum
        self._velocity = torch.zeros_like(self.room) if momentum else None

    @property
    def rate(self) -> float | None:
        return None if self._momentum else self._rate

    def place(self, active: int, step: int) -> None:
        pass

    def slope(self, active: int, gradient: Tensor) -> Tensor:
        return gradient

    def step(self, active: int, step: int, slope: Tensor) -> None:
        direction = slope
        if self._velocity is not None:
            direction = self._velocity[:active].mul_(self._momentum).add_(slope)
        self.room[:active].sub_(direction, alpha=self._rate)

    def finish(self) -> Tensor:
        return self.room.sub_(self._start)
