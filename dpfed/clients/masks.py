"""Local training of FedPM and FedMask: a mask over frozen weights is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from dpfed.clients.optimisers import (
    Moments,
    Schedule,
    check_rate,
    constant,
    learning_rate_of_round,
    longest_way,
)
from dpfed.clients.task import ClientUniforms, RoundStart, Walk
from dpfed.errors import ConfigError
from dpfed.models.frozen import FrozenNetwork

Gradient = Literal["straight-through", "published"]
Optimizer = Literal["sgd", "adam"]
Forward = Literal["coins", "threshold", "mean"]


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskTraining:
    """Training of mask scores s in R^n; p = sigmoid(s) are the probabilities of a mask over the frozen weights w.

    Every round starts at s = logit(clip(theta, edge, 1 - edge)) of the broadcast theta. Per batch (Isik et al. 2023,
    Algorithm 1):
        m ~ Bern(p), fresh (`coins`, FedPM), m = 1[p >= 1/2] ("threshold", FedMask) or m = p ("mean");
        g = d loss / d m at the weights w * m
        ds = g p (1 - p)   "straight-through": m passes for p;   ds = g p p (1 - p)   "published": as FedPM's code does
    then SGD (with momentum) or Adam on s, state fresh every round. Training returns the move sigmoid(s) - theta, 0 for
    a client without samples. Masks depend on (seeds, round, client) only. Raises ConfigError.
    """

    network: FrozenNetwork
    learning_rate: float
    learning_rate_decay: float = 1.0
    momentum: float = 0.0
    schedule: Schedule = constant
    optimizer: Optimizer = "sgd"
    gradient: Gradient = "straight-through"
    forward: Forward = "coins"
    edge: float = 0.01

    def __post_init__(self) -> None:
        check_rate(self)
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum={self.momentum}: must be in [0, 1). Change it in [local].")
        if not 0 < self.edge < 0.5:
            raise ConfigError(
                f"mask.edge={self.edge}: must be in (0, 1/2): scores are logits of probabilities clipped to "
                "[edge, 1 - edge]."
            )
        if self.gradient not in get_args(Gradient) or self.optimizer not in get_args(Optimizer):
            raise ConfigError(
                f"gradient={self.gradient!r}, optimizer={self.optimizer!r}: must be one of {get_args(Gradient)} and "
                f"{get_args(Optimizer)}."
            )

    @property
    def size(self) -> int:
        return self.network.size

    def begin(self, start: RoundStart) -> MaskWalk:
        return MaskWalk(self, start)

    def standstill(self, steps: int) -> str | None:
        """Return a warning if, in a round of at most `steps` steps, no client can flip an entry on which the last
        cohort agreed; else None, as for SGD, whose steps have no bound.

        Such an entry starts at the score logit(edge); Adam moves it by at most learning_rate * `longest_way(steps)`.
        """
        way, distance = self.learning_rate * longest_way(min(steps, 10_000)), -math.log(self.edge / (1 - self.edge))
        if self.forward != "threshold" or self.optimizer != "adam" or way >= distance:
            return None
        return (
            f"local.learning_rate={self.learning_rate} and at most {steps} steps a round move a mask's score by at "
            f"most {way:.2g}, and an entry on which all clients of a round agreed starts {distance:.2g} from 0 "
            f"(mask.edge={self.edge}): it can never change again. Take more steps (a smaller local.batch_size, more "
            "local.epochs), a larger rate or a larger mask.edge."
        )


class MaskWalk(Walk):
    """Clients in training: scores [c, n], the optimiser's state, and the stream of uniforms for each client's masks."""

    def __init__(self, course: MaskTraining, start: RoundStart) -> None:
        self._course, self._start, self._rate = course, start.broadcast, learning_rate_of_round(course, start.number)
        device, clients = start.broadcast.device, start.clients
        scores = torch.logit(start.broadcast.clamp(course.edge, 1 - course.edge))
        self._scores = scores.repeat(len(clients), 1)
        self._probabilities = torch.sigmoid(self._scores)
        self._coins = ClientUniforms(start, "local.coins")
        self._velocity = torch.zeros_like(self._scores) if course.momentum and course.optimizer == "sgd" else None
        self._moments = Moments(self._scores) if course.optimizer == "adam" else None
        self._idle = torch.from_numpy(start.steps == 0).to(device)
        self.weights = torch.empty(len(clients), course.network.model.size, device=device)

    def place_weights(self, active: int, step: int) -> None:
        probabilities = self._probabilities[:active]
        torch.sigmoid(self._scores[:active], out=probabilities)
        self._course.network.weights(self._draw_mask(probabilities), out=self.weights[:active])

    def slope(self, active: int, gradient: Tensor) -> Tensor:
        """Return ds, the gradient of the scores."""
        p = self._probabilities[:active]
        slope = self._course.network.to_mask_gradient(gradient).mul_(p).mul_(1 - p)
        return slope.mul_(p) if self._course.gradient == "published" else slope

    def step(self, active: int, step: int, slope: Tensor) -> None:
        self._scores[:active].sub_(self._direction(slope, step), alpha=self._rate)

    def finish(self) -> Tensor:
        moves = torch.sigmoid(self._scores).sub_(self._start)
        moves[self._idle] = 0.0
        return moves

    def _draw_mask(self, probabilities: Tensor) -> Tensor:
        if self._course.forward == "mean":
            return probabilities
        if self._course.forward == "threshold":
            return probabilities.ge(0.5).to(probabilities.dtype)
        return self._coins.next_uniforms(probabilities).lt(probabilities).to(probabilities.dtype)

    def _direction(self, slope: Tensor, step: int) -> Tensor:
        """Return the optimiser's direction: slope [active, n], with momentum or by Adam."""
        if self._moments is not None:
            return self._moments.direction(slope, step)
        if self._velocity is None:
            return slope
        return self._velocity[: len(slope)].mul_(self._course.momentum).add_(slope)
