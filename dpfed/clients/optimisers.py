"""Optimisers of clients, and the learning rate of a round: its initial value, its decay, its schedule over rounds.

FedSparsify's optimiser is SGD or Adam on a model whose purged weights stay zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpfed.clients.task import RoundStart, Walk
from dpfed.compress.sparse import Sparsity, purge
from dpfed.errors import ConfigError

Schedule = Callable[[int], float]
"""Factor of the learning rate in round t (from 0), a function of t."""


class HasLearningRate(Protocol):
    """Course of local training that has a learning rate."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def learning_rate_decay(self) -> float: ...
    @property
    def schedule(self) -> Schedule: ...


def learning_rate_of_round(course: HasLearningRate, number: int) -> float:
    """Return the rate of round `number`, from 0: learning_rate * learning_rate_decay^number * schedule(number)."""
    return course.learning_rate * course.learning_rate_decay**number * course.schedule(number)


def constant(number: int) -> float:
    """Return the factor 1 of the constant schedule."""
    return 1.0


def cosine(rounds: int) -> Schedule:
    """Return the schedule (1 + cos(pi t / rounds)) / 2, as torch.optim.lr_scheduler.CosineAnnealingLR(T_max=rounds)."""
    return lambda number: (1 + math.cos(math.pi * number / rounds)) / 2


def linear(rounds: int) -> Schedule:
    """Return the schedule 1 - t / rounds, as LinearLR(start_factor=1, end_factor=0, total_iters=rounds)."""
    return lambda number: 1 - number / rounds


def step(every: int, factor: float) -> Schedule:
    """Return the schedule factor^floor(t / every), as StepLR(step_size=every, gamma=factor)."""
    return lambda number: factor ** (number // every)


def factors_by_round(factors: Sequence[float]) -> Schedule:
    """Return the schedule of the given factors, one per round; the last factor holds for all later rounds."""
    return lambda number: factors[min(number, len(factors) - 1)]


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Mini-batch SGD from the broadcast weights, as in torch.optim.SGD.

    Per batch, with v = 0 at the start of every round and g the gradient of the batch's mean loss at w:
        v = momentum * v + g + weight_decay * w;   w = w - lr * v,   lr of the round (`learning_rate_of_round`)
    The first `decayed` entries have weight decay: parameters, not running statistics. With `proximal` mu > 0, g has the
    term mu (w - w_0) on these entries (FedProx: Li et al. 2020), w_0 the broadcast weights. `rates` [n], if given, are
    factors of lr. All three are functions of the broadcast and the client's own weights, added after the slope of
    private records is noised. Training returns the update: local minus broadcast weights.
    """

    size: int
    learning_rate: float
    learning_rate_decay: float = 1.0
    momentum: float = 0.0
    schedule: Schedule = constant
    weight_decay: float = 0.0
    decayed: int | None = None
    proximal: float = 0.0
    rates: Tensor | None = field(default=None, compare=False)

    def begin(self, start: RoundStart) -> SgdWalk:
        return SgdWalk(self, start)


class SgdWalk(Walk):
    """Clients in training: their weights, and their velocities if there is momentum."""

    def __init__(self, course: Sgd, start: RoundStart) -> None:
        self.weights = start.broadcast.repeat(len(start.clients), 1)
        self._course, self._start, self._rate = course, start.broadcast, learning_rate_of_round(course, start.number)
        self._velocity = torch.zeros_like(self.weights) if course.momentum else None
        plain = course.rates is None and not (course.momentum or course.weight_decay or course.proximal)
        self.rate = self._rate if plain else None

    def step(self, active: int, step: int, slope: Tensor) -> None:
        course, direction = self._course, slope
        if course.proximal:
            add_proximal(slope, self.weights[:active], self._start, course)
        if course.weight_decay:
            add_weight_decay(slope, self.weights[:active], course.weight_decay, course.decayed)
        if self._velocity is not None:
            direction = self._velocity[:active].mul_(course.momentum).add_(slope)
        if course.rates is not None:
            direction = direction * course.rates
        self.weights[:active].sub_(direction, alpha=self._rate)

    def finish(self) -> Tensor:
        return self.weights.sub_(self._start)


_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class Moments:
    """Moments of gradients [c, n], and Adam's direction (Kingma, Ba 2015), with torch's default betas and epsilon.

    m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2;   direction = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + 1e-8)
    """

    def __init__(self, like: Tensor) -> None:
        self._first, self._second = torch.zeros_like(like), torch.zeros_like(like)

    def direction(self, slope: Tensor, step: int) -> Tensor:
        """Return the direction [active, n] for the slope [active, n] of the first clients at step `step` (from 0)."""
        (b1, b2), first, second = _BETAS, self._first[: len(slope)], self._second[: len(slope)]
        first.lerp_(slope, 1 - b1)
        second.mul_(b2).addcmul_(slope, slope, value=1 - b2)
        scale = (second / (1 - b2 ** (step + 1))).sqrt_().add_(_EPSILON)
        return (first / (1 - b1 ** (step + 1))).div_(scale)


_MOST_STEPS = 10_000


def longest_way(steps: int) -> float:
    """Return an upper bound on |sum of Adam's first `steps` directions| of one entry, for any gradients.

    By Cauchy and Schwarz |direction of step t| <= sqrt(sum w_i^2 / u_i), w and u the weights of the two moments. All
    three are geometric series. The bound of later steps than those summed is that of t = infinity.
    """
    (b1, b2), t = _BETAS, np.arange(1, min(steps, _MOST_STEPS) + 1)
    ratio, largest = b1**2 / b2, (1 - b1) ** 2 / (1 - b2)
    squares = largest * (1 - b2**t) / (1 - b1**t) ** 2 * (1 - ratio**t) / (1 - ratio)
    return float(np.sqrt(squares).sum()) + max(steps - len(t), 0) * math.sqrt(largest / (1 - ratio))


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Mini-batch Adam from the broadcast weights, as in torch.optim.Adam or AdamW; moments start at 0 in every round.

    weight_decay: L2, added to the gradient as weight_decay * w; or, `decoupled` (Loshchilov, Hutter 2019, AdamW),
                  w = (1 - lr * weight_decay) w before the step
    decayed:      number of leading entries with weight decay: parameters, not running statistics
    """

    size: int
    learning_rate: float
    learning_rate_decay: float = 1.0
    schedule: Schedule = constant
    weight_decay: float = 0.0
    decoupled: bool = False
    decayed: int | None = None
    proximal: float = 0.0
    rates: Tensor | None = field(default=None, compare=False)

    def begin(self, start: RoundStart) -> AdamWalk:
        return AdamWalk(self, start)


