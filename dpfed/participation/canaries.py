"""Canaries of a run: simulated clients of an audit with random directions, to be detected in a round's release.

Every canary has one round and one fair Bernoulli sample: on 1 the canary takes part in its round like a client; on 0 it
is absent, and its score is due to chance. Scores are products with the round's noisy sum, which any observer who knows
the canary can compute. `dpfed.audit` tests the claim of one round, given participation, with these scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.seeds import Seeds

LOUD = 1e3
"""Norm of a canary's update: far above any clip norm, so that the clip is tested."""


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """`count` canaries with the ids first, first + 1, ... after the clients' ids, each in a uniformly random round."""

    count: int
    first_id: int
    rounds: int
    size: int
    seeds: Seeds

    def canaries_of_round(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the canaries that take part in this round, and those assigned to this round that are absent."""
        # Only canaries are drawn by position: no draw here depends on clients, so none can reveal who is a client.
        generator = self.seeds.generator("canaries")
        rounds = generator.permutation(np.arange(self.count) % self.rounds)
        heads = generator.random(self.count) < 0.5
        ids = self.first_id + np.arange(self.count)
        return ids[(rounds == number) & heads], ids[(rounds == number) & ~heads]

    def present_count(self, number: int) -> int:
        """Return how many canaries take part in this round."""
        return len(self.canaries_of_round(number)[0])

    def updates(self, ids: NDArray[np.int64], device: torch.device) -> Tensor:
        """Return uniformly random directions [c, size] of norm LOUD."""
        rows = [self.seeds.tensors("canaries.direction", int(one)).normal(self.size) for one in ids]
        if not rows:
            return torch.zeros(0, self.size, device=device)
        stacked = torch.stack(rows)
        return stacked.mul_(LOUD / torch.linalg.vector_norm(stacked, dim=1, keepdim=True)).to(device)
