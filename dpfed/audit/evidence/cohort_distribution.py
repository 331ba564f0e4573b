"""Evidence that cohort sizes have the accounted sampler's distribution, and that cohorts follow the seed or do not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import fftconvolve
from scipy.special import gammaln
from scipy.stats import binom

from accounting.arrays import Floats, Ints
from accounting.mechanisms import (
    BallsAndBins,
    CorrelatedRounds,
    Sampling,
    Schedule,
    SingleRelease,
    sampling_of,
    subsample,
    unsampled,
)
from accounting.mechanisms.samplings.planned import Sampler
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.verdict import Finding, false_alarm_text, rounds_text
from dpfed.participation import sampling
from dpfed.participation.custom import FALSE_ALARM, ROUNDS, CustomCohorts, sampler_problem
from dpfed.participation.sampling import draw_cohort
from dpfed.randomness import Simulated
from dpfed.records.reading import Unavailable
from dpfed.records.round import RoundRecord
from dpfed.seeds import Seeds
from dpfed.version import __version__

_FARTHEST = 15.0
"""Distance from the mean, in standard deviations, beyond which the mass of a binomial distribution is negligible."""

_MOST_ENTRIES = 2**22
"""Largest number of entries of the distribution of a sum; a convolution of two such takes some 300 MB.

With a million clients and cohorts of a thousand on average, 4,000 rounds are tested.
"""

_BY_CHANCE = 1e-9

_COINS = 1 << 31
"""Largest number of client draws, clients times rounds, that the audit repeats."""


def charge_covers(charged: SingleRelease, law: Sampling, *, seen: bool) -> bool:
    """Return True if a release is charged for cohorts of `law`, or for all clients in every round.

    seen: True if every upload is a release, which only a public order amplifies
    """
    stated = sampling_of(charged)
    if stated.takes_all or (seen and not law.public_order):
        return stated.takes_all
    if isinstance(stated, CorrelatedRounds):
        return stated.participations is None and law.rounds_apart >= stated.separation
    if isinstance(stated, BallsAndBins) and isinstance(law, BallsAndBins):
        stated = replace(stated, coefficients=law.coefficients)
    return stated == sampling_of(subsample(unsampled(charged), law))


def sizes_follow_sampler(files: RunFiles, *, alpha: float) -> Finding:
    """Check the recorded cohort sizes by `sizes_finding`; None if those of skipped rounds are not recorded."""
    if files.unrecorded_cohorts:
        return None, f"the cohorts of {files.unrecorded_cohorts} skipped or interrupted rounds are not recorded."
    return sizes_finding(files.sampler, [one.cohort for one in files.rounds], alpha)


def sizes_finding(who: Sampler, sizes: list[int], alpha: float) -> Finding:
    """Check cohort sizes, of drawn or of recorded rounds, against their sampler.

    For fixed-size and full participation all sizes must be equal to the expected one. For Poisson sampling there are
    exact two-sided tests, at alpha / 3 each, of the mean, of the mean distance from the expected size, and of the
    number of empty cohorts. They find, within a few rounds, cohorts of a fixed size that are accounted as Poisson, and
    samplers that replace empty cohorts, if empty ones are expected.
    """
    if not sizes:
        return None, "there are no rounds."
    if isinstance(who.law, Schedule):
        return sizes_follow_schedule(who.law, who, sizes, alpha)
    if who.law.independent:
        law = size_distribution(who)
        return poisson_finding(law, round(who.expected), sizes[: most_testable_rounds(law)], alpha)
    wrong = [number for number, size in enumerate(sizes, 1) if size != int(who.expected)]
    if wrong:
        taken, due = sizes[wrong[0] - 1], int(who.expected)
        return False, f"{rounds_text(wrong)}: {taken} clients, but {who.law.name} sampling draws {due}."
    return True, f"{int(who.expected)} clients in each of {len(sizes)} rounds, as {who.law.name} sampling requires."


def sizes_follow_schedule(law: Schedule, who: Sampler, sizes: list[int], alpha: float) -> Finding:
    """Check each cohort's size against its binomial distribution, two-sided, by a union bound over rounds.

    With a public order, sizes must be equal to those of the order.
    """
    if law.public_order:
        turns = np.bincount(law.public_turns(who.clients, who.ids), minlength=law.turns)
        due = [int(turns[number % law.turns]) for number in range(len(sizes))]
        wrong = [number for number, pair in enumerate(zip(sizes, due, strict=True), 1) if pair[0] != pair[1]]
        words = f"{rounds_text(wrong)}: the number of clients differs from that of the public order."
        return (False, words) if wrong else (True, f"{len(sizes)} cohorts have the sizes of the public order.")
    sized = binom(who.clients, law.probability)
    if isinstance(law, BallsAndBins) and law.turns_follow_ids:
        of_lane = np.bincount(law.public_turns(who.clients, who.ids), minlength=law.lanes)
        sized = binom(of_lane[np.arange(len(sizes)) % law.lanes], law.lanes / law.bins)
    chances = two_sided_chances(sized, sizes)
    worst = int(np.argmin(chances))
    words = f"{len(sizes)} cohorts, {who.expected:.1f} clients expected in each; the least likely is "
    words += f"round {worst + 1} with {sizes[worst]} (p = {chances[worst]:.2g})"
    if chances[worst] < alpha / len(sizes):
        return False, f"{words}: this contradicts {law.name}. {false_alarm_text(alpha)}"
    return True, f"{words}, consistent with {law.name}."


def custom_sampler_draws_as_stated(files: RunFiles) -> Finding:
    """Check 10,000 new cohorts of the user's sampler against the distribution that it states (`sampler_problem`)."""
    who = files.sampler
    assert isinstance(who, CustomCohorts)  # the caller has checked
    problem = sampler_problem(who, Simulated(seeds=Seeds(root=files.config.run.seed)))
    named = f"sampler of the user's own, {who.sampler.name!r}: "
    if problem is not None:
        return False, f"{named}{problem} {false_alarm_text(FALSE_ALARM)}"
    return True, f"{named}{ROUNDS:,} new cohorts are consistent with {who.law.name} sampling."


