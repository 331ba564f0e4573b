"""Canaries of a run: the audit's own clients, with a random direction each, to be found in what a round releases.

Every canary has a round of its own and a fair Bernoulli sample: on 1 the canary takes part in that round like a client,
on 0 it stays away and its score is one of chance. Scores are products with the round's noisy sum, which any observer
who knows the canary can compute; `dpfed.audit` makes them a test of the claim of one round, given participation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.seeds import Seeds

LOUD = 1e3
"""The norm of a canary's update: far beyond any clip, so that the clip is under test."""


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """`count` canaries with the ids first, first + 1, ... after the clients', spread over the rounds at random."""

    count: int
    first: int
    rounds: int
    size: int
    seeds: Seeds

    def of_round(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ids that take part in this round, and those that might have and stay away."""
        # Canaries alone are drawn by place: no draw here depends on clients, so none can tell who is a member.
        generator = self.seeds.generator("canaries")
        rounds = generator.permutation(np.arange(self.count) % self.rounds)
        heads = generator.random(self.count) < 0.5
        ids = self.first + np.arange(self.count)
        return ids[(rounds == number) & heads], ids[(rounds == number) & ~heads]

    def present_in(self, number: int) -> int:
        """Return how many canaries take part in this round."""
        return len(self.of_round(number)[0])

    def updates(self, ids: NDArray[np.int64], device: torch.device) -> Tensor:
        """[c, size], uniform directions of norm LOUD."""
        rows = [self.seeds.tensors("canaries.direction", int(one)).normal(self.size) for one in ids]
        if not rows:
            return torch.zeros(0, self.size, device=device)
        stacked = torch.stack(rows)
        return stacked.mul_(LOUD / torch.linalg.vector_norm(stacked, dim=1, keepdim=True)).to(device)
