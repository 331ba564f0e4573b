"""Privacy accounting for federated learning: budgets, guarantees and ledgers. Never loads torch.

Importing the package is fast: its modules, numpy and scipy are imported at their first use.

>>> from accounting import Plan, budget
>>> from accounting.rounding import upwards
>>> plan = Plan(clients=6000, cohort=100)  # Poisson sampling, add-remove, delta = n^-1.1 = 7.0e-5
>>> upwards(budget.epsilon(plan, noise_multiplier=1.4, rounds=180))
'0.6303'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accounting import lazy

if TYPE_CHECKING:
    from accounting import bernoulli as bernoulli
    from accounting import budget as budget
    from accounting import errors as errors
    from accounting import gaussian as gaussian
    from accounting import mechanisms as mechanisms
    from accounting.bernoulli import debias as debias
    from accounting.bernoulli import sums as bernoulli_sum
    from accounting.budget import Budget as Budget
    from accounting.budget import Plan as Plan
    from accounting.budget import calibrate as calibrate
    from accounting.compose import fed_smp as fed_smp
    from accounting.compose import grid as grid
    from accounting.compose import lower_bound as lower_bound
    from accounting.compose import pld as pld
    from accounting.compose import rdp as rdp
    from accounting.compose.accountant import ACCOUNTANTS as ACCOUNTANTS
    from accounting.compose.accountant import Guarantee as Guarantee
    from accounting.compose.accountant import guarantee as guarantee
    from accounting.compose.histories import Histories as Histories
    from accounting.compose.histories import Steps as Steps
    from accounting.errors import AccountingError as AccountingError
    from accounting.gaussian import subsampling as subsampling
    from accounting.integers import fixed_point as fixed_point
    from accounting.ledger import Aborted as Aborted
    from accounting.ledger import Header as Header
    from accounting.ledger import Ledger as Ledger
    from accounting.ledger import LocalRelease as LocalRelease
    from accounting.ledger import Release as Release
    from accounting.mechanisms import CappedPoissonSampling as CappedPoissonSampling
    from accounting.mechanisms import Composed as Composed
    from accounting.mechanisms import FixedSizeSampling as FixedSizeSampling
    from accounting.mechanisms import FullParticipation as FullParticipation
    from accounting.mechanisms import Gaussian as Gaussian
    from accounting.mechanisms import PoissonSampling as PoissonSampling
    from accounting.mechanisms import Subsampled as Subsampled
    from accounting.mechanisms import simultaneous as simultaneous
    from accounting.mechanisms import subsample as subsample
    from accounting.mechanisms.adjacency import Adjacency as Adjacency
    from accounting.mechanisms.bernoulli import BernoulliAggregate as BernoulliAggregate
    from accounting.mechanisms.bernoulli import BernoulliChannel as BernoulliChannel
    from accounting.mechanisms.gaussian import GaussianShares as GaussianShares
    from accounting.mechanisms.integers import DiscreteGaussian as DiscreteGaussian
    from accounting.mechanisms.integers import Skellam as Skellam


_HOMES = {
    **lazy.modules(__name__, "bernoulli", "bernoulli.debias", "budget", "budget.calibrate", "errors", "gaussian"),
    **lazy.modules(__name__, "compose.fed_smp", "compose.grid", "compose.lower_bound", "compose.pld", "compose.rdp"),
    **lazy.modules(__name__, "gaussian.subsampling", "integers.fixed_point", "mechanisms"),
    **lazy.names("accounting.budget", "Budget", "Plan"),
    **lazy.names("accounting.compose.accountant", "ACCOUNTANTS", "Guarantee", "guarantee"),
    **lazy.names("accounting.compose.histories", "Histories", "Steps"),
    **lazy.names("accounting.errors", "AccountingError"),
    **lazy.names("accounting.ledger", "Aborted", "Header", "Ledger", "LocalRelease", "Release"),
    **lazy.names("accounting.mechanisms", "Adjacency", "BernoulliAggregate", "BernoulliChannel", "Composed"),
    **lazy.names("accounting.mechanisms", "CappedPoissonSampling", "FixedSizeSampling", "FullParticipation"),
    **lazy.names("accounting.mechanisms", "PoissonSampling", "Subsampled", "simultaneous", "subsample"),
    **lazy.names("accounting.mechanisms", "DiscreteGaussian", "Gaussian", "GaussianShares", "Skellam"),
}

__all__ = ["bernoulli_sum", *_HOMES]
_HOMES["bernoulli_sum"] = "accounting.bernoulli.sums"


def __getattr__(name: str) -> object:
    return lazy.load_exported(__name__, name, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
