"""Add the mean update to the weights, with an optional server step size and momentum (FedAvg, FedAvgM)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfed.errors import ConfigError


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerState:
    """All that a round starts from: weights [d], the momentum buffer [d] or None, the clip norm, the round number."""

    round: int
    weights: Tensor
    velocity: Tensor | None
    clip_norm: float


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """v = momentum v + mean update; w = w + learning_rate v. Post-processing of the released sum."""

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < float("inf"):
            raise ConfigError(f"server.learning_rate={self.learning_rate}: must be a finite number above 0.")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"server.momentum={self.momentum}: must be in [0, 1).")

    def apply(self, state: ServerState, mean_update: Tensor, clip_norm: float) -> ServerState:
        """The state that the next round starts from."""
        velocity = mean_update
        if self.momentum:
            velocity = mean_update if state.velocity is None else state.velocity * self.momentum + mean_update
        return replace(
            state,
            round=state.round + 1,
            weights=torch.add(state.weights, velocity, alpha=self.learning_rate),
            velocity=velocity if self.momentum else None,
            clip_norm=clip_norm,
        )
