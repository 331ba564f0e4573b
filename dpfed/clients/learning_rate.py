"""The learning rate of a round: the first one, its decay, and a schedule over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from dpfed.errors import ConfigError

Schedule = Callable[[int], float]
"""What the learning rate of round t (from 0) is multiplied by."""


class Descends(Protocol):
    """A course with a learning rate."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def learning_rate_decay(self) -> float: ...
    @property
    def schedule(self) -> Schedule: ...


def rate_of(course: Descends, number: int) -> float:
    """In round `number`, from 0: learning_rate * learning_rate_decay^number * schedule(number)."""
    return course.learning_rate * course.learning_rate_decay**number * course.schedule(number)


def check_rate(course: Descends) -> None:
    """ConfigError unless rate and decay are positive and finite."""
    for name in ("learning_rate", "learning_rate_decay"):
        if not 0 < getattr(course, name) < float("inf"):
            raise ConfigError(f"{name}={getattr(course, name)}: must be positive and finite. Change it in [local].")


def constant(number: int) -> float:
    """1."""
    return 1.0


def cosine(rounds: int) -> Schedule:
    """(1 + cos(pi t / rounds)) / 2, as torch.optim.lr_scheduler.CosineAnnealingLR(T_max=rounds)."""
    return lambda number: (1 + math.cos(math.pi * number / rounds)) / 2


def linear(rounds: int) -> Schedule:
    """1 - t / rounds, as LinearLR(start_factor=1, end_factor=0, total_iters=rounds)."""
    return lambda number: 1 - number / rounds


def step(every: int, factor: float) -> Schedule:
    """factor^floor(t / every), as StepLR(step_size=every, gamma=factor)."""
    return lambda number: factor ** (number // every)


def listed(factors: Sequence[float]) -> Schedule:
    """One factor a round; the last one holds on."""
    return lambda number: factors[min(number, len(factors) - 1)]
