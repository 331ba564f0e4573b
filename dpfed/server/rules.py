"""FedAvg and FedAvgM: the mean update times a server step size, with optional momentum, is added to the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfed.errors import ConfigError
from dpfed.server.state import ServerState


@dataclass(frozen=True, kw_only=True, eq=False)
class Averaging:
    """v = momentum v + mean move; w = w + learning_rate v, kept inside [edge, 1 - edge] where there is an edge.

    Entries `averaged` (running statistics of normalisation) are no direction to step along: they become the clients'
    mean whatever the step size.

    With probabilities and noise-like coins (private FedPM) this is a noisy step from theta: replacing theta by the mean
    mask instead would let the coins' noise walk. Post-processing of the released sum.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    edge: float | None = None
    averaged: Tensor | None = None

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < float("inf"):
            raise ConfigError(f"server.learning_rate={self.learning_rate}: must be a finite number above 0.")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"server.momentum={self.momentum}: must be in [0, 1).")

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """The state that the next round starts from."""
        velocity = mean_move
        if self.momentum and "velocity" in state.memory:
            velocity = state.memory["velocity"] * self.momentum + mean_move
        moved = torch.add(state.broadcast, velocity, alpha=self.learning_rate)
        if self.averaged is not None:
            moved[self.averaged] = state.broadcast[self.averaged] + mean_move[self.averaged]
        return replace(
            state,
            round=state.round + 1,
            broadcast=moved if self.edge is None else moved.clamp_(self.edge, 1 - self.edge),
            memory={"velocity": velocity} if self.momentum else {},
        )
