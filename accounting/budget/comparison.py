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


def compare(plan: Plan, *, noise_multiplier: float, rounds: int) -> list[Budget]:
    """A row for every accountant and reading that applies to these numbers, each naming the sampler it is for.

    The plan's own sampler comes first. Rows of the Fed-SMP paper keep its sensitivity C beside the 2C that its
    sampling needs; a row that is not a guarantee says so in `valid` and `notes`. Noise in shares that may be missing
    is counted as noise added centrally, so much less: each row's noise multiplier is what is left; rows in whose
    setting shares have no account are no guarantees.
    """
    if plan.mechanism not in ("gaussian", "distributed-gaussian"):
        raise InvalidParameter(f"mechanism={plan.mechanism!r}: comparisons are for Gaussian noise.")
    kept = require.positive(noise_multiplier=noise_multiplier) * math.sqrt(plan.noise_kept)
    missing = plan.notes(noise_multiplier, rounds)
    in_shares = plan.mechanism == "distributed-gaussian"
    order = sorted(SAMPLINGS, key=lambda name: (name != plan.sampling, SAMPLINGS.index(name)))
    rows: list[Budget] = []
    for sampling in order:
        for adjacency in Adjacency:
            if sampling == "fixed" and adjacency is Adjacency.ADD_REMOVE:
                continue
            if adjacency is Adjacency.ZERO_OUT and sampling != "fixed" and not (in_shares and sampling == "all"):
                continue  # the same numbers as add-remove there
            other = replace(plan, sampling=sampling, adjacency=adjacency, mechanism="gaussian", dropout=0.0)
            against = _no_account_of_shares(plan, sampling, adjacency)
            rows += [
                replace(row, valid=row.valid and not against, notes=(*row.notes, *missing, *against))
                for row in _rows(other, kept, rounds)
            ]
    return rows


def _no_account_of_shares(plan: Plan, sampling: str, adjacency: Adjacency) -> tuple[str, ...]:
    """Why the plan's noise has no account in this setting, as `Plan` says it; nothing if it has one."""
    try:
        replace(plan, sampling=sampling, adjacency=adjacency)
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
