"""Account by central moments, for many Poisson-sampled Gaussian rounds with a tiny sampling probability.

If the sampling probability q is tiny, the likelihood ratio of all rounds is near 1. Its deviation is too small for any
grid of a privacy loss distribution, and no Renyi order resolves it. But its central moments are exact sums of a few
terms.
"""

import decimal
import math
from collections.abc import Sequence
from decimal import Decimal

from accounting import require
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import Adjacency, Mechanism, gaussian_of, parts_of, sampling_of

_ORDERS = (2, 4, 6, 8, 12, 16, 24, 32)
_SPARE_DIGITS = 120
"""Number of decimal digits in addition to those lost by cancellation."""
_LARGEST_VARIANCE = 1e-3
"""Largest variance of the likelihood ratio for this account; above it privacy loss distributions are tighter."""
_SURELY = 1e-12

_Rounds = Sequence[tuple[float, float, int]]
"""Sampling probability, noise multiplier and number of rounds, for each kind of round."""


def epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """Return an epsilon of Gaussian rounds under Poisson sampling, for add-remove or zero-out.

    Claim: let P and Q be the product pair that dominates the rounds, (1-q) N(0) + q N(s) and N(0) in each (Zhu, Dong,
    Wang 2022), r = dP/dQ - 1, and m_k = E_Q[r^k] for an even k. With c_k = (k-1)^(k-1) / k^k, both orders have

        delta(epsilon) <= c_k m_k e^epsilon / (1 - e^-epsilon)^(k-1).

    Proof: x - a <= c_k x^k / a^(k-1) for a > 0 and every real x, with equality at x = k a / (k-1). Removal:
    H_gamma(P || Q) = E_Q[(r - (gamma - 1))_+], and gamma - 1 >= 1 - 1/gamma. Addition: H_gamma(Q || P) =
    E_Q[(1 - gamma (1 + r))_+] = gamma E_Q[(-r - (1 - 1/gamma))_+], and k is even. Rounds are independent under Q, so
    E_Q[(1 + r)^i] is the product over rounds of sum_j C(i,j) (1-q)^(i-j) q^j e^(s^2 j (j-1) / 2), and m_k the sum over
    i of C(k,i) (-1)^(k-i) times these (Mironov, Talwar, Zhang 2019, have the sum).

    Adjacency: the mechanism's, both orders.
    Direction of error: upper bound; sums have hundreds of decimal digits, and their largest rounding error is added.
    Errors: UnsupportedMechanism for other mechanisms, and for variances of the likelihood ratio of at least 1e-3, where
    other accounts are tighter.
    """
    target, rounds = require.open_probability(delta=delta), _kinds_of_rounds(mechanism)
    # The first-order part of the variance of the likelihood ratio.
    variance = sum(count * q * q * math.expm1(min(z**-2, 700.0)) for q, z, count in rounds)
    if not 1e-200 < variance < _LARGEST_VARIANCE:
        raise UnsupportedMechanism("central moments are for tiny sampling probabilities. Use 'best'.")
    digits = _SPARE_DIGITS + math.ceil(-max(_ORDERS) / 2 * math.log10(variance))  # m_k >= m_2^(k/2)
    with decimal.localcontext(prec=digits, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        raw, found = _raw_moments(rounds), math.inf
        for order in _ORDERS:
            log_moment = float(_central_moment(raw, order).ln())  # the moment may be outside the range of floats
            found = min(found, _smallest_epsilon(order, log_moment, math.log(target)))
    return found * (1 + _SURELY)


def _kinds_of_rounds(mechanism: Mechanism) -> _Rounds:
    """Return the kinds of rounds. Errors: UnsupportedMechanism unless all are Poisson-sampled Gaussians."""
    found = []
    for part, count in parts_of(mechanism):
        noise, sampling = gaussian_of(part), sampling_of(part)
        if sampling.name != "poisson" or noise is None or part.adjacency is Adjacency.REPLACE_ONE:
            raise UnsupportedMechanism(
                "central moments are for Gaussian noise under Poisson sampling, add-remove or zero-out. Use 'best'."
            )
        found.append((sampling.probability, noise.noise_multiplier, count))
    return found


def _raw_moments(rounds: _Rounds) -> list[Decimal]:
    """Return the raw moments E_Q[(1 + r)^i] for i from 0 to the largest order."""
    most = max(_ORDERS)
    moments = [Decimal(1)] * (most + 1)
    for q, z, count in rounds:
        chance, square = Decimal(q), 1 / Decimal(z) ** 2
        participation_terms = [chance**j * (square * (j * (j - 1) // 2)).exp() for j in range(most + 1)]
        absence_terms = [(1 - chance) ** j for j in range(most + 1)]
        for i in range(most + 1):
            terms = (math.comb(i, j) * absence_terms[i - j] * participation_terms[j] for j in range(i + 1))
            moments[i] *= sum(terms, Decimal(0)) ** count
    return moments


def _central_moment(raw: Sequence[Decimal], order: int) -> Decimal:
    """Return an upper bound on E_Q[r^order]: the alternating sum, plus a margin far above its rounding error.

    A raw moment of up to 10^15 rounds, each a sum of 33 products, has a relative error below 10^(20 - digits).
    """
    digits = decimal.getcontext().prec
    terms = [math.comb(order, i) * raw[i] for i in range(order + 1)]
    exact = sum(((-1) ** (order - i) * term for i, term in enumerate(terms)), Decimal(0))
    return exact + sum(terms, Decimal(0)).scaleb(40 - digits)


def _smallest_epsilon(order: int, log_moment: float, log_delta: float) -> float:
    """Return the smallest epsilon at which the bound of this order is at most delta; infinite if no searched epsilon
    is.

    The bound decreases up to epsilon = log(order); larger epsilons are not searched.
    """
    share = (order - 1) * math.log(order - 1) - order * math.log(order)

    def excess(log_eps: float) -> float:
        eps = math.exp(log_eps)
        return share + log_moment + eps - (order - 1) * math.log(-math.expm1(-eps)) - log_delta + _SURELY

    low, high = -700.0, math.log(math.log(order))
    if excess(high) > 0:
        return math.inf
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return math.exp(high)
