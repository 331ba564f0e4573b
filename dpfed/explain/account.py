"""The largest and the smallest epsilon over everything that the settings of another library leave open."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from accounting import Plan, budget
from accounting.budget import GaussianNoise
from accounting.budget.samplings import PlannedSampling, sampling_of_keys
from accounting.errors import AccountingError
from accounting.mechanisms.adjacency import Adjacency

Sampling = Literal["poisson", "fixed", "shuffled", "all"]
Unit = Literal["client", "record"]

ASSUMED_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reading of the settings, without anything left open.

    noise_multiplier: noise standard deviation of the sum over the largest norm of one update (or record)
    rounds: releases
    """

    unit: Unit
    noise_multiplier: float
    sampling: Sampling
    population: int
    cohort: int
    rounds: int
    adjacency: Adjacency
    delta: float

    def bounds(self) -> tuple[float, float]:
        """Return (lower bound, epsilon).

        Claim: epsilon is an upper bound, the first number a lower bound on every account of this reading. Amplification
        is used for Poisson sampling, and for a fixed size, only.
        Source: accounting.budget.
        Adjacency: that of the reading.
        Direction of error: outwards.
        """
        if not self.noise_multiplier > 0:
            return math.inf, math.inf
        try:
            plan = Plan(
                clients=self.population,
                sampling=self._planned_sampling(),
                mechanism=GaussianNoise(),
                adjacency=self.adjacency,
                delta=self.delta,
            )
            found = budget.solve(plan, noise_multiplier=self.noise_multiplier, rounds=self.rounds)
        except AccountingError:
            return 0.0, math.inf
        return found.lower_bound or 0.0, found.epsilon

    def _planned_sampling(self) -> PlannedSampling:
        return sampling_of_keys(self.sampling, {"cohort": self.cohort})


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Something that the settings leave open: its readings, each with what it means, the worst for privacy first.

    changes: values of fields of `Reading`; `noise_multiplier` is a factor on the multiplier
    """

    name: str
    changes: tuple[tuple[str, dict[str, object]], ...]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Answer to what settings promise.

    worst: reading with the largest epsilon; epsilon is infinite where nothing bounds it (`unbounded` says why)
    steps: (text, epsilon) after each opening is closed at its best reading, one after the other
    """

    library: str
    stated: dict[str, object]
    worst: Reading | None
    epsilon: float
    at_least: float
    openings: tuple[Opening, ...] = ()
    steps: tuple[tuple[str, float], ...] = ()
    missing: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    unbounded: tuple[str, ...] = ()
    dpfed: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of `dpfed explain --json`; an infinite epsilon is null."""
        worst = self.worst
        return {
            "library": self.library,
            "unit": worst.unit if worst else None,
            "adjacency": str(worst.adjacency) if worst else None,
            "sampling": worst.sampling if worst else None,
            "noise_multiplier": worst.noise_multiplier if worst else None,
            "rounds": worst.rounds if worst else None,
            "delta": worst.delta if worst else None,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "at_least": self.at_least if math.isfinite(self.at_least) else None,
            "openings": [{"name": one.name, "readings": [words for words, _ in one.changes]} for one in self.openings],
            "closed": [
                {"if": words, "epsilon": value if math.isfinite(value) else None} for words, value in self.steps
            ],
            "missing": list(self.missing),
            "contradictions": list(self.contradictions),
            "unbounded": list(self.unbounded),
            "dpfed": self.dpfed,
        }


def with_changes(reading: Reading, changes: dict[str, object]) -> Reading:
    """Return the reading with these fields; the multiplier is multiplied by its change."""
    given = dict(changes)
    if "noise_multiplier" in given:
        given["noise_multiplier"] = reading.noise_multiplier * float(str(given["noise_multiplier"]))
    return replace(reading, **given)  # type: ignore[arg-type]


def explained(
    library: str,
    reading: Reading,
    openings: tuple[Opening, ...],
    *,
    stated: dict[str, object],
    missing: tuple[str, ...] = (),
    contradictions: tuple[str, ...] = (),
    unbounded: tuple[str, ...] = (),
    dpfed: str = "",
) -> Explanation:
    """Return the explanation of a reading whose openings are not closed.

    Claim: epsilon is at least that of every combination of the openings' readings, so an upper bound for whichever of
    them ran. `at_least` is the smallest lower bound of all combinations, a lower bound for whichever ran.
    Source: enumeration of all combinations.
    Adjacency: that of the worst combination.
    Direction of error: outwards.
    """
    every = []
    for chosen in product(*(one.changes for one in openings)):
        there = reading
        for _, changes in chosen:
            there = with_changes(there, changes)
        every.append((there, *there.bounds()))
    worst, _, epsilon = max(every, key=lambda one: one[2])
    steps, closed = [], reading
    for number, opening in enumerate(openings):
        words, changes = opening.changes[-1]
        closed = with_changes(closed, changes)
        left = closed
        for other in openings[number + 1 :]:
            left = with_changes(left, other.changes[0][1])
        steps.append((f"{'and ' if number else ''}{words}", math.inf if unbounded else left.bounds()[1]))
    return Explanation(
        library=library,
        stated=stated,
        worst=worst,
        epsilon=math.inf if unbounded else epsilon,
        at_least=min(lower for _, lower, _ in every),
        openings=openings,
        steps=tuple(steps),
        missing=missing,
        contradictions=contradictions,
        unbounded=unbounded,
        dpfed=dpfed,
    )
