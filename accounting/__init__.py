"""Privacy accounting for federated learning: budgets, guarantees and ledgers. Never loads torch.

Loading it is quick: `import scipy` loads a part of scipy when that is first used, and dp-accounting waits too.

>>> from accounting import Plan, budget
>>> from accounting.rounding import upwards
>>> plan = Plan(clients=6000, cohort=100)  # Poisson sampling, add-remove, delta = n^-1.1 = 7.0e-5
>>> upwards(budget.epsilon(plan, noise_multiplier=1.4, rounds=180))
'0.6303'
"""

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
