"""FedAdagrad, FedAdam and FedYogi: an adaptive step along the mean update."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from dpfed.errors import ConfigError
from dpfed.server.state import ServerState

Kind = Literal["adagrad", "adam", "yogi"]


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptiveRule:
    """With the mean update D of a round (Reddi et al. 2021, Adaptive Federated Optimization, Algorithm 2):

        m = beta1 m + (1 - beta1) D,   from m = 0
        v = v + D^2                                    adagrad
            beta2 v + (1 - beta2) D^2                  adam
            v - (1 - beta2) D^2 sign(v - D^2)          yogi,   from v = tau^2
        w = w + learning_rate m / (sqrt(v) + tau)

    Entries `averaged` (running statistics of normalisation) are no direction to step along: they become the clients'
    mean. Where a sum is noised, v holds the noise's variance, too. Post-processing of the released sum. Raises
    ConfigError.
    """

    kind: Kind
    learning_rate: float
    beta1: float
    beta2: float
    tau: float
    averaged: Tensor | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"server.rule={self.kind!r}: must be one of {', '.join(get_args(Kind))}.")
        for name in ("learning_rate", "tau"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"server.{name}={getattr(self, name)}: must be a finite number above 0.")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"server.{name}={getattr(self, name)}: must be in [0, 1).")

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """The state that the next round starts from."""
        first = state.memory.get("first", torch.zeros_like(mean_move))
        second = state.memory.get("second", torch.full_like(mean_move, self.tau**2))
        first = first * self.beta1 + mean_move * (1 - self.beta1)
        second = self._second(second, mean_move.square())
        moved = state.broadcast + self.learning_rate * first / (second.sqrt() + self.tau)
        if self.averaged is not None:
            moved[self.averaged] = state.broadcast[self.averaged] + mean_move[self.averaged]
        return replace(state, round=state.round + 1, broadcast=moved, memory={"first": first, "second": second})

    def _second(self, before: Tensor, squares: Tensor) -> Tensor:
        if self.kind == "adagrad":
            return before + squares
        if self.kind == "adam":
            return before * self.beta2 + squares * (1 - self.beta2)
        return before - (1 - self.beta2) * squares * (before - squares).sign()
