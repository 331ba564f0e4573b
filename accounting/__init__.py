"""Privacy accounting for federated learning: budgets, guarantees and ledgers. Never loads torch.

Loading it is quick: its modules are imported when they are first used, numpy and scipy with them.

>>> from accounting import Plan, budget
>>> from accounting.rounding import upwards
>>> plan = Plan(clients=6000, cohort=100)  # Poisson sampling, add-remove, delta = n^-1.1 = 7.0e-5
>>> upwards(budget.epsilon(plan, noise_multiplier=1.4, rounds=180))
'0.6303'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accounting import bernoulli, budget, errors, gaussian, mechanisms
    from accounting.bernoulli import debias
    from accounting.bernoulli import sums as bernoulli_sum
    from accounting.budget import Budget, Plan, calibrate
    from accounting.compose import fed_smp, grid, lower_bound, pld, rdp
    from accounting.compose.accountant import ACCOUNTANTS, Guarantee, guarantee
    from accounting.compose.histories import Histories, Steps
    from accounting.errors import AccountingError
    from accounting.gaussian import subsampling
    from accounting.integers import fixed_point
    from accounting.ledger import Aborted, Header, Ledger, LocalRelease, Release
    from accounting.mechanisms import (
        CappedPoissonSampling,
        Composed,
        FixedSizeSampling,
        FullParticipation,
        Gaussian,
        PoissonSampling,
        Subsampled,
        simultaneous,
        subsample,
    )
    from accounting.mechanisms.adjacency import Adjacency
    from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
    from accounting.mechanisms.gaussian import GaussianShares
    from accounting.mechanisms.integers import DiscreteGaussian, Skellam

_MODULES = {
    "bernoulli": "bernoulli",
    "bernoulli_sum": "bernoulli.sums",
    "budget": "budget",
    "calibrate": "budget.calibrate",
    "debias": "bernoulli.debias",
    "errors": "errors",
    "fed_smp": "compose.fed_smp",
    "fixed_point": "integers.fixed_point",
    "gaussian": "gaussian",
    "grid": "compose.grid",
    "lower_bound": "compose.lower_bound",
    "mechanisms": "mechanisms",
    "pld": "compose.pld",
    "rdp": "compose.rdp",
    "subsampling": "gaussian.subsampling",
}
_HOMES = {
    "ACCOUNTANTS": "compose.accountant",
    "Aborted": "ledger",
    "AccountingError": "errors",
    "Adjacency": "mechanisms",
    "BernoulliAggregate": "mechanisms",
    "BernoulliChannel": "mechanisms",
    "Budget": "budget",
    "CappedPoissonSampling": "mechanisms",
    "Composed": "mechanisms",
    "DiscreteGaussian": "mechanisms",
    "FixedSizeSampling": "mechanisms",
    "FullParticipation": "mechanisms",
    "Gaussian": "mechanisms",
    "GaussianShares": "mechanisms",
    "Guarantee": "compose.accountant",
    "Header": "ledger",
    "Histories": "compose.histories",
    "Ledger": "ledger",
    "LocalRelease": "ledger",
    "Plan": "budget",
    "PoissonSampling": "mechanisms",
    "Release": "ledger",
    "Skellam": "mechanisms",
    "Steps": "compose.histories",
    "Subsampled": "mechanisms",
    "guarantee": "compose.accountant",
    "simultaneous": "mechanisms",
    "subsample": "mechanisms",
}

__all__ = [
    "ACCOUNTANTS",
    "Aborted",
    "AccountingError",
    "Adjacency",
    "BernoulliAggregate",
    "BernoulliChannel",
    "Budget",
    "CappedPoissonSampling",
    "Composed",
    "DiscreteGaussian",
    "FixedSizeSampling",
    "FullParticipation",
    "Gaussian",
    "GaussianShares",
    "Guarantee",
    "Header",
    "Histories",
    "Ledger",
    "LocalRelease",
    "Plan",
    "PoissonSampling",
    "Release",
    "Skellam",
    "Steps",
    "Subsampled",
    "bernoulli",
    "bernoulli_sum",
    "budget",
    "calibrate",
    "debias",
    "errors",
    "fed_smp",
    "fixed_point",
    "gaussian",
    "grid",
    "guarantee",
    "lower_bound",
    "mechanisms",
    "pld",
    "rdp",
    "simultaneous",
    "subsample",
    "subsampling",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
