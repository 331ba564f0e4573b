"""Caps of Poisson cohorts: the default one, and the charge of earlier versions for sums of K uploads.

Whoever counts the uploads of a sum, or sees it fail, must not learn how many clients were drawn. So such a sum has K
uploads: if fewer are drawn, others fill it up; if more are drawn, a uniformly random part of them is left out. Its
account is that of `CappedPoissonSampling`.

Up to version 0.3 the event "more than K are drawn" was added to delta instead, and ledgers of such runs say so: with M
the round without that limit, the round has at most delta(epsilon) + beta, beta = Pr[Bin(n, q) > K] (add-remove: n the
larger number), and T adaptively composed rounds at most delta_T(epsilon) + T beta. Proof: (1 - zeta) h + zeta h' is at
most h + zeta p (docs/theory.md, Theorem 9), and zeta p = (K / n) beta. Direction of error: upper bound.
"""

from collections.abc import Callable

from accounting.mechanisms.adjacency import Adjacency

LEFT_OUT_SHARE = 1e-4
"""Share of delta that the chance to take part in a full round may be, under the default cap."""
OVERFLOW_SHARE = 1e-5
"""Share of delta that the chance of a larger cohort was in a round, under the default of earlier versions."""


def default_cap(cohort: int, clients: int, *, delta: float) -> int:
    """Return the smallest cap, from the expected cohort on, with (K / n) Pr[Bin(n, q) > K] at most 1e-4 delta.

    So the account without a cap would lose at most 1e-4 delta a round by full rounds; that of a cap loses less.
    """
    return _smallest(cohort, clients, lambda cap, above: cap / clients * above <= LEFT_OUT_SHARE * delta)


def rarely_exceeded(cohort: int, clients: int, *, delta: float) -> int:
    """Return the smallest number, from the expected cohort on, that a cohort exceeds with at most 1e-5 delta."""
    return _smallest(cohort, clients, lambda cap, above: above <= OVERFLOW_SHARE * delta)


def earlier_overflow(cap: int, probability: float, clients: int, adjacency: Adjacency) -> float:
    """Return the chance that more than `cap` are drawn, as ledgers up to version 0.3 charge it in every round."""
    from scipy.special import bdtrc

    most = clients + (adjacency is Adjacency.ADD_REMOVE)
    return float(bdtrc(cap, most, probability)) if cap < most else 0.0


def _smallest(cohort: int, clients: int, suffices: Callable[[int, float], bool]) -> int:
    """Return the smallest K from `cohort` to `clients` that suffices, given the chance of more than K."""
    from scipy.special import bdtrc

    low, high = cohort - 1, clients
    while high - low > 1:
        middle = (low + high) // 2
        enough = suffices(middle, float(bdtrc(middle, clients, cohort / clients)))
        low, high = (low, middle) if enough else (middle, high)
    return high
