"""Renyi divergence of the Poisson-sampled Gaussian, vectorised over settings.

With q the sampling probability, s = 1/sigma, u(x) = q (e^(s x - s^2/2) - 1) the relative difference of the two
distributions at x and Z standard normal,

    (alpha - 1) rho(alpha) = log(1 + E g),   g = (1 + u(Z))^alpha - 1 - alpha u(Z) >= 0   (E u = 0).

This is the divergence of (1-q) N(0) + q N(s) from N(0), the larger of the two orders (Mironov, Talwar, Zhang 2019).
"""

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from accounting.arrays import Floats
from accounting.errors import InvalidParameter

# The trapezoid rule has error e^-_DIGITS, and so have its truncated ends.
_DIGITS = 36.0
# Below this noise the trapezoid rule would need too many nodes, and the sum of the leading terms is as accurate.
_LEAST_NOISE = 0.02
# A smaller sampling probability is replaced by this one, because its square would underflow.
_LEAST_PROBABILITY = 1e-100
# Covers all rounding errors, which are about 1e-12 (tests).
_ROUNDING = 1 + 1e-10
_NODES_AT_ONCE = 6_000


def renyi(orders: ArrayLike, *, sampling_probability: ArrayLike, noise_multiplier: ArrayLike) -> Floats:
    """Return the Renyi divergence rho(alpha) of one round, the larger of both orders; the three arguments broadcast.

    Claim: for add-remove and zero-out neighbours, clip norm C, noise sigma C, the Renyi divergence of order alpha > 1
    between the sums of a Poisson-sampled round is at most rho, and one pair attains rho. q = 0: 0. q = 1: alpha / 2
    sigma^2. Otherwise rho follows from E g by the trapezoid rule. |1 + u(x + iy)| <= 1 + u(x) for |y| <= pi sigma,
    where the integrand is analytic, so with spacing h the relative error for (1 + u)^alpha is at most 2 e^(y^2/2 - 2 pi
    y / h) for every such y, here e^-36, for all alpha. Subtracting 1 + alpha u at each node keeps the error relative
    for tiny rho. For noise below 0.02, where the strip is thin, E g is bounded by the leading terms of the binomial
    series and its remainder, (1 + t)^alpha <= sum_(k < alpha) C(alpha, k) t^k + t^alpha for t >= 0, whose moments have
    closed forms. That is exact at integer orders, and otherwise an upper bound (by 1e-5 at alpha = 1.01 and noise 0.02;
    the excess decreases fast in alpha and with less noise).
    Direction of error: upper bound, 1e-10 (relative) above the exact value.
    """
    shape, a, q, sigma = flat_settings(orders, sampling_probability, noise_multiplier)
    return np.asarray(_rho(a, q, sigma).reshape(shape))


def _rho(a: Floats, q: Floats, sigma: Floats) -> Floats:
    rho = np.where(q == 0, 0.0, a / (2 * sigma**2))
    inside = (q > 0) & (q < 1)
    for chosen, log_excess in (
        (inside & (sigma >= _LEAST_NOISE), _log_excess),
        (inside & (sigma < _LEAST_NOISE), _log_leading_terms),
    ):
        if chosen.any():
            at = a[chosen]
            excess = log_excess(at, np.maximum(q[chosen], _LEAST_PROBABILITY), sigma[chosen])
            rho[chosen] = np.logaddexp(0.0, excess) / (at - 1) * _ROUNDING
    return rho


def _log_excess(a: Floats, q: Floats, sigma: Floats) -> Floats:
    """Return log E g by the trapezoid rule, on one or two intervals of nodes: around 0 and around alpha s."""
    y = np.minimum(math.pi * sigma, math.sqrt(2 * _DIGITS))  # for larger y the spacing would decrease again
    spacing = 2 * math.pi * y / (_DIGITS + y * y / 2)
    # Since 1 + u <= 2 max(1 - q, q e^..), the part beyond `reach` around 0 and alpha s is e^-_DIGITS of the integral.
    # For tiny q, g is about u^2, with its peak at 2 s.
    reach, near, far = np.sqrt(2 * (_DIGITS + a * math.log(2))), 2 / sigma, a / sigma
    apart = far - near > 2 * reach + 4 * spacing
    first = np.where(apart, near, np.maximum(near, far)) + 2 * reach
    begin = -reach
    second = begin[apart] + spacing[apart] * np.floor(far[apart] / spacing[apart])
    row = np.concatenate([np.arange(len(a)), np.flatnonzero(apart)])
    nodes = np.ceil(np.concatenate([first, 2 * reach[apart]]) / spacing[row]).astype(int) + 2
    logs = _log_sums_in_chunks(a[row], q[row], 1 / sigma[row], np.concatenate([begin, second]), spacing[row], nodes)
    total = logs[: len(a)]
    total[apart] = np.logaddexp(total[apart], logs[len(a) :])
    return np.asarray(total + np.log(spacing / math.sqrt(2 * math.pi)))


