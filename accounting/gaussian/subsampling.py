"""Amplification by subsampling for ANY mechanism with a known Renyi curve, at integer orders.

The Gaussian mechanism has tighter bounds (`compose.rdp`, `gaussian.sampled_profiles`). All sums are computed in
logarithms.
"""

from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from accounting import require
from accounting.arrays import Floats
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import Sampling
from accounting.mechanisms.adjacency import Adjacency

LARGEST_ORDER = 100_000
"""Largest order. Sums run over all orders up to it, which limits memory and time."""

RenyiCurve = Callable[[Floats], Floats]


def integer_orders(orders: ArrayLike) -> NDArray[np.int64]:
    """Return `orders` as integers of at least 2. Errors: InvalidParameter for other orders, at which these bounds do
    not hold.
    """
    try:
        given = np.atleast_1d(np.asarray(orders, dtype=float))
        valid = given.ndim == 1 and given.size > 0 and bool(np.all((given >= 2) & (given <= LARGEST_ORDER)))
    except (TypeError, ValueError):
        valid = False
    if not valid or np.any(given != np.floor(given)):
        raise InvalidParameter(f"orders={orders!r}: must be integers from 2 to {LARGEST_ORDER} for this bound.")
    return given.astype(np.int64)


def _base_values(curve: RenyiCurve, largest: int) -> Floats:
    """Return the values of a curve at orders 0..largest, set to 0 at the orders 0 and 1."""
    orders = np.arange(2.0, largest + 1)
    values = np.asarray(curve(orders), dtype=float)
    if values.shape != orders.shape or not np.all(values >= 0):
        raise InvalidParameter(
            f"curve returned shape {values.shape} for {orders.shape} orders: must return a divergence of at least 0 "
            "for each order."
        )
    return np.concatenate([[0.0, 0.0], values])


def _log_binomial(n: int, k: Floats) -> Floats:
    return np.asarray(scipy.special.gammaln(n + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(n - k + 1))


def poisson(orders: ArrayLike, curve: RenyiCurve, *, sampling_probability: float) -> Floats:
    """Return the Renyi curve of a mechanism on a Poisson-sampled cohort.

    Claim: with q the sampling probability and rho(k) a bound on the divergence of order k in BOTH directions,
        rho'(a) = 1/(a-1) log( (1-q)^(a-1) (1 + (a-1) q) + sum_{k=2..a} C(a,k) (1-q)^(a-k) q^k e^((k-1) rho(k)) )
    (Zhu, Wang 2019, Thm 6; Steinke 2022, Thm 11). `curve` maps an array of orders to such bounds.
    Adjacency: add-remove or zero-out. Orders: integers >= 2.
    Direction of error: upper bound. With a curve for only one direction the formula is NOT a bound.

    >>> from accounting import subsampling
    >>> subsampling.poisson([2, 3], lambda orders: orders / 2, sampling_probability=0.01).round(6).tolist()
    [0.000172, 0.000265]
    """

    def amplified_at(order: int, q: float, base: Floats) -> float:
        k = np.arange(2.0, order + 1)
        terms = _log_binomial(order, k) + (order - k) * np.log1p(-q) + k * np.log(q) + (k - 1) * base[2 : order + 1]
        first = (order - 1) * np.log1p(-q) + np.log1p((order - 1) * q)
        return float(max(scipy.special.logsumexp(np.append(terms, first)), 0.0) / (order - 1))

    return _amplified(orders, curve, sampling_probability, amplified_at)


def _amplified(
    orders: ArrayLike, curve: RenyiCurve, probability: float, amplified_at: Callable[[int, float, Floats], float]
) -> Floats:
    """Return the amplified curve: 0 for a probability of 0, the base curve for 1."""
    q = require.probability(sampling_probability=probability)
    whole = integer_orders(orders)
    if q == 0:
        return np.zeros(len(whole))
    base = _base_values(curve, int(whole.max()))
    return np.asarray(base[whole]) if q == 1 else np.array([amplified_at(int(order), q, base) for order in whole])


def fixed_size(orders: ArrayLike, curve: RenyiCurve, *, sampling_probability: float) -> Floats:
    """Return the Renyi curve of a mechanism on a fixed-size cohort drawn without replacement.

    Claim: with q = cohort / clients and rho a Renyi curve under replace-one,
        rho'(a) = 1/(a-1) log( 1 + q^2 C(a,2) min{4 (e^rho(2) - 1), 2 e^rho(2)}
                                 + sum_{j=3..a} q^j C(a,j) 2 e^((j-1) rho(j)) )
    (Wang, Balle, Kasiviswanathan 2019, Thm 9 without its unbounded-order refinement; Lemma 3 of the Fed-SMP
    paper). The base curve must be that of replacing one member of the cohort by another: 2C for clipped sums.
    Adjacency: replace-one (so zero-out too). Orders: integers >= 2.
    Direction of error: upper bound.

    >>> from accounting import subsampling
    >>> subsampling.fixed_size([2, 3], lambda orders: orders / 2, sampling_probability=0.01).round(6).tolist()
    [0.000544, 0.000835]
    """

    def log_pair_term(order: int, q: float, rho: float) -> float:
        if rho == 0:
            return -np.inf
        log_expm1 = rho + np.log(-np.expm1(-rho))
        smaller = min(np.log(4) + log_expm1, np.log(2) + rho)
        return float(2 * np.log(q) + _log_binomial(order, np.array(2.0)) + smaller)

    def amplified_at(order: int, q: float, base: Floats) -> float:
        j = np.arange(3.0, order + 1)
        terms = j * np.log(q) + _log_binomial(order, j) + np.log(2) + (j - 1) * base[3 : order + 1]
        all_terms = np.concatenate([[0.0, log_pair_term(order, q, float(base[2]))], terms])
        amplified_value = float(scipy.special.logsumexp(all_terms) / (order - 1))
        return min(amplified_value, float(base[order]))  # sampling never increases the divergence (quasi-convexity)

    return _amplified(orders, curve, sampling_probability, amplified_at)


def amplified_curve(
    orders: Floats, curve: RenyiCurve, adjacency: Adjacency, sampling: Sampling, *, largest: float
) -> Floats:
    """Return the amplified curve for a sampling at integer orders from 2 to `largest`; infinity at other orders.

    `curve`: Renyi curve of the unsampled release under `sampling.base_adjacency`.
    Direction of error: upper bound.
    Errors: UnsupportedMechanism for replace-one under Poisson sampling.
    """
    inside = (orders == np.round(orders)) & (orders >= 2) & (orders <= largest)
    result = np.full(len(orders), np.inf)
    refuse_replacement_under_poisson(adjacency, sampling, "Use")
    amplify = fixed_size if sampling.fixed_size else poisson
    if inside.any():
        result[inside] = amplify(orders[inside], curve, sampling_probability=sampling.probability)
    return result


def refuse_replacement_under_poisson(adjacency: Adjacency, sampling: Sampling, remedy: str) -> None:
    """Raise UnsupportedMechanism for replace-one under Poisson sampling, for which no Renyi bound is implemented.
    remedy: start of the advice.
    """
    if adjacency is Adjacency.REPLACE_ONE and not sampling.fixed_size:
        raise UnsupportedMechanism(
            "accountant='rdp' with Poisson sampling and replace-one: no Renyi bound is implemented. "
            f"{remedy} adjacency 'add-remove' or 'zero-out'."
        )
