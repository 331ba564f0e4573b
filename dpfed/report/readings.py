"""Epsilon of a private group under each reading: the paper's computation, and the bound for the sampler that ran."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from accounting import budget
from accounting.budget import Plan
from accounting.errors import AccountingError
from accounting.mechanisms.adjacency import Adjacency
from dpfed.records.summary import Summary
from dpfed.report.statistics import Group


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Epsilons at the delta of `summary`, the record of the group's longest run.

    stated:       upper bound for what ran, recomputed from the ledger; `holds_for` names unit, adjacency and sampler
    classical:    the Fed-SMP paper's arithmetic: Poisson sampling, add-remove, Renyi with the classical conversion
    poisson:      the tightest account under the same assumptions
    The last two are None where there is no Gaussian noise of one size on a sampled sum. They are upper bounds for
    Poisson sampling with the same noise; `assumed` says that another sampler ran, for which they are no guarantee.
    """

    group: Group
    summary: Summary
    stated: float
    holds_for: str
    classical: float | None
    poisson: float | None
    assumed: bool


def readings_of(group: Group) -> Readings | None:
    """Return the readings of a group, from its longest run; None if no run is private."""
    summary = max(group.runs, key=lambda run: run.summary.rounds).summary
    if summary.epsilon is None or summary.delta is None:
        return None
    classical = poisson = None
    if summary.noise_multiplier is not None and _is_sampled_gaussian(summary):
        classical, poisson = _poisson_readings(
            summary.clients, summary.cohort, summary.rounds, summary.noise_multiplier, summary.delta
        )
    sampler = "every upload seen" if summary.noise_placement == "uploads" else f"{summary.sampling} sampling"
    return Readings(
        group=group,
        summary=summary,
        stated=max(run.summary.epsilon or 0.0 for run in group.runs),
        holds_for=f"{summary.unit}, {summary.adjacency}, {sampler}, {summary.accountant}",
        classical=classical,
        poisson=poisson,
        assumed=classical is not None and (summary.sampling, summary.adjacency) != ("poisson", "add-remove"),
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
