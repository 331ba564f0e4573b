"""Comparison of every accountant and reading that applies to the same numbers, each with its sampler."""

import math
from dataclasses import replace
from typing import Any

from accounting import require
from accounting.budget.answers import Budget, solve
from accounting.budget.correlated import CorrelatedNoise
from accounting.budget.gaussians import DistributedGaussianNoise, GaussianNoise
from accounting.budget.plan import Plan
from accounting.budget.samplings import BallsAndBins, Cyclic, Everyone, FixedSize, PlannedSampling, Poisson
from accounting.caveats import caveats
from accounting.compose.fed_smp import lemma_3, theorem_1
from accounting.errors import AccountingError, InvalidParameter
from accounting.mechanisms import FixedSizeSampling
from accounting.mechanisms.adjacency import Adjacency


def compare(plan: Plan, *, noise_multiplier: float, rounds: int) -> list[Budget]:
    """Return a row for every accountant and reading that applies to these numbers, each naming its sampler.

    The plan's own sampler is first. Rows of the Fed-SMP paper keep its sensitivity C beside the 2C that its sampling
    needs; a row that is no guarantee says so in `valid` and `notes`. Noise in shares that may be missing is counted as
    less noise
    added centrally: each row's noise multiplier is what remains; rows in whose setting shares have no account are no
    guarantees. Rows of participation schedules stand for the same cohort drawn by balls-and-bins, or in a public order.
    Claim: the epsilon of a row with `valid` holds for its sampler. Source: `compose.accountant.guarantee`; Hu, Guo,
    Gong 2022 (Fed-SMP). Units: the noise multiplier is a noise standard deviation over the clip norm. Adjacency: that
    of each row.
    Direction of error: upper bound if `valid`. Errors: InvalidParameter for noise that is correlated, not Gaussian, or
    differs between rounds.

    >>> from accounting import Plan, budget
    >>> rows = budget.compare(Plan(clients=100, sampling="all"), noise_multiplier=2.0, rounds=1)
    >>> round(min(row.epsilon for row in rows if row.valid), 3), sum(not row.valid for row in rows)
    (1.698, 4)
    """
    noise = plan.mechanism
    if isinstance(noise, CorrelatedNoise):
        raise InvalidParameter(f"noise={noise.noise!r}: comparisons are for noise that is independent over rounds.")
    if not isinstance(noise, GaussianNoise):
        raise InvalidParameter(f"mechanism={noise.name!r}: comparisons are for Gaussian noise.")
    if plan.noise_schedule is not None:
        raise InvalidParameter("noise_schedule: comparisons are of rounds with equal noise. Remove one of them.")
    plan = replace(plan, mechanism=replace(noise, noise_multiplier=None), rounds=None)
    kept = require.positive(noise_multiplier=noise_multiplier) * math.sqrt(noise.noise_kept)
    missing = plan.notes(noise_multiplier, rounds)
    in_shares = isinstance(noise, DistributedGaussianNoise)
    poisson = plan.sampling if isinstance(plan.sampling, Poisson) else Poisson(cohort=plan.cohort)
    each: list[PlannedSampling] = [poisson, FixedSize(cohort=plan.cohort), Everyone()]
    order = sorted(each, key=lambda one: one.name != plan.sampling.name)
    scheduled = _schedule_rows(plan, kept, rounds)
    rows: list[Budget] = [row for row in scheduled if row.plan.sampling.name == plan.sampling.name]
    for sampling in order:
        for adjacency in Adjacency:
            shares_of_all = in_shares and sampling.name == "all"
            if sampling.name == "fixed" and adjacency is Adjacency.ADD_REMOVE:
                continue
            displaces = sampling.name == "fixed" or (sampling is poisson and poisson.cohort_cap is not None)
            if adjacency is Adjacency.ZERO_OUT and not displaces and not shares_of_all:
                continue  # the same numbers as add-remove there
            other = _by_itself(plan, sampling, adjacency)
            against = _no_account_of_shares(plan, sampling, adjacency)
            rows += [
                replace(row, valid=row.valid and not against, notes=(*row.notes, *missing, *against))
                for row in _rows(other, kept, rounds)
            ]
    return rows + [row for row in scheduled if row.plan.sampling.name != plan.sampling.name]


def _by_itself(plan: Plan, sampling: PlannedSampling, adjacency: Adjacency) -> Plan:
    """Return the plan with another sampling and central noise."""
    return replace(plan, sampling=sampling, adjacency=adjacency, mechanism=GaussianNoise())


def _schedule_rows(plan: Plan, z: float, rounds: int) -> list[Budget]:
    """Return rows of the same noise where every client takes part once in clients / cohort rounds.

    With the plan's own schedule, if it has one; none for noise in shares, and where all clients take part always.
    """
    if isinstance(plan.mechanism, DistributedGaussianNoise) or plan.period < 2:
        return []
    adjacency = plan.adjacency if plan.adjacency is Adjacency.ZERO_OUT else Adjacency.ADD_REMOVE
    schedules: tuple[PlannedSampling, ...] = (BallsAndBins(cohort=plan.cohort), Cyclic(cohort=plan.cohort))
    others = [_by_itself(plan, one, adjacency) for one in schedules if one.name != plan.sampling.name]
    own = [plan] if plan.sampling.is_schedule else []
    return [solve(one, noise_multiplier=z, rounds=rounds) for one in (*own, *others)]


def _no_account_of_shares(plan: Plan, sampling: PlannedSampling, adjacency: Adjacency) -> tuple[str, ...]:
    """Return the reason why the plan's noise has no account in this setting; nothing if it has one."""
    try:
        replace(plan, sampling=sampling, adjacency=adjacency)
    except AccountingError as refusal:
        return (f"not a guarantee: {refusal}",)
    return ()


def _rows(plan: Plan, z: float, count: int) -> list[Budget]:
    rows, sampling = [], plan.sampling.name
    if sampling != "all" and not (sampling == "poisson" and plan.adjacency is Adjacency.REPLACE_ONE):
        for conversion in ("classical", "improved"):
            rows.append(
                solve(
                    plan,
                    noise_multiplier=z,
                    rounds=count,
                    accountant="rdp",
                    conversion=conversion,
                    with_lower_bound=False,
                )
            )
    rows.append(solve(plan, noise_multiplier=z, rounds=count, accountant="pld" if sampling != "all" else "best"))
    if sampling == "fixed":
        rows.append(solve(plan, noise_multiplier=z, rounds=count))
    if sampling == "fixed" and plan.adjacency is Adjacency.REPLACE_ONE:
        rows += _paper_rows(plan, z, count)
    return rows


def _paper_rows(plan: Plan, z: float, count: int) -> list[Budget]:
    """Return the Fed-SMP paper's readings, with its sensitivity C and with the 2C that its sampling needs."""
    sampler, delta = plan.sampler, plan.delta
    assert isinstance(sampler, FixedSizeSampling)
    rows = []
    for sensitivity in (1.0, 2.0):
        readings: list[tuple[str, str | None, Any]] = [
            (
                "fed-smp-theorem",
                None,
                theorem_1(z, count, sampler, delta=delta, sensitivity_in_clips=sensitivity),
            )
        ]
        for conversion in ("classical", "improved"):
            reading = lemma_3(z, count, sampler, delta=delta, sensitivity_in_clips=sensitivity, conversion=conversion)
            readings.append(("fed-smp-lemma", conversion, reading))
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
