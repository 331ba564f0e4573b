"""Rounds that are drawn independently of each other: Poisson sampling, its cap, fixed size, all clients.

Caps: a user who counts the uploads of a sum, or sees the sum fail, must not learn how many clients were drawn. So every
sum has exactly K uploads. If fewer clients are drawn, padding uploads are added; if more are drawn, K of them are
chosen uniformly at random. The account is that of `CappedPoissonSampling`.

Up to version 0.3 the event "more than K are drawn" was added to delta instead, as ledgers of such runs state. If
delta(epsilon) is the profile of a round without the cap, the capped round has at most delta(epsilon) + beta, beta =
Pr[Bin(n, q) > K] (under add-remove n is the larger number of clients). T adaptively composed rounds have at most
delta_T(epsilon) + T beta. Proof: (1 - zeta) h + zeta h' is at most h + zeta p (docs/theory.md, Theorem 9), and zeta p =
(K / n) beta.
Direction of error: upper bound.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from accounting import require
from accounting.arrays import Ints
from accounting.cohorts import Draws, NamedClients, clients_by_chance
from accounting.errors import InvalidParameter
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.planned import CohortSampling, PlannedSampling
from accounting.mechanisms.samplings.sampling import Sampling
from accounting.options import option

HYPOTHESIS = (
    "fixed-size sampling: holds if a client's messages do not depend on the rounds in which it was drawn before (no "
    "error feedback, no control variates)"
)
"""Note on every guarantee under fixed-size sampling."""
_ROUNDING = 1 + 3e-10
"""Factor above the relative error of binomial tails, of which 1.7e-10 was measured, at 10^15 clients."""


@dataclass(frozen=True, kw_only=True)
class PoissonSampling(Sampling):
    """Poisson sampling: each client takes part independently with this probability; the cohort size is secret.

    Claim: a Gaussian round is dominated by (1-q) N(0) + q N(s) against N(0) under add-remove and zero-out, against
    (1-q) N(0) + q N(-s) under replace-one; s is 1 / noise multiplier.
    Source: docs/theory.md, Theorems 3 and 4; Zhu, Dong, Wang 2022, Theorem 11; Lebeda et al. 2024.
    Adjacency: any.
    Errors: InvalidParameter for a probability outside [0, 1].

    >>> from accounting import Gaussian, PoissonSampling, guarantee, subsample
    >>> noise = Gaussian(noise_multiplier=1.0, adjacency="add-remove")
    >>> sampled = subsample(noise, PoissonSampling(probability=0.01))
    >>> round(guarantee(sampled, delta=1e-6, accountant="pld", with_lower_bound=False).epsilon, 3)
    0.364
    """

    probability: float
    name: ClassVar[str] = "poisson"
    begins_as_poisson: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", require.probability(sampling_probability=self.probability))

    def sample(self, clients: int, randomness: Draws, number: int, ids: NamedClients | None = None) -> Ints:
        return clients_by_chance(self.probability, clients, randomness, number)


@dataclass(frozen=True, kw_only=True)
class CappedPoissonSampling(Sampling):
    """Poisson sampling with a cap: if more than `cap` clients are drawn, `cap` of them take part, chosen secretly and
    uniformly.

    clients: n, the number of all clients, which determines the probability that a drawn client is left out.
    Claim: a round's hockey-stick divergence is at most (1 - zeta) h + zeta h'. h is the divergence without a cap, h'
    that of a full round, and zeta the probability of a full round (`full_rounds`).
    Source: docs/theory.md, Theorem 9.
    Adjacency: any.
    Errors: InvalidParameter for a probability outside [0, 1] or a count below 1.

    >>> from accounting import CappedPoissonSampling
    >>> CappedPoissonSampling(probability=0.1, cap=20, clients=100).binds("zero-out")
    True
    """

    probability: float
    cap: int
    clients: int
    name: ClassVar[str] = "capped-poisson"
    independent: ClassVar[bool] = True
    displaces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", require.probability(sampling_probability=self.probability))
        object.__setattr__(self, "cap", require.count(cohort_cap=self.cap))
        require.replace_fields(self, require.count, "clients")

    @property
    def cohort_cap(self) -> int:
        """Largest number of clients that take part; those of `sample` beyond it are left out by `draw_cohort`."""
        return self.cap

    def sample(self, clients: int, randomness: Draws, number: int, ids: NamedClients | None = None) -> Ints:
        return clients_by_chance(self.probability, clients, randomness, number)

    def binds(self, adjacency: Adjacency) -> bool:
        """Return True if more than `cap` clients can be drawn from one of the neighbours."""
        return self.cap < self.clients + (adjacency is Adjacency.ADD_REMOVE)

    def full_rounds(self, adjacency: Adjacency) -> tuple[tuple[float, float], ...]:
        """Return (zeta, p) for each possible number of other clients: n - 1, under add-remove also n.

        zeta: the probability of a full round, in which at least `cap` other clients are drawn. p: the probability that
        the client takes part in a full round, cap / (m + 1) Pr[Bin(m + 1, q) > cap] / zeta with m other clients.
        Direction of error: upwards, by rounding.
        """
        found = []
        for others in (self.clients - 1, self.clients)[: 1 + (adjacency is Adjacency.ADD_REMOVE)]:
            zeta = _probability_of_more(self.cap - 1, others, self.probability)
            joined = _probability_of_more(self.cap, others + 1, self.probability)
            p = self.cap / (others + 1) * joined / zeta if zeta > 0 else self.probability
            found.append((min(zeta * _ROUNDING, 1.0), min(p * _ROUNDING, self.probability)))
        return tuple(found)

    def participation_probability(self, adjacency: Adjacency) -> float:
        """Return the probability that one client takes part in a round, rounded downwards."""
        zeta, p = self.full_rounds(adjacency)[-1]
        return ((1 - zeta) * self.probability + zeta * p) * (1 - 1e-9)

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        return (
            f"cohort cap: if more than {self.cap} clients are drawn, a random {self.cap} of them take part; holds if a "
            "client's messages do not depend on the rounds in which it was drawn before, and if a client that was "
            "drawn and left out does not learn it",
        )


@dataclass(frozen=True, kw_only=True)
class PairwiseCappedSampling(CappedPoissonSampling):
    """Capped Poisson sampling for noise that is dominated by a Gaussian only for each single pair of neighbours.

    full_noise_multiplier: noise multiplier of the dominating Gaussian for cohorts in which one client replaces another.
    """

    full_noise_multiplier: float


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampling(Sampling):
    """Uniform random subset of exactly `cohort` of `clients`, drawn without replacement each round.

    Claim: the sum moves by up to 2C also under zero-out, because another client may take the zeroed client's place.
    docs/theory.md has the privacy profiles of one round, and bounds many rounds by the value of a game. Source:
    docs/theory.md, Theorems 1, 2 and 7; Wang, Balle, Kasiviswanathan 2019.
    Adjacency: replace-one or zero-out; `Subsampled` rejects add-remove.
    Errors: InvalidParameter for a cohort larger than the population.

    >>> from accounting import FixedSizeSampling
    >>> FixedSizeSampling(cohort=100, clients=6000).probability
    0.016666666666666666
    """

    cohort: int
    clients: int
    name: ClassVar[str] = "fixed"
    fixed_size: ClassVar[bool] = True
    displaces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require.replace_fields(self, require.count, "cohort", "clients")
        if self.cohort > self.clients:
            raise InvalidParameter(
                f"cohort={self.cohort} of clients={self.clients}: a cohort without replacement can hold at "
                "most all clients. Lower the cohort or raise the number of clients."
            )

    @property
    def probability(self) -> float:
        """Probability that one client is drawn, cohort / clients."""
        return self.cohort / self.clients

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        return (HYPOTHESIS,)

    def sample(self, clients: int, randomness: Draws, number: int, ids: NamedClients | None = None) -> Ints:
        return randomness.subset(self.cohort, clients, "cohort", number)


@dataclass(frozen=True, kw_only=True)
class FullParticipation(Sampling):
    """Full participation: every client takes part in every round.

    Claim: a round has the guarantee of its release, without amplification.
    Adjacency: any.

    >>> from accounting import FullParticipation
    >>> FullParticipation().probability
    1.0
    """

    name: ClassVar[str] = "all"
    takes_all: ClassVar[bool] = True
    probability: ClassVar[float] = 1.0
    """Probability that one client takes part: 1."""
    secret_in_lane: ClassVar[bool] = False

    def sample(self, clients: int, randomness: Draws, number: int, ids: NamedClients | None = None) -> Ints:
        return np.arange(clients)


def full_round_multiplier(sampling: Sampling) -> float:
    """Return the noise multiplier of the Gaussian that dominates full rounds under a cap, if only pairs of neighbours
    are dominated; infinite if all are.
    """
    return getattr(sampling, "full_noise_multiplier", math.inf)


def shift_in_clips(sampling: Sampling, adjacency: Adjacency) -> float:
    """Return the largest shift of one round's sum between neighbours, in clip norms.

    It is 2 under fixed-size sampling and in full rounds under a cap, even if the differing client sends zeros, because
    another client may take its place. Otherwise it is the adjacency's.
    """
    return 2.0 if sampling.displaces else adjacency.sensitivity_in_clips


LEFT_OUT_SHARE = 1e-4
"""Largest probability that a client takes part in a full round under the default cap, as a share of delta."""
OVERFLOW_SHARE = 1e-5
"""Largest probability of a cohort above the default cap of earlier versions in one round, as a share of delta."""


def default_cap(cohort: int, clients: int, *, delta: float) -> int:
    """Return the smallest cap K from the expected cohort on with (K / n) Pr[Bin(n, q) > K] at most 1e-4 delta.

    Full rounds then add at most 1e-4 delta per round to the account without a cap. The account with the cap adds less.
    """
    return _smallest_cap(cohort, clients, lambda cap, above: cap / clients * above <= LEFT_OUT_SHARE * delta)


def rarely_exceeded(cohort: int, clients: int, *, delta: float) -> int:
    """Return the smallest K, from the expected cohort on, that a cohort exceeds with probability at most 1e-5 delta."""
    return _smallest_cap(cohort, clients, lambda cap, above: above <= OVERFLOW_SHARE * delta)


def earlier_overflow(cap: int, probability: float, clients: int, adjacency: Adjacency) -> float:
    """Return the probability that more than `cap` clients are drawn. Ledgers up to version 0.3 charge it in every
    round.
    """
    return _probability_of_more(cap, clients + (adjacency is Adjacency.ADD_REMOVE), probability)


def _probability_of_more(cap: int, clients: int, probability: float) -> float:
    """Return the probability that more than `cap` of the clients are drawn, Pr[Bin(clients, probability) > cap].

    It is an incomplete beta function. scipy's `bdtrc` errs by 1e-8 at 10^7 clients, and is 0 or nan from 10^10 on.
    """
    from scipy.special import betainc

    return float(betainc(cap + 1, clients - cap, probability)) if cap < clients else 0.0


def _smallest_cap(cohort: int, clients: int, suffices: Callable[[int, float], bool]) -> int:
    """Return the smallest K from `cohort` to `clients` that passes `suffices`(K, probability that more than K are
    drawn).
    """

    def is_enough(cap: int) -> bool:
        return suffices(cap, _probability_of_more(cap, clients, cohort / clients))

    return cohort + bisect_left(range(cohort, clients), True, key=is_enough)


@dataclass(frozen=True, kw_only=True)
class Poisson(CohortSampling):
    """Poisson sampling: each client takes part independently, with probability cohort / clients, in every round.

    cohort_cap: if more clients are drawn, `cohort_cap` of them take part, chosen secretly and uniformly. None: no cap,
    or a default cap for mechanisms whose sums hold a fixed number of uploads (`Plan.cohort_cap`).
    Claim: amplified as `PoissonSampling`, with a cap as `CappedPoissonSampling`.
    Source: docs/theory.md, Theorems 3, 4, 9.
    Adjacency: any.
    Errors: InvalidParameter for a count below 1.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.Poisson(cohort=15)).sampler
    PoissonSampling(probability=0.025)
    """

    cohort_cap: int | None = option(
        "poisson: largest number of clients in a round; if more are drawn, a random part is left out. With noise "
        "shares, secure sums and Bernoulli uploads it is the fixed number of uploads, and has a default. --slots is "
        "its old name.",
        None,
        alias="slots",
    )
    name: ClassVar[str] = "poisson"
    words: ClassVar[str] = "Poisson: every client with equal probability, independently"
    is_schedule: ClassVar[bool] = False
    takes_cap: ClassVar[bool] = True

    def with_cap(self, cohort_cap: int | None) -> "Poisson":
        return replace(self, cohort_cap=cohort_cap)

    def description(self, clients: int) -> str:
        drawn = f"{self.cohort} of {clients} clients expected (q = {self.cohort / clients:.6g})"
        rest = f", at most {self.cohort_cap} take part, the others left out by lot" if self.cohort_cap else ""
        return f"Poisson sampling, {drawn}{rest}"

    def law(self, clients: int, stream: str) -> PoissonSampling | CappedPoissonSampling:
        q = self.cohort / clients
        if self.cohort_cap is None:
            return PoissonSampling(probability=q)
        return CappedPoissonSampling(probability=q, cap=self.cohort_cap, clients=clients)


@dataclass(frozen=True, kw_only=True)
class FixedSize(CohortSampling):
    """Fixed-size sampling: exactly `cohort` clients are drawn without replacement in every round.

    Claim: amplified as `FixedSizeSampling`.
    Source: docs/theory.md, Theorems 1, 2 and 7.
    Adjacency: replace-one (the default) or zero-out.
    Errors: InvalidParameter for a cohort below 1.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.FixedSize(cohort=15)).sampler
    FixedSizeSampling(cohort=15, clients=600)
    """

    name: ClassVar[str] = "fixed"
    words: ClassVar[str] = "fixed size: exactly this number of clients, without replacement"
    is_schedule: ClassVar[bool] = False

    def description(self, clients: int) -> str:
        return f"fixed-size sampling, exactly {self.cohort} of {clients} clients without replacement"

    def law(self, clients: int, stream: str) -> FixedSizeSampling:
        return FixedSizeSampling(cohort=self.cohort, clients=clients)


@dataclass(frozen=True, kw_only=True)
class Everyone(PlannedSampling):
    """Full participation: all clients in every round.

    Claim: no amplification.
    Adjacency: any.
    Errors: none, because it has no options.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.Everyone()).cohort
    600
    """

    name: ClassVar[str] = "all"
    words: ClassVar[str] = "all clients in every round"

    def description(self, clients: int) -> str:
        return f"all {clients} clients in every round"

    def law(self, clients: int, stream: str) -> FullParticipation:
        return FullParticipation()