def _log_sums_in_chunks(
    a: Floats, q: Floats, s: Floats, begin: Floats, spacing: Floats, nodes: NDArray[np.int64]
) -> Floats:
    """Return `_log_sum` of every row; rows with similar numbers of nodes are processed together."""
    result = np.empty(len(a))
    by_nodes = np.argsort(nodes, kind="stable")
    at = 0
    while at < len(a):
        most = max(1, _NODES_AT_ONCE // int(nodes[by_nodes[at]]))
        rows = by_nodes[at : at + most]
        rows = rows[nodes[rows] <= 1.25 * nodes[rows[0]] + 8]
        node = np.arange(nodes[rows[-1]])
        x = begin[rows, None] + spacing[rows, None] * node
        counts = node < nodes[rows, None]
        result[rows] = _log_sum(a[rows, None], q[rows, None], s[rows, None], x, counts)
        at += len(rows)
    return result


def _log_sum(a: Floats, q: Floats, s: Floats, x: Floats, counts: NDArray[np.bool_]) -> Floats:
    """Return the logarithm of the sum of g e^(-x^2/2) over the nodes x that `counts` selects."""
    y = s * x - s * s / 2
    u = q * np.expm1(np.minimum(y, 600.0))
    log_ratio = np.log1p(u)
    far = y > 600.0
    if far.any():
        u, log_ratio = np.where(far, np.inf, u), np.where(far, np.logaddexp(np.log1p(-q), np.log(q) + y), log_ratio)
    power = a * log_ratio
    size = np.where(counts, np.maximum(power, 0.0) - x * x / 2, -np.inf)
    top = size.max(axis=1, keepdims=True)
    falling = np.expm1(-np.abs(power))
    with np.errstate(over="ignore", invalid="ignore"):
        # power > 0:  g e^-power = 1 + (a - 1) e^-power - a e^(-power (a-1)/a)
        above = (a - 1) * falling - a * np.expm1(np.minimum(log_ratio * (1 - a), 0.0))
        g = np.where(power > 0, above, falling - a * u)
    small = np.abs(u) * a < 0.03
    if small.any():
        scale = np.where(power > 0, 1 + falling, 1.0)
        g = np.where(small, _near_zero(a, np.where(small, u, 0.0)) * scale, g)
    return np.asarray(np.log(np.sum(np.maximum(g, 0.0) * np.exp(size - top), axis=1)) + top[:, 0])


def _near_zero(a: Floats, u: Floats) -> Floats:
    """Return g for alpha |u| < 0.03, by the binomial series from k = 2 on, with relative error 1e-12."""
    tail: Floats | float = 1.0
    for k in (7, 6, 5, 4, 3):
        tail = 1 + (a - k + 1) / k * u * tail
    return np.asarray(a * (a - 1) / 2 * u * u * tail)


def _log_leading_terms(a: Floats, q: Floats, sigma: Floats) -> Floats:
    """Return log( sum_k C(alpha, k) (1-q)^(alpha-k) q^k e^(k(k-1)/2 sigma^2) + q^alpha e^(alpha(alpha-1)/2 sigma^2) ).

    k runs over the integers from 2 to below alpha. The terms k = 0 and k = 1 sum to less than 1.
    """
    half = 1 / (2 * sigma**2)
    result = a * np.log(q) + a * (a - 1) * half
    for i in np.flatnonzero(a > 2):
        k = np.arange(2.0, math.ceil(a[i]))
        log_choose = (
            scipy.special.gammaln(a[i] + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(a[i] - k + 1)
        )
        terms = log_choose + (a[i] - k) * np.log1p(-q[i]) + k * np.log(q[i]) + k * (k - 1) * half[i]
        result[i] = scipy.special.logsumexp(np.append(terms, result[i]))
    return np.asarray(result)


def flat_settings(
    orders: ArrayLike, sampling_probability: ArrayLike, noise_multiplier: ArrayLike
) -> tuple[tuple[int, ...], Floats, Floats, Floats]:
    """Return the broadcast shape of the three arguments, and each argument broadcast and flattened.

    Errors: InvalidParameter unless orders are finite and above 1, probabilities in [0, 1], noise from 1e-9 to 1e9.
    """
    try:
        a, q, sigma = (np.asarray(value, dtype=float) for value in (orders, sampling_probability, noise_multiplier))
        shape = np.broadcast_shapes(a.shape, q.shape, sigma.shape)
    except (TypeError, ValueError):
        raise InvalidParameter(
            "orders, sampling_probability, noise_multiplier: must be numbers, or arrays whose shapes broadcast."
        ) from None
    for name, given, fits, allowed in (
        ("orders", a, (a > 1) & (a < np.inf), "finite numbers above 1"),
        ("sampling_probability", q, (q >= 0) & (q <= 1), "probabilities in [0, 1]"),
        ("noise_multiplier", sigma, (sigma >= 1e-9) & (sigma <= 1e9), "numbers from 1e-09 to 1e+09"),
    ):
        if not np.all(fits):
            raise InvalidParameter(f"{name}={given[~fits].flat[0]}: must be {allowed}.")
    a, q, sigma = (np.broadcast_to(part, shape).ravel() for part in (a, q, sigma))
    return shape, a, q, sigma
