"""Epsilon of a group of private runs by two readings: the Fed-SMP paper's computation, and the bound for what ran."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from accounting import budget
from accounting.budget import Plan
from accounting.errors import AccountingError
from accounting.mechanisms.adjacency import Adjacency
from dpfed.records.summary import Summary
from dpfed.report.statistics import RunGroup


@dataclass(frozen=True, kw_only=True)
class EpsilonReadings:
    """Epsilons at the delta of `summary`, the record of the group's longest run.

    stated_epsilon:    upper bound for what ran, recomputed from the ledger; `holds_for`: unit, adjacency, sampler
    classical_epsilon: the Fed-SMP paper's formula: Poisson sampling, add-remove, Renyi with the classical conversion
    poisson_epsilon:   the tightest account for Poisson sampling and add-remove
    other_sampler_ran: True if the run had another sampler or adjacency, for which the last two are no guarantee
    The last two are upper bounds for Poisson sampling with the run's noise. They are None unless the run adds Gaussian
    noise of one size to a sampled sum.
    """

    group: RunGroup
    summary: Summary
    stated_epsilon: float
    holds_for: str
    classical_epsilon: float | None
    poisson_epsilon: float | None
    other_sampler_ran: bool


def readings_of(group: RunGroup) -> EpsilonReadings | None:
    """Return the readings of a group, computed for its longest run; None if that run is not private."""
    summary = max(group.runs, key=lambda run: run.summary.rounds).summary
    if summary.epsilon is None or summary.delta is None:
        return None
    classical = poisson = None
    if summary.noise_multiplier is not None and _is_sampled_gaussian(summary):
        classical, poisson = _poisson_readings(
            summary.clients, summary.cohort, summary.rounds, summary.noise_multiplier, summary.delta
        )
    sampler = "every upload seen" if summary.noise_placement == "uploads" else f"{summary.sampling} sampling"
    return EpsilonReadings(
        group=group,
        summary=summary,
        stated_epsilon=max(run.summary.epsilon or 0.0 for run in group.runs),
        holds_for=f"{summary.unit}, {summary.adjacency}, {sampler}, {summary.accountant}",
        classical_epsilon=classical,
        poisson_epsilon=poisson,
        other_sampler_ran=classical is not None and (summary.sampling, summary.adjacency) != ("poisson", "add-remove"),
    )


def _is_sampled_gaussian(summary: Summary) -> bool:
    return (
        summary.unit == "client"
        and summary.noise == "gaussian"
        and summary.noise_placement == "server"
        and not summary.noise_schedule
        and summary.sampling in ("poisson", "fixed")
        and summary.rounds > 0
    )


@lru_cache
def _poisson_readings(
    clients: int, cohort: int, rounds: int, z: float, delta: float
) -> tuple[float | None, float | None]:
    plan = Plan(clients=clients, cohort=cohort, sampling="poisson", adjacency=Adjacency.ADD_REMOVE, delta=delta)
    try:
        old = budget.epsilon(plan, noise_multiplier=z, rounds=rounds, accountant="rdp", conversion="classical")
        tight = budget.epsilon(plan, noise_multiplier=z, rounds=rounds)
    except AccountingError:
        return None, None
    return old, tight
