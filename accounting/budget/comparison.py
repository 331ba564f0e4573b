"""Comparison of accountants and published bounds for the same noise multiplier and rounds, each with its sampler."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from accounting import require
from accounting.budget.answers import Budget, solve
from accounting.budget.gaussians import GaussianNoise
from accounting.budget.plan import Plan
from accounting.caveats import caveats
from accounting.compose.fed_smp import lemma_3, theorem_1
from accounting.compose.second_opinion import SecondOpinion, require_library, second_opinion
from accounting.errors import AccountingError, InvalidParameter
from accounting.mechanisms import Adjacency, Composed, FixedSizeSampling, Shuffled
from accounting.mechanisms.samplings.allocation import BallsAndBins
from accounting.mechanisms.samplings.independent import Everyone, FixedSize, Poisson
from accounting.mechanisms.samplings.planned import PlannedSampling
from accounting.mechanisms.samplings.public_orders import Cyclic
from accounting.rounding import upwards


def compare(plan: Plan, *, noise_multiplier: float, rounds: int) -> list[Budget]:
    """Return a budget for every accountant and published bound that applies to these numbers, each with its sampler.

    The rows of the plan's sampler are first. The Fed-SMP paper has rows with its sensitivity C and rows with the 2C
    that its sampling needs. A row that is not a guarantee has `valid` False and a note. If noise shares may be missing,
    each row's noise multiplier is that of the remaining noise, added centrally. Rows in whose setting shares have no
    account are not guarantees. Rows of participation schedules are for the same cohort size under balls-and-bins, and
    in a public order.
    Claim: the epsilon of a row with `valid` True holds for its sampler.
    Source: `compose.accountant.guarantee`; Hu, Guo, Gong 2022 (Fed-SMP).
    Units: the noise multiplier is a noise standard deviation over the clip norm.
    Adjacency: that of each row.
    Direction of error: upper bound if `valid`.
    Errors: InvalidParameter for records, and for noise that is correlated, not Gaussian, or differs between rounds.

    >>> from accounting import Plan, budget
    >>> rows = budget.compare(Plan(clients=100, sampling="all"), noise_multiplier=2.0, rounds=1)
    >>> round(min(row.epsilon for row in rows if row.valid), 3), sum(not row.valid for row in rows)
    (1.698, 4)
    """
    noise = plan.mechanism
    if plan.unit != "client":
        raise InvalidParameter(f"unit={plan.unit!r}: comparisons are for samplings of clients.")
    if noise.noise != "independent":
        raise InvalidParameter(f"noise={noise.noise!r}: comparisons are for noise that is independent over rounds.")
    if not isinstance(noise, GaussianNoise):
        raise InvalidParameter(f"mechanism={noise.name!r}: comparisons are for Gaussian noise.")
    if plan.noise_schedule is not None:
        raise InvalidParameter(
            "noise_schedule: comparisons are for rounds with equal noise. Remove noise_schedule or the comparison."
        )
    plan = replace(plan, mechanism=replace(noise, noise_multiplier=None), rounds=None)
    remaining_noise = require.positive(noise_multiplier=noise_multiplier) * math.sqrt(noise.noise_kept)
    share_notes = plan.notes(noise_multiplier, rounds)
    in_shares = noise.name == "distributed-gaussian"
    poisson = plan.sampling if isinstance(plan.sampling, Poisson) else Poisson(cohort=plan.cohort)
    each: list[PlannedSampling] = [poisson, FixedSize(cohort=plan.cohort), Everyone()]
    order = sorted(each, key=lambda one: one.name != plan.sampling.name)
    scheduled = _schedule_rows(plan, remaining_noise, rounds)
    rows: list[Budget] = [row for row in scheduled if row.plan.sampling.name == plan.sampling.name]
    for sampling in order:
        for adjacency in Adjacency:
            shares_of_all = in_shares and sampling.name == "all"
            if sampling.name == "fixed" and adjacency is Adjacency.ADD_REMOVE:
                continue
            may_displace = sampling.name == "fixed" or (sampling is poisson and poisson.cohort_cap is not None)
            if adjacency is Adjacency.ZERO_OUT and not may_displace and not shares_of_all:
                continue  # zero-out has the same numbers as add-remove for these samplings
            other = _with_server_noise(plan, sampling, adjacency)
            refusals = _no_account_of_shares(plan, sampling, adjacency)
            rows += [
                replace(row, valid=row.valid and not refusals, notes=(*row.notes, *share_notes, *refusals))
                for row in _accountant_rows(other, remaining_noise, rounds)
            ]
    return rows + [row for row in scheduled if row.plan.sampling.name != plan.sampling.name]


def beside_shuffled(answer: Budget) -> Budget:
    """Return a budget under shuffled epochs with notes: epsilon of Poisson sampling, which does not hold, and of
    balls-and-bins, which can run instead. Other budgets are returned unchanged.

    Claim: the epsilon of balls-and-bins holds under zero-out, for runs that draw it.
    Source: `solve`.
    Adjacency: that of each note.
    Direction of error: upper bound.
    """
    plan = answer.plan
    if plan.sampling.name != "shuffled":
        return answer
    law = cast(Shuffled, plan.sampler)
    rounds = answer.rounds * plan.sampling.steps
    others: tuple[tuple[str, PlannedSampling, Adjacency], ...] = (
        ("not valid here: Poisson sampling of as many rounds, which is often stated, would have", Poisson(
            cohort=law.cohort), plan.adjacency),
        ("use balls-and-bins instead, almost the same schedule:", BallsAndBins(cohort=law.cohort), Adjacency.ZERO_OUT),
    )  # fmt: skip
    notes = []
    for words, sampling, adjacency in others:
        other = Plan(
            clients=law.clients, sampling=sampling, mechanism=plan.mechanism, delta=plan.delta, adjacency=adjacency,
            before=plan.before,
        )  # fmt: skip
        found = solve(other, noise_multiplier=answer.noise_multiplier, rounds=rounds, with_lower_bound=False)
        notes.append(f"{words} epsilon {upwards(found.epsilon)} ({adjacency})")
    return replace(answer, notes=(*answer.notes, *notes))


def _with_server_noise(plan: Plan, sampling: PlannedSampling, adjacency: Adjacency) -> Plan:
    """Return the plan with the given sampling and adjacency, and with noise of the server."""
    return replace(plan, sampling=sampling, adjacency=adjacency, mechanism=GaussianNoise())


def _schedule_rows(plan: Plan, z: float, rounds: int) -> list[Budget]:
    """Return rows of the schedules in which every client takes part once in clients / cohort rounds, with equal noise.

    They include the plan's schedule, if it has one. Returns [] for noise in shares, and if all clients take part in
    every round.
    """
    if plan.mechanism.name == "distributed-gaussian" or plan.period < 2:
        return []
    adjacency = plan.adjacency if plan.adjacency is Adjacency.ZERO_OUT else Adjacency.ADD_REMOVE
    schedules: tuple[PlannedSampling, ...] = (BallsAndBins(cohort=plan.cohort), Cyclic(cohort=plan.cohort))
    others = [_with_server_noise(plan, one, adjacency) for one in schedules if one.name != plan.sampling.name]
    planned = [plan] if plan.sampling.is_schedule else []
    return [solve(one, noise_multiplier=z, rounds=rounds) for one in (*planned, *others)]


def _no_account_of_shares(plan: Plan, sampling: PlannedSampling, adjacency: Adjacency) -> tuple[str, ...]:
    """Return the reason why the plan's noise has no account in this setting; () if it has an account."""
    try:
        replace(plan, sampling=sampling, adjacency=adjacency)
    except AccountingError as refusal:
        return (f"not a guarantee: {refusal}",)
    return ()


