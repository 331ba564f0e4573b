"""Which clients are lost in a round, and when: an event of the simulated world, drawn from the run's public seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpfed.aggregation.steps import ProtocolStep
from dpfed.seeds import Seeds


@dataclass(frozen=True, kw_only=True)
class Dropouts:
    """Every client is lost with `probability`, at a uniformly random step or at `at`; or `lost` of them at each step.

    Independent of the clients' data and, given how many take part, of who they are: what the account of a sum with
    missing shares of noise rests on.
    """

    seeds: Seeds
    probability: float = 0.0
    at: ProtocolStep | None = None
    lost: Mapping[ProtocolStep, int] = field(default_factory=dict)

    def draw(self, participants: NDArray[np.int64], number: int) -> dict[int, ProtocolStep]:
        """The clients that drop out of this round, and before which step."""
        generator = self.seeds.generator("dropouts", number)
        if self.lost:
            steps = [step for step, count in self.lost.items() for _ in range(count)]
            unlucky = generator.permutation(participants)[: len(steps)]
            return {int(client): step for client, step in zip(unlucky, steps, strict=False)}
        unlucky = participants[generator.random(len(participants)) < self.probability]
        choices = [self.at] if self.at is not None else list(ProtocolStep)
        drawn = generator.integers(len(choices), size=len(unlucky))
        return {int(client): choices[which] for client, which in zip(unlucky, drawn, strict=True)}


def most_missing(participants: int, probability: float, chance: float = 1e-3) -> int:
    """The least D with more than D of so many clients lost with at most this `chance`, each independently."""
    from scipy.stats import binom

    return int(binom.isf(chance, participants, probability)) if probability else 0
