"""Who takes part in a round: the clients that were drawn, those that only fill the sum up, and canaries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfed.participation.canaries import Canaries
from dpfed.participation.sampling import Sampler
from dpfed.randomness import Randomness


def draw_cohort(who: Sampler, randomness: Randomness, slots: int | None, number: int) -> NDArray[np.int64]:
    """The sampler's clients, at most `slots` of them, the others left out by secret lot."""
    cohort = who.sample(randomness, number)
    if slots is not None and len(cohort) > slots:
        return cohort[randomness.subset(slots, len(cohort), "cohort.slots", number)]
    return cohort


def present_canaries(canaries: Canaries | None, number: int) -> NDArray[np.int64]:
    """Canaries that take part in this round. Beyond what is accounted a canary adds noise or coins of its own:
    independent of data, so post-processing."""
    return np.zeros(0, dtype=np.int64) if canaries is None else canaries.of_round(number)[0]


def with_others(
    cohort: NDArray[np.int64], fill: int | None, clients: int, randomness: Randomness, number: int
) -> NDArray[np.int64]:
    """The cohort and as many others, by secret lot, as make `fill` clients of them."""
    drawn = int((cohort < clients).sum())
    if fill is None or drawn >= fill:
        return cohort
    chosen = randomness.subset(fill - drawn, clients - drawn, "cohort.fill", number)
    passed = np.sort(cohort)[:drawn] - np.arange(drawn)  # for each of the cohort, how many others come before it
    others = chosen + np.searchsorted(passed, chosen, side="right")
    return np.sort(np.concatenate([cohort, others]))