class AdamWalk(Walk):
    """Clients in training: their weights and moments."""

    def __init__(self, course: Adam, start: RoundStart) -> None:
        self.weights = start.broadcast.repeat(len(start.clients), 1)
        self._course, self._start, self._rate = course, start.broadcast, learning_rate_of_round(course, start.number)
        self._moments = Moments(self.weights)

    def step(self, active: int, step: int, slope: Tensor) -> None:
        course, weights = self._course, self.weights[:active]
        if course.proximal:
            add_proximal(slope, weights, self._start, course)
        if course.weight_decay and course.decoupled:
            decay = self._rate * course.weight_decay
            shrunk = 1 - decay if course.rates is None else 1 - decay * course.rates[: course.decayed]
            weights[:, : course.decayed].mul_(shrunk)
        elif course.weight_decay:
            add_weight_decay(slope, weights, course.weight_decay, course.decayed)
        direction = self._moments.direction(slope, step)
        weights.sub_(direction if course.rates is None else direction * course.rates, alpha=self._rate)

    def finish(self) -> Tensor:
        return self.weights.sub_(self._start)


def add_proximal(slope: Tensor, weights: Tensor, start: Tensor, course: Sgd | Adam) -> None:
    """Add to slope [active, n] the gradient of proximal |w - start|^2 / 2 over the entries with weight decay."""
    decayed = course.decayed
    slope[:, :decayed].add_(weights[:, :decayed] - start[:decayed], alpha=course.proximal)


def add_weight_decay(slope: Tensor, weights: Tensor, weight_decay: float, decayed: int | None) -> None:
    """Add to slope [active, n] the gradient of weight_decay |w|^2 / 2 over the first `decayed` entries."""
    slope[:, :decayed].add_(weights[:, :decayed], alpha=weight_decay)


@dataclass(frozen=True, kw_only=True, eq=False)
class PrunedSgd:
    """SGD (or Adam) on a model with purged weights (Stripelis, Gupta, Ver Steeg, Ambite 2022, FedSparsify).

    An entry of `prunable` that is 0 in the broadcast is purged: before every batch, and after the last, it is set to
    0 again. Gradients and velocities are not masked. A client without samples returns 0.

    Global variant (`sparsity` None): clients keep the broadcast's zeros, and the server purges after averaging
    (`dpfed.server.rules`). Local variant: each client of round t (from 0) purges its own model to sparsity(t + 1)
    after training, so that after R rounds the sparsity is sparsity(R).

    Training returns the move: local minus broadcast model. At a purged entry the move is minus the broadcast, so that
    broadcast + move is exactly 0. The encoder sends that sum (zeros left out); the server adds the mean of the sums
    minus the broadcast.

    prunable: int64 [m], sorted, on the device to train on; FlatModel.indices("weight")

    Raises ConfigError.
    """

    sgd: Sgd | Adam
    prunable: Tensor
    sparsity: Sparsity | None = None

    def __post_init__(self) -> None:
        if not len(self.prunable) or self.prunable.min() < 0 or self.prunable.max() >= self.size:
            raise ConfigError(f"prunable: {len(self.prunable)} entries; must be at least one of 0..{self.size - 1}.")

    @property
    def size(self) -> int:
        return self.sgd.size

    def begin(self, start: RoundStart) -> PrunedWalk:
        return PrunedWalk(self, self.sgd.begin(start), start)


class PrunedWalk(Walk):
    """Clients in training by SGD with purged entries held at zero."""

    def __init__(self, course: PrunedSgd, walk: Walk, start: RoundStart) -> None:
        self._course, self._walk, self._start = course, walk, start
        self.weights, self.rate = walk.weights, walk.rate
        self._purged = course.prunable[start.broadcast[course.prunable] == 0]

    def place_weights(self, active: int, step: int) -> None:
        self.weights[:active].index_fill_(1, self._purged, 0.0)

    def step(self, active: int, step: int, slope: Tensor) -> None:
        self._walk.step(active, step, slope)

    def finish(self) -> Tensor:
        course, models = self._course, self.weights
        models.index_fill_(1, self._purged, 0.0)
        if course.sparsity is not None:
            purge(models, course.prunable, course.sparsity(self._start.number + 1))
            models[torch.from_numpy(self._start.steps == 0).to(models.device)] = self._start.broadcast
        return self._walk.finish()
