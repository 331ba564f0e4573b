"""Local Adam and AdamW: per client, with fresh moments every round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.clients.learning_rate import Schedule, check_rate, constant, rate_of
from dpfed.errors import ConfigError
from dpfed.seeds import Seeds

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class Moments:
    """Of gradients [c, n], and what Adam makes of the next (Kingma, Ba 2015), with torch's defaults:

    m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2;   direction = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + 1e-8)
    """

    def __init__(self, like: Tensor) -> None:
        self._first, self._second = torch.zeros_like(like), torch.zeros_like(like)

    def direction(self, slope: Tensor, step: int) -> Tensor:
        """Of the first rows, for slope [active, n] of step `step` (from 0)."""
        (b1, b2), first, second = _BETAS, self._first[: len(slope)], self._second[: len(slope)]
        first.lerp_(slope, 1 - b1)
        second.mul_(b2).addcmul_(slope, slope, value=1 - b2)
        scale = (second / (1 - b2 ** (step + 1))).sqrt_().add_(_EPSILON)
        return (first / (1 - b1 ** (step + 1))).div_(scale)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Mini-batch Adam from the broadcast weights, as torch.optim.Adam, or AdamW, does it; moments 0 in every round.

    weight_decay: L2, added to the gradient as weight_decay * w; or, `decoupled` (Loshchilov, Hutter 2019, AdamW),
                  w = (1 - lr * weight_decay) w before the step
    decayed:      entries of the vector that decay, the first ones: parameters, not running statistics

    Raises ConfigError.
    """

    size: int
    learning_rate: float
    learning_rate_decay: float = 1.0
    schedule: Schedule = constant
    weight_decay: float = 0.0
    decoupled: bool = False
    decayed: int | None = None

    def __post_init__(self) -> None:
        check_rate(self)
        check_weight_decay(self.weight_decay)

    def begin(
        self, broadcast: Tensor, clients: NDArray[np.int64], *, steps: NDArray[np.int64], number: int, seeds: Seeds
    ) -> AdamWalk:
        return AdamWalk(self, broadcast, len(clients), rate_of(self, number))


class AdamWalk:
    """Clients under way: their weights and moments."""

    rate: float | None = None

    def __init__(self, course: Adam, broadcast: Tensor, clients: int, rate: float) -> None:
        self.room = broadcast.repeat(clients, 1)
        self._course, self._start, self._rate = course, broadcast, rate
        self._moments = Moments(self.room)

    def place(self, active: int, step: int) -> None:
        pass

    def slope(self, active: int, gradient: Tensor) -> Tensor:
        return gradient

    def step(self, active: int, step: int, slope: Tensor) -> None:
        course, room = self._course, self.room[:active]
        if course.weight_decay and course.decoupled:
            room[:, : course.decayed].mul_(1 - self._rate * course.weight_decay)
        elif course.weight_decay:
            add_weight_decay(slope, room, course.weight_decay, course.decayed)
        room.sub_(self._moments.direction(slope, step), alpha=self._rate)

    def finish(self) -> Tensor:
        return self.room.sub_(self._start)


def add_weight_decay(slope: Tensor, room: Tensor, weight_decay: float, decayed: int | None) -> None:
    """Into slope [active, n]: that of weight_decay |w|^2 / 2 over the first `decayed` entries."""
    slope[:, :decayed].add_(room[:, :decayed], alpha=weight_decay)


def check_weight_decay(weight_decay: float) -> None:
    """ConfigError unless it is finite and not negative."""
    if not 0 <= weight_decay < float("inf"):
        raise ConfigError(f"weight_decay={weight_decay}: must be finite and not negative. Change local.weight_decay.")
