"""Steps of a secure sum at which a client may drop out, and dropouts simulated with the run's secret randomness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from accounting.cohorts import uniforms_of_ids
from dpfed.randomness import Randomness


class ProtocolStep(StrEnum):
    """Step before which a client drops out, in the order of time; LATE: its row arrives after UPLOAD is closed.

    ADVERTISE and SHARE: the client is excluded from the start. UPLOAD: its masks are removed from the sum. UNMASK: its
    row stays in the sum. LATE: as UPLOAD, and its row stays hidden behind its own mask.
    """

    ADVERTISE = "advertise"
    SHARE = "share"
    UPLOAD = "upload"
    LATE = "late"
    UNMASK = "unmask"

    @property
    def sends_row(self) -> bool:
        """True if the client still trains and sends its row, in time or late."""
        return self in (ProtocolStep.UNMASK, ProtocolStep.LATE)


@dataclass(frozen=True, kw_only=True)
class Dropouts:
    """Simulated dropouts: each client with `probability`, before `before_step` or a uniform step, or `lost` clients
    before each step.

    population: number of ids that may take part, canaries included; a secret value is drawn for every id
    lost:       number of clients that drop out before each step: those with the smallest values, earliest step first

    Claim: independent of the clients' data. Under `probability` a client's dropout depends on its own value only. Under
    `lost` one participant added or removed moves at most one other client into or out of the sum. Given the number of
    participants, the distribution does not depend on which clients take part; the account of missing noise shares rests
    on this.
    """

    randomness: Randomness
    population: int
    probability: float = 0.0
    before_step: ProtocolStep | None = None
    lost: Mapping[ProtocolStep, int] = field(default_factory=dict)

    def draw(self, participants: NDArray[np.int64], number: int) -> dict[int, ProtocolStep]:
        """Return the clients that drop out of this round, each with the step before which it does."""
        values = uniforms_of_ids(participants, self.population, self.randomness, "dropouts", number)
        if self.lost:
            steps = [step for step in ProtocolStep for _ in range(self.lost.get(step, 0))]
            unlucky = participants[np.argsort(values, kind="stable")]
            return {int(client): step for client, step in zip(unlucky, steps, strict=False)}
        choices = list(ProtocolStep) if self.before_step is None else [self.before_step]
        gone = values < self.probability
        which = np.minimum(values[gone] / self.probability * len(choices), len(choices) - 1).astype(np.int64)
        return {int(client): choices[step] for client, step in zip(participants[gone], which, strict=True)}


def most_missing(participants: int, probability: float, chance: float = 1e-3) -> int:
    """Return the least D with P(more than D of the clients drop out) <= `chance`; clients drop out independently."""
    return int(binom.isf(chance, participants, probability)) if probability else 0
