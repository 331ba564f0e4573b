"""State of the server between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerState:
    """State from which a round starts.

    broadcast: [n], vector from which clients start: weights, or the probabilities of a mask
    memory:    vectors that the server's rule keeps from round to round, by name (velocity, alpha, beta), each [n]
    stages:    tensors that the method's stages keep from round to round, by name (errors: one row per client)
    clip_norm: the clip norm of the next round; infinite if nothing is clipped
    """

    round: int
    broadcast: Tensor
    clip_norm: float
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    stages: Mapping[str, Tensor] = field(default_factory=dict)


class ServerRule(Protocol):
    """Computation of the next state from the state and the released sum: post-processing."""

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """Return the state after a round whose (noisy) mean over `count` clients was mean_move [n]."""
