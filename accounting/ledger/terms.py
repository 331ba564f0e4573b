"""Terms of a project: budget, unit, and releases declared before the first result."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from accounting import require
from accounting.compose.unit_currency import with_stream
from accounting.errors import InvalidParameter
from accounting.ledger.entries import Release, plan_from, plan_to_list, single_release_from
from accounting.mechanisms import BallsAndBins, Cyclic, SingleRelease, gaussian_of, sampling_of, schedule_of, unsampled
from accounting.rounding import downwards

Plan = tuple[tuple[SingleRelease, int], ...]
Rounds = tuple[tuple[int, int], ...]
"""Increasing rounds of a schedule, as pairs (first, number of consecutive rounds)."""

RESERVE = 0.01
"""Default share of delta for runs that differ from the unit."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Budget (epsilon, delta) of each client over all runs of a project, with its unit.

    reserve:  share of delta for runs that differ from the unit; None for a project of version 0.2
    unit:     one round, or one epoch or run of a schedule; None: the first charged release defines the unit
    declared: releases planned before the first result, which are charged as one composition
    """

    epsilon: float
    delta: float
    reserve: float | None = RESERVE
    unit: Plan | None = None
    declared: Plan = ()

    def __post_init__(self) -> None:
        require.positive(epsilon=self.epsilon)
        require.open_probability(delta=self.delta)
        if self.reserve is not None and not 0 <= require.nonnegative(reserve=self.reserve) <= 0.5:
            raise InvalidParameter(f"reserve={self.reserve}: must be a share of delta from 0 to 0.5.")

    def to_dict(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "reserve": self.reserve,
            **({} if self.unit is None else {"unit": plan_to_list(self.unit)}),
            **({} if not self.declared else {"declared": plan_to_list(self.declared)}),
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Terms":
        """Return the terms of a record that `to_dict`, or version 0.2, wrote. Errors: InvalidParameter for any other
        record.
        """
        expected_keys = {"epsilon", "delta"} | (
            {"reserve", "unit", "declared"} & record.keys() if "reserve" in record else set()
        )
        if record.keys() != expected_keys or ("reserve" in record and record["reserve"] is None):
            raise InvalidParameter("terms: must be epsilon, delta and reserve, and may be unit and declared.")
        return cls(
            epsilon=record["epsilon"],
            delta=record["delta"],
            reserve=record.get("reserve"),
            unit=plan_from(record["unit"]) if "unit" in record else None,
            declared=plan_from(record["declared"]) if "declared" in record else (),
        )


def charged_as(line: Release) -> SingleRelease:
    """Return the release that a line charges: that with the largest charge if the charge depends on the outcome."""
    worst = line.detail.get("charged_as")
    return line.mechanism if worst is None else single_release_from(worst)


def plan_text(plan: Plan) -> str:
    """Describe a plan for messages: number of releases, sampling, noise."""
    described = [
        _release_text(release) if count == 1 else f"{count} rounds of {_release_text(release)}"
        for release, count in plan[:3]
    ]
    return " and ".join([*described, *(["others"] if len(plan) > 3 else [])])


def release_counts(plan: Plan) -> Counter[SingleRelease]:
    """Return the numbers of releases that are no rounds of a schedule."""
    counts: Counter[SingleRelease] = Counter()
    for release, count in plan:
        if schedule_of(release) is None:
            counts[release] += count
    return counts


def bought_rounds(plan: Plan, rounds: Rounds | None) -> dict[SingleRelease, Rounds]:
    """Return the rounds of each schedule of a plan; `rounds` None: the first ones.

    Errors: InvalidParameter for rounds whose number differs from that of the plan's only schedule.
    """
    counts = {release: count for release, count in plan if schedule_of(release) is not None}
    if rounds is None:
        return {release: ((0, count),) for release, count in counts.items()}
    ordered = all(a + n <= b for (a, n), (b, _) in pairwise(rounds))
    if len(counts) != 1 or not ordered or sum(number for _, number in rounds) not in counts.values():
        raise InvalidParameter("rounds: must be increasing, and their number that of the plan's only schedule.")
    return dict.fromkeys(counts, rounds)


def priced_plan(plan: Plan, rounds: Rounds | None) -> Plan:
    """Return the plan of which a purchase is priced: a schedule up to its last round (`mechanisms.stream_rounds`)."""
    bought = bought_rounds(plan, rounds)
    return tuple((release, sum(bought[release][-1]) if release in bought else count) for release, count in plan)


def runs_of_rounds(numbers: Iterable[int]) -> Rounds:
    """Return increasing round numbers as pairs (first, number of consecutive rounds)."""
    runs = [list(run) for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return tuple((run[0][1], len(run)) for run in runs)


def is_in_rounds(number: int, rounds: Rounds) -> bool:
    return any(first <= number < first + count for first, count in rounds)


def rounds_text(rounds: Rounds) -> str:
    """Describe rounds for messages."""
    return ", ".join(str(first) if count == 1 else f"{first} to {first + count - 1}" for first, count in rounds)


def _release_text(release: SingleRelease) -> str:
    sampling, noise = sampling_of(release), gaussian_of(release)
    cohort = "all clients" if sampling.name == "all" else f"{sampling.name} {sampling.probability:.4g}"
    return f"{cohort}, " + (f"noise {downwards(noise.noise_multiplier)}" if noise else unsampled(release).kind)


def unit_of(release: SingleRelease) -> Plan | None:
    """Return the unit that a first release defines: one round, or one epoch if epochs are independent.

    Returns None for other schedules, for correlated noise, and for secret lanes, which are equal in all epochs.
    """
    schedule = schedule_of(release)
    if schedule is None:
        return ((release, 1),)
    if isinstance(schedule, BallsAndBins) and not schedule.secret_lanes:
        return ((with_stream(release, ""), schedule.bins),)
    if isinstance(schedule, Cyclic):
        return ((with_stream(release, ""), schedule.period),)
    return None


def without_streams(plan: Plan) -> Plan:
    return tuple((with_stream(release, ""), count) for release, count in plan)