@dataclass(frozen=True, kw_only=True, eq=False)
class SizeDistribution:
    """Distribution of a cohort's size: `mass` has the probabilities of the sizes first, first + 1, ..."""

    smallest_size: int
    mass: Floats


def most_testable_rounds(law: SizeDistribution) -> int:
    """Return the largest number of rounds that can be tested exactly.

    The distribution of their sum has an entry for each possible total size.
    """
    return max(1, _MOST_ENTRIES // len(law.mass))


def size_distribution(who: Sampler) -> SizeDistribution:
    """Return the distribution of a cohort's size: binomial under Poisson sampling, else a constant.

    A cap replaces all larger sizes by the cap.
    """
    if not who.law.independent:
        return SizeDistribution(smallest_size=int(who.expected), mass=np.ones(1))
    room = who.law.cohort_cap or who.clients
    chance = who.law.probability
    reach = _FARTHEST * ((who.clients * chance * (1 - chance)) ** 0.5 + 1)
    first = max(0, int(who.clients * chance - reach))
    last = min(who.clients, int(who.clients * chance + reach) + 1)
    mass = np.asarray(binom.pmf(np.arange(first, last + 1), who.clients, chance))
    if room >= last:
        return SizeDistribution(smallest_size=first, mass=mass)
    if room <= first:
        return SizeDistribution(smallest_size=room, mass=np.ones(1))
    return SizeDistribution(smallest_size=first, mass=np.append(mass[: room - first], mass[room - first :].sum()))


def distance_distribution(sizes: SizeDistribution, centre: int) -> Floats:
    """Return the probabilities that |size - centre| is 0, 1, 2, ..."""
    distances = np.abs(sizes.smallest_size + np.arange(len(sizes.mass)) - centre)
    return np.asarray(np.bincount(distances, weights=sizes.mass), dtype=np.float64)


def poisson_finding(law: SizeDistribution, centre: int, sizes: list[int], alpha: float) -> Finding:
    """Test three sums against their exact distributions: sizes, distances of sizes from `centre`, and empty cohorts."""
    distances = np.abs(np.array(sizes) - centre)
    p_mean = two_sided_p_value(distribution_of_sum(law.mass, len(sizes)), sum(sizes) - len(sizes) * law.smallest_size)
    p_spread = two_sided_p_value(
        distribution_of_sum(distance_distribution(law, centre), len(sizes)), int(distances.sum())
    )
    none_drawn = float(law.mass[0]) if law.smallest_size == 0 else 0.0
    empty = sizes.count(0)
    p_empty = float(two_sided_chances(binom(len(sizes), none_drawn), empty))
    detail = (
        f"{len(sizes)} cohorts of {np.mean(sizes):.1f} clients on average (p = {p_mean:.2g}), at a mean "
        f"distance of {distances.mean():.1f} from the expected {centre} (p = {p_spread:.2g}); {empty} of them are "
        f"empty, {len(sizes) * none_drawn:.2g} expected (p = {p_empty:.2g}); "
    )
    if p_mean < alpha / 3:
        return False, detail + f"the mean is not that of the charged sampling. {false_alarm_text(alpha)}"
    if p_spread < alpha / 3:
        return False, detail + f"sizes do not vary as under Poisson sampling. {false_alarm_text(alpha)}"
    if p_empty < alpha / 3:
        return False, detail + f"the number of empty cohorts contradicts Poisson sampling. {false_alarm_text(alpha)}"
    return True, detail + "consistent with Poisson sampling."


def two_sided_chances(law: Any, counts: ArrayLike) -> Floats:
    """Return the two-sided p-values of counts with a distribution `law` of scipy: twice the smaller tail, at most 1."""
    return np.asarray(np.minimum(2 * np.minimum(law.cdf(counts), law.sf(np.asarray(counts) - 1)), 1.0))


def two_sided_p_value(mass: Floats, observed: int) -> float:
    """Return the two-sided p-value: twice the smaller tail, where both tails include the observed value.

    Exact, except for 1e-13 by convolutions.
    """
    below = float(mass[: max(observed + 1, 0)].sum())
    above = float(mass[max(observed, 0) :].sum())
    return min(1.0, 2 * min(below, above))


def distribution_of_sum(mass: Floats, count: int) -> Floats:
    """Return the distribution of a sum of `count` independent variables with distribution `mass`."""
    result = np.ones(1)
    while count:
        if count & 1:
            result = convolution(result, mass)
        count >>= 1
        mass = convolution(mass, mass) if count else mass
    return result


def convolution(first: Floats, second: Floats) -> Floats:
    if min(len(first), len(second)) == 1:
        return np.convolve(first, second)
    return np.asarray(np.maximum(fftconvolve(first, second), 0.0))


def cohorts_by_round(files: RunFiles) -> Iterator[tuple[RoundRecord, Ints]]:
    """Yield every round's record and sorted cohort members. Errors: Unavailable if members are missing or invalid."""
    clients = files.config.federation.clients
    for one in files.rounds:
        if one.members is None:
            raise Unavailable(
                f"diagnostics.jsonl, line {one.round}: has no 'members'. The run was made by a version that did not "
                "record the drawn clients."
            )
        try:
            yield one, sampling.parse_members(one.members, clients)
        except ValueError as error:
            raise Unavailable(f"diagnostics.jsonl, line {one.round}: {error}") from None


def log_binomial_coefficients(n: int, k: ArrayLike) -> Floats:
    """Return log C(n, k), for each k."""
    sizes = np.asarray(k, dtype=float)
    return np.asarray(gammaln(n + 1) - gammaln(sizes + 1) - gammaln(n - sizes + 1))


def cohorts_follow_seed_if_simulated(files: RunFiles) -> Finding:
    """Check that every cohort follows from run.seed if run.randomness = "simulated", and that none does if "secure".

    A secure cohort equals the seed's cohort by accident in 1 of 1e9 runs. The draws of a seed may change with the
    package's version, so a run of a different version is not checked.
    """
    who = files.sampler
    if files.all_take_part:
        return True, "all clients are in every round, for any seed."
    if isinstance(who.law, Schedule) and not who.law.secret:
        return True, "the order is public, for any seed."
    made_by = str(files.trusted_ledger.header.about.get("package", "")).removeprefix("dpfed ")
    if made_by != __version__:
        return None, (
            f"the run was made by version {made_by or 'unknown'}, this is {__version__}, which may draw differently."
        )
    of_seed = Simulated(seeds=Seeds(root=files.config.run.seed))
    same: dict[int, int] = {}
    other: list[int] = []
    looked_at = _COINS // who.clients
    if not looked_at:
        return None, f"{who.clients} clients are too many to draw again."
    for one, ids in itertools.islice(cohorts_by_round(files), looked_at):
        drawn = draw_cohort(who, of_seed, one.round - 1)
        if np.array_equal(np.sort(drawn), ids):
            same[one.round] = one.cohort
        else:
            other.append(one.round)
    if files.config.run.randomness == "simulated":
        if other:
            return False, (
                f"{rounds_text(other)}: the cohort is not the one that run.seed={files.config.run.seed} gives."
            )
        return True, f"the cohorts of {len(same)} rounds are those that run.seed={files.config.run.seed} gives."
    rare = math.log(len(files.rounds) or 1) - math.log(_BY_CHANCE)
    telling = [number for number, size in same.items() if log_binomial_coefficients(who.clients, size) > rare]
    if telling:
        return False, (
            f"{rounds_text(telling)}: the cohort is the one that run.seed gives, in a run with secure randomness."
        )
    return True, "no cohort is the one that run.seed gives, as secure randomness requires."
