"""Evidence on members of cohorts: no client is twice in a cohort or drawn too often, and each cohort is drawn anew.

Given their sizes, the cohorts of every sampler except schedules are uniformly random sets, independent over rounds. So

- the number of clients that a cohort shares with the cohort `lag` rounds before is hypergeometric, given all earlier
  rounds; these numbers are independent, and the distribution of their sum, or of the sum of a function of each, is the
  convolution of their distributions;
- a client is drawn in each round independently, with probability size / clients; it is drawn k times or more with at
  most the probability of a binomial with the mean of these probabilities (Hoeffding 1956, Theorem 5, for k at least 1
  above the mean);
- a cohort of s clients equals one of m earlier cohorts of s clients with probability at most m / C(clients, s), given
  all earlier rounds; with the sum a of these bounds, k rounds repeat a cohort with probability at most a^k / k!, by a
  union bound over k rounds.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln
from scipy.stats import binom

from accounting.arrays import Floats, Ints
from accounting.cohorts import NamedClients
from accounting.mechanisms import Allocation, BallsAndBins, CorrelatedRounds, Cyclic, MinSeparation, Schedule
from dpfed.audit.evidence.cohort_distribution import (
    cohorts_by_round,
    convolution,
    log_binomial_coefficients,
    two_sided_chances,
    two_sided_p_value,
)
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.verdict import Finding, false_alarm_text, rounds_text
from dpfed.participation import sampling

LAGS = 5

_FARTHEST = 15.0

_NEGLIGIBLE = 1e-18


def members_follow_sampler(files: RunFiles, *, alpha: float) -> Finding:
    """Check the recorded members of cohorts by `members_finding`; None if those of skipped rounds are not recorded."""
    if files.unrecorded_cohorts:
        return None, f"the cohorts of {files.unrecorded_cohorts} skipped or interrupted rounds are not recorded."
    clients = files.config.federation.clients
    if files.all_take_part and all(one.members == sampling.ALL_CLIENTS for one in files.rounds):
        return True, f"all {clients} clients in every round."
    cohorts = []
    for one, ids in cohorts_by_round(files):
        if len(ids) != one.cohort:
            return False, f"round {one.round}: {one.cohort} clients were drawn, but {len(ids)} are listed."
        cohorts.append((one.round, ids))
    if files.all_take_part:
        return False, f"all {clients} clients take part in every round, but cohorts list fewer."
    return members_finding(files.sampler.law, clients, cohorts, alpha=alpha, ids=files.client_ids)


def members_finding(
    law: object, clients: int, cohorts: Sequence[tuple[int, Ints]], *, alpha: float, ids: NamedClients | None = None
) -> Finding:
    """Check the members of cohorts, of drawn or of recorded rounds, against their sampling.

    cohorts: (number of the round, sorted client numbers) of consecutive rounds.
    Claim: cohorts of that sampling fail with probability at most alpha. A third of alpha each is for overlaps with the
    five cohorts before, for the number of rounds of each client, and for repeated cohorts.
    """
    for number, drawn in cohorts:
        if len(drawn) and (int(np.diff(drawn).min(initial=1)) < 1 or int(drawn[-1]) >= clients):
            return False, f"round {number}: the cohort has a client twice, or an id that is none of the {clients}."
    if not cohorts:
        return None, "there are no rounds."
    drawn_ids = [drawn for _, drawn in cohorts]
    if isinstance(law, Schedule):
        return cohorts_follow_schedule(law, drawn_ids, clients, alpha=alpha, ids=ids)
    for problem in (
        _repetition_problem(cohorts, clients, alpha / 3),
        _overlap_problem(drawn_ids, clients, alpha / 3),
        _frequency_problem(drawn_ids, clients, alpha / 3),
    ):
        if problem is not None:
            return False, f"{problem} {false_alarm_text(alpha)}"
    return True, (
        f"{len(cohorts)} cohorts of {np.mean([len(one) for one in drawn_ids]):.1f} clients on average, none with a "
        "client twice and none repeated."
    )


def _repetition_problem(cohorts: Sequence[tuple[int, Ints]], clients: int, alpha: float) -> str | None:
    """Return a problem if cohorts of earlier rounds are repeated more often than by chance, else None."""
    seen, again = set[bytes](), list[int]()
    for number, ids in cohorts:
        again += [number] if ids.tobytes() in seen else []
        seen.add(ids.tobytes())
    if len(again) >= improbable_repetitions([len(ids) for _, ids in cohorts], clients, alpha):
        return f"{rounds_text(again)}: the cohort is one of an earlier round, so cohorts are not drawn anew."
    return None


def improbable_repetitions(sizes: Sequence[int], clients: int, alpha: float) -> int:
    """Return the least number of rounds that repeat an earlier cohort with probability below alpha, by cohort sizes."""
    earlier, mean = Counter[int](), 1e-300
    for size, ways in zip(sizes, log_binomial_coefficients(clients, sizes), strict=True):
        mean += min(1.0, earlier[size] * math.exp(-ways))
        earlier[size] += 1
    return next(k for k in itertools.count(1) if k * math.log(mean) - gammaln(k + 1) < math.log(alpha))


def _overlap_problem(cohorts: Sequence[Ints], clients: int, alpha: float) -> str | None:
    """Return a problem if the overlaps of cohorts with earlier cohorts are not those of fresh draws, else None.

    Two-sided tests of their total, and of the total of their `_spread_scores`, which finds clients that are drawn
    together.
    """
    sizes = [len(one) for one in cohorts]
    for lag in range(1, min(LAGS, len(cohorts) - 1) + 1):
        pairs = list(zip(cohorts, cohorts[lag:], strict=False))
        shared = [len(np.intersect1d(*both, assume_unique=True)) for both in pairs]
        laws = overlap_distributions(sizes, lag, clients)
        first, mass = distribution_of_total(laws)
        p = two_sided_p_value(mass, sum(shared) - first)
        if p < alpha / LAGS / 2:
            expected = sum(len(one) * len(other) / clients for one, other in pairs)
            return (
                f"cohorts share {sum(shared)} clients with the cohorts {lag} rounds before, {expected:.1f} expected "
                f"(p = {p:.2g}): cohorts are not drawn anew."
            )
        scores = [_spread_scores(law, law[0] + np.arange(len(law[1]))) for law in laws]
        spreads = [(0, np.bincount(one, law[1]).astype(float)) for one, law in zip(scores, laws, strict=True)]
        first, mass = distribution_of_total(spreads)
        found = sum(int(_spread_scores(law, np.array([count]))[0]) for law, count in zip(laws, shared, strict=True))
        p = two_sided_p_value(mass, found - first)
        if p < alpha / LAGS / 2:
            return (
                f"the numbers of clients that cohorts share with the cohorts {lag} rounds before do not vary as those "
                f"of independent cohorts (p = {p:.2g}): clients are drawn together, or cohorts are not drawn anew."
            )
    return None


def _spread_scores(law: tuple[int, Floats], overlaps: Ints) -> Ints:
    """Return the squared distances of overlaps from the mean of their distribution, rounded to whole numbers; in units
    of a quarter of the variance if that exceeds 1.
    """
    values = law[0] + np.arange(len(law[1]))
    mean = float(values @ law[1])
    unit = max(1.0, float((values - mean) ** 2 @ law[1]) / 4)
    return np.asarray(((overlaps - round(mean)) ** 2 / unit).astype(np.int64))


def _frequency_problem(cohorts: Sequence[Ints], clients: int, alpha: float) -> str | None:
    """Return a problem if a client is drawn too often or too seldom, by a union bound over clients; else None."""
    rounds, times = len(cohorts), rounds_of_clients(cohorts, clients)
    mean = float(times.mean())
    most, least = int(times.max()), int(times.min())
    if most >= mean + 1 and clients * float(binom.sf(most - 1, rounds, mean / rounds)) < alpha / 2:
        return f"client {int(times.argmax())} was drawn {most} times in {rounds} rounds, {mean:.2f} expected."
    if least <= mean - 1 and clients * float(binom.cdf(least, rounds, mean / rounds)) < alpha / 2:
        return f"a client was drawn {least} times in {rounds} rounds, {mean:.2f} expected."
    return None


def overlap_distributions(sizes: Sequence[int], lag: int, clients: int) -> list[tuple[int, Floats]]:
    """Return the distribution of the number of clients that each cohort shares with the cohort `lag` rounds before.

    Each is (first, mass): mass has the probabilities of the values first, first + 1, ... Exact except for rounding,
    1e-9 of single values for a million clients.
    """
    return [_overlap_of_two_cohorts(a, b, clients) for a, b in zip(sizes, sizes[lag:], strict=False)]


def distribution_of_total(laws: Sequence[tuple[int, Floats]]) -> tuple[int, Floats]:
    """Return the distribution (first, mass) of a sum of independent numbers; convolutions have an error of 1e-13."""
    first, masses = sum(law[0] for law in laws), [law[1] for law in laws]
    while len(masses) > 1:
        paired = [convolution(one, other) for one, other in zip(masses[::2], masses[1::2], strict=False)]
        masses = paired + masses[len(paired) * 2 :]
        trimmed = [_without_negligible_ends(mass) for mass in masses]
        first, masses = first + sum(shift for shift, _ in trimmed), [mass for _, mass in trimmed]
    return first, masses[0]


def _overlap_of_two_cohorts(taken: int, marked: int, clients: int) -> tuple[int, Floats]:
    mean = taken * marked / clients
    variance = mean * (1 - marked / clients) * (clients - taken) / max(clients - 1, 1)
    reach = _FARTHEST * (math.sqrt(variance) + 1)
    first = max(0, taken + marked - clients, int(mean - reach))
    last = min(taken, marked, int(mean + reach) + 1)
    shared = np.arange(first, last + 1, dtype=float)
    ways = log_binomial_coefficients(marked, shared) + log_binomial_coefficients(clients - marked, taken - shared)
    mass = np.exp(ways - ways.max())
    return first, np.asarray(mass / mass.sum())


def _without_negligible_ends(mass: Floats) -> tuple[int, Floats]:
    """Trim ends of negligible probability; return the number of entries cut in front, and the trimmed probabilities."""
    kept = np.flatnonzero(mass > _NEGLIGIBLE)
    return (int(kept[0]), mass[kept[0] : kept[-1] + 1]) if len(kept) else (0, mass)


def cohorts_follow_schedule(
    law: Schedule, cohorts: Sequence[Ints], clients: int, *, alpha: float, ids: NamedClients | None = None
) -> Finding:
    """Check the cohorts against their schedule.

    cohorts: sorted client numbers of each round, from round 1 on. ids: client ids that determine public lanes and
    turns; None if the numbers do. These faults are found with certainty: a client that takes part twice in an epoch, in
    none of its rounds, in a round of another lane, more often than allocated, before the separation is over, or out of
    the public order. These faults are found by tests: epochs that are not drawn anew (balls-and-bins), and secret lanes
    whose sizes are improbable or that follow from the clients' numbers.
    Claim: cohorts that satisfy the schedule fail with probability at most alpha.
    """
    match law:
        case BallsAndBins():
            return _balls_and_bins_finding(law, cohorts, clients, alpha, ids)
        case Allocation():
            return _allocation_finding(law, cohorts, clients)
        case MinSeparation() | CorrelatedRounds():
            return _separation_finding(law, cohorts, clients)
    assert isinstance(law, Cyclic)  # shuffled epochs have an account and no runs
    turns = law.public_turns(clients, ids)
    wrong = [
        number
        for number, cohort in enumerate(cohorts, 1)
        if not np.array_equal(cohort, np.flatnonzero(turns == (number - 1) % law.period))
    ]
    if wrong:
        return False, f"round {wrong[0]}: the cohort is not the one of the public order."
    return True, f"{len(cohorts)} cohorts are those of the public order."


def rounds_of_clients(cohorts: Sequence[Ints], clients: int) -> Ints:
    """Return the number of rounds of each client [clients]."""
    return np.bincount(np.concatenate([*cohorts, np.zeros(0, dtype=np.int64)]), minlength=clients)


def _balls_and_bins_finding(
    law: BallsAndBins, cohorts: Sequence[Ints], clients: int, alpha: float, ids: NamedClients | None
) -> Finding:
    lane_of = _secret_lanes(law, cohorts, clients) if law.secret_lanes else law.public_turns(clients, ids)
    for number, cohort in enumerate(cohorts):
        strays = cohort[lane_of[cohort] != number % law.lanes]
        if len(strays):
            return False, (
                f"round {number + 1}: client {int(strays[0])} of lane {int(lane_of[strays[0]])} takes part in a "
                f"round of lane {number % law.lanes}."
            )
    epochs = [cohorts[start : start + law.bins] for start in range(0, len(cohorts), law.bins)]
    for number, epoch in enumerate(epochs, 1):
        times = rounds_of_clients(epoch, clients)
        if int(times.max()) > 1:
            return False, (
                f"epoch {number}: client {int(times.argmax())} takes part {int(times.max())} times, once is allowed."
            )
        if len(epoch) == law.bins and int(times.min()) < 1:
            return False, f"epoch {number}: client {int(times.argmin())} takes part in none of its {law.bins} rounds."
    whole = [epoch for epoch in epochs if len(epoch) == law.bins]
    if law.secret_lanes and whole:
        alpha /= 3
        sizes, of_lane = np.bincount(lane_of, minlength=law.lanes), binom(clients, 1 / law.lanes)
        chances = two_sided_chances(of_lane, sizes)
        worst = int(chances.argmin())
        if chances[worst] < alpha / law.lanes:
            return False, (
                f"lane {worst} of {law.lanes} has {int(sizes[worst])} of {clients} clients (p = {chances[worst]:.2g}): "
                f"secret lanes are not drawn uniformly. {false_alarm_text(alpha)}"
            )
        known = np.bincount((lane_of - np.arange(clients)) % law.lanes, minlength=law.lanes)
        p = float(of_lane.sf(int(known.max()) - 1))
        if p < alpha / law.lanes:
            return False, (
                f"{int(known.max())} of {clients} clients are in the lane that their number determines (p = "
                f"{p:.2g}): secret lanes are not secret. {false_alarm_text(alpha)}"
            )
    pairs = [(one, two) for k, two in enumerate(whole) for one in whole[max(k - 5, 0) : k]]
    for one, two in pairs if law.secret_in_lane else []:
        same = sum(len(np.intersect1d(a, b, assume_unique=True)) for a, b in zip(one, two, strict=True))
        p = float(two_sided_chances(binom(clients, law.lanes / law.bins), same))
        if p < alpha / len(pairs):
            return False, (
                f"{same} clients have an equal place in two epochs, {clients * law.lanes / law.bins:.1f} are "
                f"expected (p = {p:.2g}): epochs are not drawn anew. {false_alarm_text(alpha)}"
            )
    kind = "secret lane" if law.secret_lanes else "lane"
    lanes = f", each in its {kind} of {law.lanes}" if law.lanes > 1 else ""
    anew = ", drawn anew" if law.secret_in_lane else ""
    return True, f"{len(whole)} complete epochs have every client once{lanes}{anew}; {len(cohorts)} rounds in all."


def _secret_lanes(law: BallsAndBins, cohorts: Sequence[Ints], clients: int) -> Ints:
    """Return the lane of each client's first round [clients]; -1 for a client without a round."""
    found = np.full(clients, -1, dtype=np.int64)
    for number in reversed(range(len(cohorts))):
        found[cohorts[number]] = number % law.lanes
    return found


def _allocation_finding(law: Allocation, cohorts: Sequence[Ints], clients: int) -> Finding:
    times = rounds_of_clients(cohorts, clients)
    for client, wrong in (
        (int(times.argmax()), times.max() > law.participations),
        (int(times.argmin()), times.min() < law.participations and len(cohorts) >= law.rounds),
    ):
        if wrong:
            return False, f"client {client} takes part {times[client]} times, {law.participations} are allocated."
    return True, f"no client takes part more than {law.participations} times in {len(cohorts)} of {law.rounds} rounds."


def _separation_finding(law: MinSeparation | CorrelatedRounds, cohorts: Sequence[Ints], clients: int) -> Finding:
    last = np.full(clients, -law.separation)
    for number, ids in enumerate(cohorts):
        early = ids[number - last[ids] < law.separation]
        if len(early):
            gap = number - int(last[early[0]])
            return False, (
                f"round {number + 1}: client {int(early[0])} takes part again after {gap} rounds, the separation is "
                f"{law.separation}."
            )
        last[ids] = number
    return True, f"no client takes part twice within {law.separation} rounds, in {len(cohorts)} rounds."
