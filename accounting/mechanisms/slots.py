"""Slots: the fixed number K of uploads of a sum under Poisson sampling, and the charge for more than K being drawn.

Whoever counts the uploads of a sum, or sees it fail, must not learn how many clients were drawn. So every sum has K
uploads: if fewer are drawn, others fill it up; if more are drawn, a uniformly random part of them is left out.

Claim: let M be the round without that limit, with hockey-stick divergence at most delta(epsilon) for each pair of
neighbours in both orders. The round with K slots has at most delta(epsilon) + beta, beta = Pr[Binomial(n, q) > K],
and T adaptively composed rounds at most delta_T(epsilon) + T beta, delta_T that of T rounds of M. Adjacency: zero-out
and replace-one on n clients; add-remove with n the larger number. Direction of error: upper bound.

Proof. Write R for the number drawn among the others, T for the coin of the client that differs. Up to K drawn, the
round is M. Given R = r < K both outcomes of T fit, and the pair of laws is that of M given r. Given R = K only T = 0
fits, and then both worlds have the same law: at most (1 - e^epsilon)_+, which delta(epsilon) is never below. So the
parts of the two laws without the event "more than K" are within delta(epsilon); that event adds its probability in the
first world and nothing in the second. Where the second world has the client and the first has not (add-remove), the
first fits R = K always and the second only where T = 0: a part of mass q Pr[R = K] is on one side alone, and together
with Pr[R > K] that is Pr[R + T > K] = beta again. All this holds for every real epsilon, so such parts compose like
the pairs of M, and the union bound gives T beta. There is no factor e^epsilon in front of beta.
"""

from accounting import require
from accounting.mechanisms.adjacency import Adjacency

OVERFLOW_SHARE = 1e-5
"""The share of delta that a Poisson cohort too large for its slots may cost in one round."""


def default_slots(
    cohort: int, clients: int, *, delta: float, adjacency: Adjacency | None, slots: int | None = None
) -> tuple[int, float]:
    """K and beta: the given `slots`, or the fewest that at most `OVERFLOW_SHARE` delta of rounds draw more clients than
    (all clients, if need be). Under add-remove beta is that of a client more than there are, who might be added."""
    chosen, overflow = slots_for(cohort, clients, allowed=OVERFLOW_SHARE * delta, slots=slots)
    if adjacency is Adjacency.ADD_REMOVE:
        from scipy.special import bdtrc

        overflow = float(bdtrc(chosen, clients + 1, cohort / clients)) if chosen <= clients else 0.0
    return chosen, overflow


def slots_for(cohort: int, clients: int, *, allowed: float, slots: int | None = None) -> tuple[int, float]:
    """Slots K for a Poisson cohort of mean `cohort`, and Pr[Binomial(clients, cohort/clients) > K].

    The given `slots`, or the least K whose probability is at most `allowed`.
    """
    from scipy.special import bdtrc

    q = cohort / clients

    def overflow(k: int) -> float:
        return float(bdtrc(k, clients, q)) if k < clients else 0.0

    if slots is not None:
        chosen = require.count(slots=slots)
        return chosen, overflow(chosen)
    low, high = cohort - 1, clients
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if overflow(middle) <= allowed else (middle, high)
    return high, overflow(high)
