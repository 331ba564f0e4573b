"""Caps of Poisson cohorts: the default cap, and the delta that earlier versions charged for sums of K uploads.

A user who counts the uploads of a sum, or sees the sum fail, must not learn how many clients were drawn. So every sum
has exactly K uploads. If fewer clients are drawn, padding uploads are added; if more are drawn, K of them are chosen
uniformly at random. The account is that of `CappedPoissonSampling`.

Up to version 0.3 the event "more than K are drawn" was added to delta instead, as ledgers of such runs state. If
delta(epsilon) is the profile of a round without the cap, the capped round has at most delta(epsilon) + beta, beta =
Pr[Bin(n, q) > K] (under add-remove n is the larger number of clients). T adaptively composed rounds have at most
delta_T(epsilon) + T beta. Proof: (1 - zeta) h + zeta h' is at most h + zeta p (docs/theory.md, Theorem 9), and zeta p =
(K / n) beta.
Direction of error: upper bound.
"""

from bisect import bisect_left
from collections.abc import Callable

from accounting.mechanisms.adjacency import Adjacency

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
    from scipy.special import bdtrc

    most_clients = clients + (adjacency is Adjacency.ADD_REMOVE)
    return float(bdtrc(cap, most_clients, probability)) if cap < most_clients else 0.0


def _smallest_cap(cohort: int, clients: int, suffices: Callable[[int, float], bool]) -> int:
    """Return the smallest K from `cohort` to `clients` that passes `suffices`(K, probability that more than K are
    drawn).
    """
    from scipy.special import bdtrc

    def is_enough(cap: int) -> bool:
        return suffices(cap, float(bdtrc(cap, clients, cohort / clients)))

    return cohort + bisect_left(range(cohort, clients), True, key=is_enough)
