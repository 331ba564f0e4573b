"""Every accountant and reading that applies to the same numbers, each with the sampler that it is for."""

import math
from dataclasses import replace
from typing import Any

from accounting import require
from accounting.budget.answers import Budget, solve
from accounting.budget.plan import SAMPLINGS, Plan
from accounting.caveats import caveats
from accounting.compose.fed_smp import lemma_3, theorem_1
from accounting.errors import AccountingError, InvalidParameter
from accounting.mechanisms import FixedSizeSampling
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.schedules import SCHEDULES


def compare(plan: Plan, *, noise_multiplier: float, rounds: int) -> list[Budget]:
    """A row for every accountant and reading that applies to these numbers, each naming the sampler it is for.

    The plan's own sampler comes first. Rows of the Fed-SMP paper keep its sensitivity C beside the 2C that its
    sampling needs; a row that is not a guarantee says so in `valid` and `notes`. Noise in shares that may be missing
    is counted as noise added centrally, so much less: each row's noise multiplier is what is left; rows in whose
    setting shares have no account are no guarantees. Rows of participation schedules stand for the same cohort drawn by
    balls-and-bins, or taking part in a public order.
    """
    if plan.mechanism not in ("gaussian", "distributed-gaussian"):
        raise InvalidParameter(f"mechanism={plan.mechanism!r}: comparisons are for Gaussian noise.")
    if plan.correlated is not None:
        raise InvalidParameter(f"noise={plan.noise!r}: comparisons are for noise that is independent over rounds.")
    if plan.noise_schedule is not None:
        raise InvalidParameter("noise_schedule: comparisons are of rounds with equal noise. Remove one of them.")
    kept = require.positive(noise_multiplier=noise_multiplier) * math.sqrt(plan.noise_kept)
    missing = plan.notes(noise_multiplier, rounds)
    in_shares = plan.mechanism == "distributed-gaussian"
    order = sorted(SAMPLINGS, key=lambda name: (name != plan.sampling, SAMPLINGS.index(name)))
    scheduled = _schedule_rows(plan, kept, rounds)
    rows: list[Budget] = [row for row in scheduled if row.plan.sampling == plan.sampling]
    for sampling in order:
        for adjacency in Adjacency:
            if sampling == "fixed" and adjacency is Adjacency.ADD_REMOVE:
                continue
            if adjacency is Adjacency.ZERO_OUT and sampling != "fixed" and not (in_shares and sampling == "all"):
                continue  # the same numbers as add-remove there
            other = _by_itself(plan, sampling, adjacency)
            against = _no_account_of_shares(plan, sampling, adjacency)
            rows += [
                replace(row, valid=row.valid and not against, notes=(*row.notes, *missing, *against))
                for row in _rows(other, kept, rounds)
            ]
    return rows + [row for row in scheduled if row.plan.sampling != plan.sampling]


def _by_itself(plan: Plan, sampling: str, adjacency: Adjacency, **schedule: Any) -> Plan:
    """The plan with another sampling and central noise."""
    other: dict[str, Any] = {"participations": None, "separation": None, "dropout": 0.0, **schedule}
    return replace(plan, sampling=sampling, adjacency=adjacency, mechanism="gaussian", **other)


def _schedule_rows(plan: Plan, z: float, rounds: int) -> list[Budget]:
    """What the same noise costs where every client takes part once in clients / cohort rounds; the plan's own schedule,
    if it has one. Nothing where noise is in shares, or every client takes part in every round."""
    if plan.mechanism != "gaussian" or plan.period < 2:
        return []
    adjacency = plan.adjacency if plan.adjacency is Adjacency.ZERO_OUT else Adjacency.ADD_REMOVE
    others = [_by_itself(plan, name, adjacency) for name in ("balls-and-bins", "cyclic") if name != plan.sampling]
    own = [plan] if plan.sampling in SCHEDULES else []
    return [solve(one, noise_multiplier=z, rounds=rounds) for one in (*own, *others)]


def _no_account_of_shares(plan: Plan, sampling: str, adjacency: Adjacency) -> tuple[str, ...]:
    """Why the plan's noise has no account in this setting, as `Plan` says it; nothing if it has one."""
    try:
        replace(plan, sampling=sampling, adjacency=adjacency, participations=None, separation=None)
    except AccountingError as refusal:
        return (f"not a guarantee: {refusal}",)
    return ()


def _rows(plan: Plan, z: float, count: int) -> list[Budget]:
    rows = []
    if plan.sampling != "all" and not (plan.sampling == "poisson" and plan.adjacency is Adjacency.REPLACE_ONE):
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
    rows.append(solve(plan, noise_multiplier=z, rounds=count, accountant="pld" if plan.sampling != "all" else "best"))
    if plan.sampling == "fixed":
        rows.append(solve(plan, noise_multiplier=z, rounds=count))
    if plan.sampling == "fixed" and plan.adjacency is Adjacency.REPLACE_ONE:
        rows += _paper_rows(plan, z, count)
    return rows


def _paper_rows(plan: Plan, z: float, count: int) -> list[Budget]:
    """The Fed-SMP paper's readings, with its sensitivity C and with the 2C that its sampling needs."""
    sampler, delta = plan.sampler, float(plan.delta or 0)
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
