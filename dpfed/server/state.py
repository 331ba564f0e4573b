"""State of the server between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerState:
    """State from which a round starts.

    broadcast: [n], what clients start from: weights, or the probabilities of a mask
    memory:    what the server's rule keeps from round to round, by name (velocity, alpha, beta), each [n]
    stages:    what the method's stages remember from round to round, by name (errors, a row a client)
    clip_norm: the bound of the next round; infinite where nothing is clipped
    """

    round: int
    broadcast: Tensor
    clip_norm: float
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    stages: Mapping[str, Tensor] = field(default_factory=dict)


class ServerRule(Protocol):
    """State in, state out: post-processing of the sum that the round released."""

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        """Return the state after a round whose (noisy) mean over `count` clients was mean_move [n]."""
