"""The Beta posterior of mask probabilities: FedPM's Bayesian aggregation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfed.errors import ConfigError
from dpfed.server.state import ServerState


@dataclass(frozen=True, kw_only=True)
class BetaPosterior:
    """Masks are draws of Bernoulli(theta) for an unknown theta with prior Beta(prior, prior) on each coordinate.

    A round in which `count` masks came with sum S updates (Isik et al. 2023, Algorithm 2)
        alpha = alpha + S,   beta = beta + count - S,   theta = (alpha - 1) / (alpha + beta - 2),
    the posterior's mode; alpha = beta = prior again every `reset_every` rounds (0: never; 1: each round, which with
    prior 1 is the plain mean). Where the mode is undefined (no masks yet, prior 1) theta stays; a prior below 1 could
    push it out of [0, 1] and is refused. theta is kept in [edge, 1 - edge]. Post-processing of the released sum.
    """

    prior: float = 1.0
    reset_every: int = 1
    edge: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.prior < float("inf"):
            raise ConfigError(f"server.prior={self.prior}: must be at least 1, or the posterior's mode is undefined.")
        if self.reset_every < 0:
            raise ConfigError(f"server.reset_every={self.reset_every}: must be 0 (never) or a number of rounds.")

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """The state that the next round starts from; mean_move is the mean mask minus the broadcast theta."""
        fresh = self.reset_every and state.round % self.reset_every == 0
        if fresh or "alpha" not in state.memory:
            alpha = beta = torch.full_like(state.broadcast, self.prior)
        else:
            alpha, beta = state.memory["alpha"], state.memory["beta"]
        ones = (state.broadcast + mean_move).mul_(count)
        alpha, beta = alpha + ones, beta + (count - ones)
        draws = alpha + beta - 2
        theta = torch.where(draws > 0, (alpha - 1) / draws, state.broadcast)
        return replace(
            state,
            round=state.round + 1,
            broadcast=theta.clamp_(self.edge, 1 - self.edge),
            memory={"alpha": alpha, "beta": beta},
        )
