"""The largest and the smallest epsilon over everything that the settings of another library leave open."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from accounting import Plan, budget
from accounting.errors import AccountingError
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.planned import sampling_of_keys

Sampling = Literal["poisson", "fixed", "shuffled", "all"]
Unit = Literal["client", "record"]

ASSUMED_DELTA = 1e-5
TAIL = 0.01
"""Fraction of delta that is left for noise on a count that is larger than assumed."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reading of the settings, without anything left open.

    noise_multiplier: noise standard deviation of the sum over the largest norm of one update (or record)
    rounds: releases
    left_out_moves_twice: True if a unit that is left out moves the result by 2 C, as one that is replaced: in a
        weighted mean the weight of the others grows
    count_std: standard deviation of the noise on a count that is released in each round, too, and which one unit moves
        by 1; None without one. A hundredth of delta is then left for its tail (`TAIL`)
    """

    unit: Unit
    noise_multiplier: float
    sampling: Sampling
    population: int
    cohort: int
    rounds: int
    adjacency: Adjacency
    delta: float
    left_out_moves_twice: bool = False
    count_std: float | None = None

    def epsilon(self) -> float:
        """Return an upper bound of this reading; infinite without an account.

        Claim: what runs as this reading says is (epsilon, delta)-DP. Only Poisson sampling and fixed sizes amplify.
        Source: accounting.budget.
        Adjacency: that of the reading.
        Direction of error: upwards; that of `lower_bound` downwards.
        """
        found = _solved(self, False)
        if found is None and self.sampling != "all":  # as below 1e-12: everyone in every round has at least its epsilon
            return replace(self, sampling="all").epsilon()
        return math.inf if found is None else found.epsilon

    def lower_bound(self) -> float:
        """Return a lower bound on every account of this reading."""
        if not self.noise_multiplier > 0:
            return math.inf
        found = _solved(self, True)
        return 0.0 if found is None else found.lower_bound or 0.0


@cache
def _solved(reading: Reading, with_lower_bound: bool) -> budget.Budget | None:
    """Return the budget of a reading; None without an account."""
    if not reading.noise_multiplier > 0:
        return None
    twice = reading.left_out_moves_twice and reading.adjacency is not Adjacency.REPLACE_ONE
    noise, delta = reading.noise_multiplier, reading.delta
    if reading.count_std is not None:  # sum and count are one Gaussian, whose shifts add in quadrature
        moves = 2 if twice or reading.adjacency is Adjacency.REPLACE_ONE else 1
        noise, delta = moves / math.hypot(moves / noise, 1 / reading.count_std), delta * (1 - TAIL)
    try:
        plan = Plan(
            clients=reading.population,
            sampling=sampling_of_keys(reading.sampling, {"cohort": min(reading.cohort, reading.population)}),
            adjacency=Adjacency.REPLACE_ONE if twice else reading.adjacency,
            delta=delta,
        )
        return budget.solve(plan, noise_multiplier=noise, rounds=reading.rounds, with_lower_bound=with_lower_bound)
    except AccountingError:
        return None


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Something that the settings leave open: its readings, each with what it means, the worst for privacy first.

    changes: values of fields of `Reading`; `noise_multiplier` is a factor on the multiplier
    """

    name: str
    changes: tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Answer to what settings promise.

    worst: reading with the largest epsilon; epsilon is infinite where nothing bounds it (`unbounded` says why)
    alone: (text, epsilon) after one opening alone is closed at its best reading, all others at their worst
    steps: (text, epsilon) after each opening is closed at its best reading, one after the other
    """

    library: str
    stated: dict[str, object]
    worst: Reading
    epsilon: float
    at_least: float
    openings: tuple[Opening, ...]
    alone: tuple[tuple[str, float], ...]
    steps: tuple[tuple[str, float], ...]
    missing: tuple[str, ...]
    contradictions: tuple[str, ...]
    unbounded: tuple[str, ...]
    dpfed: str

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of `dpfed explain --json`; an infinite epsilon is null."""
        worst = self.worst
        return {
            "library": self.library,
            "unit": worst.unit,
            "adjacency": str(worst.adjacency),
            "sampling": worst.sampling,
            "noise_multiplier": worst.noise_multiplier,
            "rounds": worst.rounds,
            "delta": worst.delta,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "at_least": self.at_least if math.isfinite(self.at_least) else None,
            "openings": [{"name": one.name, "readings": [words for words, _ in one.changes]} for one in self.openings],
            "closed_alone": _as_records(self.alone),
            "closed": _as_records(self.steps),
            "missing": list(self.missing),
            "contradictions": list(self.contradictions),
            "unbounded": list(self.unbounded),
            "dpfed": self.dpfed,
        }


def _as_records(closed: tuple[tuple[str, float], ...]) -> list[dict[str, object]]:
    return [{"if": words, "epsilon": value if math.isfinite(value) else None} for words, value in closed]


def _with_changes(reading: Reading, changes: dict[str, Any]) -> Reading:
    """Return the reading with these fields; the multiplier is multiplied by its change."""
    multiplier = reading.noise_multiplier * changes.get("noise_multiplier", 1.0)
    return replace(reading, **{**changes, "noise_multiplier": multiplier})


def all_readings(reading: Reading, openings: tuple[Opening, ...]) -> list[Reading]:
    """Return the reading under every combination of the readings of openings."""
    every = [reading]
    for opening in openings:
        every = [_with_changes(one, changes) for one in every for _, changes in opening.changes]
    return every


def largest_reading(every: list[Reading]) -> Reading:
    """Return the reading with the largest epsilon."""
    worst = every[0]
    for one in every[1:]:
        # Everyone in every round has at least the epsilon of a sampler, and is accounted faster.
        if replace(one, sampling="all").epsilon() > worst.epsilon() and one.epsilon() > worst.epsilon():
            worst = one
    return worst


def smallest_lower_bound(every: list[Reading]) -> float:
    """Return a lower bound for all readings: that of those with the most noise and the least change of a unit."""
    most = max(one.noise_multiplier for one in every)
    least_change = [one for one in every if one.adjacency is not Adjacency.REPLACE_ONE] or every
    quiet = [one for one in least_change if one.noise_multiplier == most] or every
    return min(one.lower_bound() for one in quiet)


def closed(reading: Reading, openings: tuple[Opening, ...], best: Container[int]) -> Reading:
    """Return the reading with the openings of these indices at their best reading, and all others at their worst."""
    for number, opening in enumerate(openings):
        reading = _with_changes(reading, opening.changes[-1 if number in best else 0][1])
    return reading
