"""Epsilon of many Poisson-sampled Gaussian rounds in which hardly any client takes part, by central moments.

Where a round's sampling probability q is tiny, the likelihood ratio of all rounds stays near 1: its deviation is far
below any grid of a privacy loss distribution, and Renyi orders that see it do not exist. Its central moments are exact
sums of a few terms.
"""

import decimal
import math
from collections.abc import Sequence
from decimal import Decimal

from accounting import require
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import Mechanism, PoissonSampling, gaussian_of, parts_of, sampling_of, schedule_of
from accounting.mechanisms.adjacency import Adjacency

_ORDERS = (2, 4, 6, 8, 12, 16, 24, 32)
_SPARE_DIGITS = 120
"""Decimal digits beyond those that cancel."""
_LARGEST_VARIANCE = 1e-3
"""Variance of the likelihood ratio above which privacy loss distributions are better."""
_SURELY = 1e-12

_Rounds = Sequence[tuple[float, float, int]]
"""Sampling probability, noise multiplier and number of the rounds of each kind."""


def epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """Return an epsilon of Gaussian rounds under Poisson sampling, add-remove or zero-out.

    Claim: let P and Q be the product pair that dominates the rounds, (1-q) N(0) + q N(s) and N(0) in each (Zhu, Dong,
    Wang 2022), r = dP/dQ - 1, and m_k = E_Q[r^k] for an even k. With c_k = (k-1)^(k-1) / k^k, both orders have

        delta(epsilon) <= c_k m_k e^epsilon / (1 - e^-epsilon)^(k-1).

    Proof: x - a <= c_k x^k / a^(k-1) for a > 0 and every real x, with equality at x = k a / (k-1). Removal:
    H_gamma(P || Q) = E_Q[(r - (gamma - 1))_+], and gamma - 1 >= 1 - 1/gamma. Addition: H_gamma(Q || P) =
    E_Q[(1 - gamma (1 + r))_+] = gamma E_Q[(-r - (1 - 1/gamma))_+], and k is even. Rounds are independent under Q, so
    E_Q[(1 + r)^i] is the product over rounds of sum_j C(i,j) (1-q)^(i-j) q^j e^(s^2 j (j-1) / 2), and m_k the sum over
    i of C(k,i) (-1)^(k-i) times these (Mironov, Talwar, Zhang 2019, have the sum).

    Adjacency: the mechanism's own, both orders. Direction of error: upper bound; sums are of hundreds of decimal
    digits, and what these may lose is added. Errors: UnsupportedMechanism for other mechanisms, or where clients take
    part so often that other accounts are better.
    """
    target, rounds = require.open_probability(delta=delta), _rounds(mechanism)
    variance = _variance(rounds)
    if not 1e-200 < variance < _LARGEST_VARIANCE:
        raise UnsupportedMechanism("central moments are for rounds in which hardly any client takes part. Use 'best'.")
    digits = _SPARE_DIGITS + math.ceil(-max(_ORDERS) / 2 * math.log10(variance))  # m_k >= m_2^(k/2)
    with decimal.localcontext(prec=digits, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        raw, found = _raw_moments(rounds), math.inf
        for order in _ORDERS:
            found = min(found, _solved(order, _log(_central(raw, order)), math.log(target)))
    return found * (1 + _SURELY)


def _rounds(mechanism: Mechanism) -> _Rounds:
    """Return the rounds of each kind. Raise UnsupportedMechanism unless all are Poisson-sampled Gaussians."""
    found = []
    for part, count in parts_of(mechanism):
        noise, sampling = gaussian_of(part), sampling_of(part)
        known = noise is not None and isinstance(sampling, PoissonSampling) and schedule_of(part) is None
        if not known or noise is None or part.adjacency is Adjacency.REPLACE_ONE:
            raise UnsupportedMechanism(
                "central moments are for Gaussian noise under Poisson sampling, add-remove or zero-out. Use 'best'."
            )
        found.append((sampling.probability, noise.noise_multiplier, count))
    return found


def _variance(rounds: _Rounds) -> float:
    """Return nearly the variance of the likelihood ratio, its first-order part."""
    return sum(count * q * q * math.expm1(min(z**-2, 700.0)) for q, z, count in rounds)


def _raw_moments(rounds: _Rounds) -> list[Decimal]:
    """Return E_Q[(1 + r)^i] for i = 0, 1, ..., the largest order."""
    most = max(_ORDERS)
    moments = [Decimal(1)] * (most + 1)
    for q, z, count in rounds:
        chance, square = Decimal(q), 1 / Decimal(z) ** 2
        taking = [chance**j * (square * (j * (j - 1) // 2)).exp() for j in range(most + 1)]
        absent = [(1 - chance) ** j for j in range(most + 1)]
        for i in range(most + 1):
            terms = (math.comb(i, j) * absent[i - j] * taking[j] for j in range(i + 1))
            moments[i] *= sum(terms, Decimal(0)) ** count
    return moments


def _central(raw: Sequence[Decimal], order: int) -> Decimal:
    """Return an upper bound of E_Q[r^order]: the alternating sum, and far more than its rounding may lose.

    A raw moment of up to 10^15 rounds, each a sum of 33 products, has a relative error below 10^(20 - digits).
    """
    digits = decimal.getcontext().prec
    terms = [math.comb(order, i) * raw[i] for i in range(order + 1)]
    exact = sum(((-1) ** (order - i) * term for i, term in enumerate(terms)), Decimal(0))
    return exact + sum(terms, Decimal(0)).scaleb(40 - digits)


def _log(value: Decimal) -> float:
    """Return the natural logarithm of a positive number, which may be beyond floats."""
    return float(value.ln())


def _solved(order: int, log_moment: float, log_delta: float) -> float:
    """Return the least epsilon at which the bound of this order is at most delta; infinite if there is none.

    The bound falls up to epsilon = log(order); larger ones are not searched.
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