def _accountant_rows(plan: Plan, z: float, count: int) -> list[Budget]:
    sampling, replaces = plan.sampling.name, plan.adjacency is Adjacency.REPLACE_ONE
    accounts: list[dict[str, Any]] = []
    if sampling != "all" and not (sampling == "poisson" and replaces):
        renyi = {"accountant": "rdp", "with_lower_bound": False}
        accounts += [{**renyi, "conversion": conversion} for conversion in ("classical", "improved")]
    accounts += [{"accountant": "pld"}] if sampling != "all" else []
    accounts += [{"accountant": "best"}] if sampling != "poisson" else []
    rows = [solve(plan, noise_multiplier=z, rounds=count, **account) for account in accounts]
    return rows + (_paper_rows(plan, z, count) if sampling == "fixed" and replaces else [])


def _paper_rows(plan: Plan, z: float, count: int) -> list[Budget]:
    """Return the bounds of the Fed-SMP paper, with its sensitivity C and with the 2C that its sampling needs."""
    sampler, delta = plan.sampler, plan.delta
    assert isinstance(sampler, FixedSizeSampling)
    rows = []
    for sensitivity in (1.0, 2.0):
        bound: dict[str, Any] = {"delta": delta, "sensitivity_in_clips": sensitivity}
        readings = [
            ("fed-smp-theorem", None, theorem_1(z, count, sampler, **bound)),
            ("fed-smp-lemma", "classical", lemma_3(z, count, sampler, conversion="classical", **bound)),
            ("fed-smp-lemma", "improved", lemma_3(z, count, sampler, conversion="improved", **bound)),
        ]
        for accountant, used, reading in readings:
            violated = list(reading.violated)
            if sensitivity == 1.0:
                violated.insert(0, "the paper inserts sensitivity C where fixed-size sampling needs 2C")
            rows.append(
                Budget(
                    plan=plan,
                    noise_multiplier=z,
                    rounds=count,
                    epsilon=reading.epsilon,
                    accountant=accountant,
                    conversion=used,
                    order=reading.order,
                    valid=not violated,
                    notes=(
                        *(f"not a guarantee: {reason}" for reason in violated),
                        *caveats(epsilon=reading.epsilon, delta=delta, units=plan.clients),
                    ),
                    sensitivity_in_clips=sensitivity,
                )
            )
    return rows


def with_second_opinion(rows: Sequence[Budget]) -> list[Budget]:
    """Return the rows, each with dp-accounting's epsilon for its mechanism (`compose.second_opinion`).

    A note mentions the second opinion if the row has a lower bound, or if dp-accounting gives no number. Imports
    dp-accounting.
    Claim: the epsilon of an independent implementation. A note names each one that is below a lower bound. Source:
    Google's dp-accounting.
    Adjacency: that of each row.
    Direction of error: upper bound.
    Errors: MissingLibrary if dp-accounting is not installed.

    >>> from accounting import Plan, budget
    >>> row = budget.solve(Plan(clients=6000, sampling="all"), noise_multiplier=20.0, rounds=10)
    >>> [checked] = budget.with_second_opinion([row])
    >>> abs(checked.second_opinion.epsilon / row.epsilon - 1) < 1e-3
    True
    """
    require_library()
    known: dict[tuple[Composed, float], SecondOpinion] = {}
    found = []
    for row in rows:
        claim = row.mechanism, row.plan.delta
        if claim not in known:
            known[claim] = second_opinion(claim[0], delta=claim[1])
        opinion = known[claim]
        is_noted = row.lower_bound is not None or opinion.epsilon is None
        remarks = opinion.remarks(epsilon=row.epsilon, lower_bound=row.lower_bound) if is_noted else ()
        found.append(replace(row, second_opinion=opinion, notes=(*row.notes, *remarks)))
    return found
