"""Caps of Poisson cohorts: the default cap, and the charge of earlier versions for sums of K uploads.

A user who counts the uploads of a sum, or sees the sum fail, must not learn how many clients were drawn. So such a sum
has K uploads: if fewer clients are drawn, padding fills the sum up; if more are drawn, a uniformly random part of them
is left out. The account is that of `CappedPoissonSampling`.

Up to version 0.3 the event "more than K are drawn" was added to delta instead, as ledgers of such runs state. With M
the round without that limit, the round has at most delta(epsilon) + beta, beta = Pr[Bin(n, q) > K] (add-remove: n the
larger number), and T adaptively composed rounds at most delta_T(epsilon) + T beta. Proof: (1 - zeta) h + zeta h' is at
most h + zeta p (docs/theory.md, Theorem 9), and zeta p = (K / n) beta. Direction of error: upper bound.
"""

from bisect import bisect_left
from collections.abc import Callable

from accounting.mechanisms.adjacency import Adjacency

LEFT_OUT_SHARE = 1e-4
"""Largest share of delta that the probability to take part in a full round takes, under the default cap."""
OVERFLOW_SHARE = 1e-5
"""Share of delta that the probability of a larger cohort took in a round, under the default of earlier versions."""


def default_cap(cohort: int, clients: int, *, delta: float) -> int:
    """Return the smallest cap, from the expected cohort on, with (K / n) Pr[Bin(n, q) > K] at most 1e-4 delta.

    Full rounds then add at most 1e-4 delta per round to the account without a cap; the account of the cap adds less.
    """
    return _smallest_cap(cohort, clients, lambda cap, above: cap / clients * above <= LEFT_OUT_SHARE * delta)


def rarely_exceeded(cohort: int, clients: int, *, delta: float) -> int:
    """Return the smallest K, from the expected cohort on, that a cohort exceeds with probability at most 1e-5 delta."""
    return _smallest_cap(cohort, clients, lambda cap, above: above <= OVERFLOW_SHARE * delta)


def earlier_overflow(cap: int, probability: float, clients: int, adjacency: Adjacency) -> float:
    """Return the probability that more than `cap` are drawn, as ledgers up to version 0.3 charge it in every round."""
    from scipy.special import bdtrc

    most = clients + (adjacency is Adjacency.ADD_REMOVE)
    return float(bdtrc(cap, most, probability)) if cap < most else 0.0


def _smallest_cap(cohort: int, clients: int, suffices: Callable[[int, float], bool]) -> int:
    """Return the smallest K from `cohort` to `clients` that suffices, given the probability of more than K."""
    from scipy.special import bdtrc

    def enough(cap: int) -> bool:
        return suffices(cap, float(bdtrc(cap, clients, cohort / clients)))

    return cohort + bisect_left(range(cohort, clients), True, key=enough)
