"""Local SGD: how a client of FedAvg and its compressed kin trains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.clients.adam import add_weight_decay, check_weight_decay
from dpfed.clients.learning_rate import Schedule, check_rate, constant, rate_of
from dpfed.errors import ConfigError
from dpfed.seeds import Seeds


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Mini-batch SGD from the broadcast weights, as torch.optim.SGD does it.

    Per batch, with v = 0 at the start of every round and g the gradient of the batch's mean loss at w:
        v = momentum * v + g + weight_decay * w;   w = w - lr * v,   lr of the round (`rate_of`)
    The first `decayed` entries decay: parameters, not running statistics. What training returns is the update: local
    minus broadcast weights. Raises ConfigError.
    """

    size: int
    learning_rate: float
    learning_rate_decay: float = 1.0
    momentum: float = 0.0
    schedule: Schedule = constant
    weight_decay: float = 0.0
    decayed: int | None = None

    def __post_init__(self) -> None:
        check_rate(self)
        check_weight_decay(self.weight_decay)
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum={self.momentum}: must be in [0, 1). Change it in [local].")

    def begin(
        self, broadcast: Tensor, clients: NDArray[np.int64], *, steps: NDArray[np.int64], number: int, seeds: Seeds
    ) -> SgdWalk:
        return SgdWalk(self, broadcast, len(clients), rate_of(self, number))


class SgdWalk:
    """Clients under way: their weights, and their velocities where there is momentum."""

    def __init__(self, course: Sgd, broadcast: Tensor, clients: int, rate: float) -> None:
        self.room = broadcast.repeat(clients, 1)
        self._course, self._start, self._rate = course, broadcast, rate
        self._velocity = torch.zeros_like(self.room) if course.momentum else None

    @property
    def rate(self) -> float | None:
        return None if self._course.momentum or self._course.weight_decay else self._rate

    def place(self, active: int, step: int) -> None:
        pass

    def slope(self, active: int, gradient: Tensor) -> Tensor:
        return gradient

    def step(self, active: int, step: int, slope: Tensor) -> None:
        course, direction = self._course, slope
        if course.weight_decay:
            add_weight_decay(slope, self.room[:active], course.weight_decay, course.decayed)
        if self._velocity is not None:
            direction = self._velocity[:active].mul_(course.momentum).add_(slope)
        self.room[:active].sub_(direction, alpha=self._rate)

    def finish(self) -> Tensor:
        return self.room.sub_(self._start)
