"""Renyi divergences of one Gaussian round under Poisson and fixed-size sampling, vectorised over settings.

Poisson: with q the sampling probability, s = 1/sigma, u(x) = q (e^(s x - s^2/2) - 1) the relative difference of the two
distributions at x and Z standard normal,

    (alpha - 1) rho(alpha) = log(1 + E g),   g = (1 + u(Z))^alpha - 1 - alpha u(Z) >= 0   (E u = 0).

This is the divergence of (1-q) N(0) + q N(s) from N(0), the larger of the two orders (Mironov, Talwar, Zhang 2019).

Fixed size: with q = cohort / clients, s = 2 / noise_multiplier (one member of the cohort replaced moves the sum by 2C),
Z standard normal and u(x) = e^(s x - s^2/2) - 1 the relative difference of N(s) and N(0) at x, for whole orders k

    (k - 1) rho(k) <= log(1 + sum_(i=2..k) C(k, i) q^i t_i),
    t_i = min(4 sqrt(B_lo B_hi), 2 e^(i (i-1) s^2/2)),   B_l = E u(Z)^l,   lo, hi the even numbers around i

(Wang, Balle, Kasiviswanathan 2019, Theorem 27). The paper computes B_l as a difference of order l of e^(i (i-1) s^2/2),
whose terms cancel. Here B_l is the integral of a positive function, without cancellation.
"""

import math
from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from accounting.arrays import Floats, Ints
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


def poisson_renyi(orders: ArrayLike, *, sampling_probability: ArrayLike, noise_multiplier: ArrayLike) -> Floats:
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
    half, gammaln = 1 / (2 * sigma**2), scipy.special.gammaln
    result = a * np.log(q) + a * (a - 1) * half
    for i in np.flatnonzero(a > 2):
        k = np.arange(2.0, math.ceil(a[i]))
        log_choose = gammaln(a[i] + 1) - gammaln(k + 1) - gammaln(a[i] - k + 1)
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


LARGEST_FIXED_SIZE_ORDER = 256
"""Order above which the curve of a sampled round is set to infinity, because sums have one term per order."""

# The trapezoid rule has relative error e^-_TRAPEZOID_DIGITS, and so have its truncated ends.
_TRAPEZOID_DIGITS = 30.0
_SPACING = math.pi * math.sqrt(2 / (_TRAPEZOID_DIGITS * (1 + math.e)))
# Number of integrands per exponential: each further integrand is the previous one times u^2, which is at most e^40.
_PRODUCTS = 8
_NUMBERS_AT_ONCE = 100_000

_LOG_FACTORIAL = np.array([math.lgamma(n + 1) for n in range(LARGEST_FIXED_SIZE_ORDER + 1)])


def fixed_size_renyi(orders: ArrayLike, *, sampling_probability: ArrayLike, noise_multiplier: ArrayLike) -> Floats:
    """Return an upper bound rho(alpha) on the Renyi divergence of one round, in both orders; the three arguments
    broadcast.

    Claim: if a fraction q of the clients is drawn without replacement, with clip norm C and noise sigma C, the Renyi
    divergence of order alpha > 1 is at most rho. This holds for replace-one neighbours, and for zero-out, where the
    client that takes the place also moves the sum by 2C. q = 0: 0. q = 1: 2 alpha / sigma^2, which is exact. Otherwise
    rho is the formula above at integer orders; between them it is given by chords of (alpha - 1) rho, which is convex
    (their Corollary 10). It is infinite above LARGEST_FIXED_SIZE_ORDER.
    Direction of error: upper bound, 1e-10 (relative) above that formula.
    Errors: InvalidParameter for orders of at most 1, q outside [0, 1], sigma outside [1e-9, 1e9].
    """
    shape, a, q, sigma = flat_settings(orders, sampling_probability, noise_multiplier)
    s = 2 / sigma
    sampled = (q > 0) & (q < 1)
    rho = np.where(q == 0, 0.0, a * s**2 / 2)
    rho[sampled & (a > LARGEST_FIXED_SIZE_ORDER)] = np.inf
    chosen = sampled & (a <= LARGEST_FIXED_SIZE_ORDER)
    rho[chosen] = _interpolated_rho(a[chosen], np.maximum(q[chosen], _LEAST_PROBABILITY), s[chosen])
    return np.asarray(rho.reshape(shape))


def _interpolated_rho(a: Floats, q: Floats, s: Floats) -> Floats:
    low = np.floor(a).astype(int)
    between = a > low
    ends = _cumulants(
        np.concatenate([low, low[between] + 1]), np.concatenate([q, q[between]]), np.concatenate([s, s[between]])
    )
    cumulant = ends[: len(a)]
    cumulant[between] += (a - low)[between] * (ends[len(a) :] - cumulant[between])
    return np.asarray(cumulant / (a - 1) * _ROUNDING)


def _cumulants(k: Ints, q: Floats, s: Floats) -> Floats:
    """Return log(1 + sum_i C(k, i) q^i t_i) of every row; rows of similar order are processed together."""
    result = np.empty(len(k))
    by_order = np.argsort(k, kind="stable")
    for rows in _chunks(by_order, LARGEST_FIXED_SIZE_ORDER):
        largest = max(int(k[rows[-1]]), 2)
        levels, level = np.unique(s[rows], return_inverse=True)
        i, order = np.arange(2, largest + 1), k[rows, None]
        log_choose = _LOG_FACTORIAL[order] - _LOG_FACTORIAL[i] - _LOG_FACTORIAL[np.maximum(order - i, 0)]
        terms = log_choose + i * np.log(q[rows, None]) + _log_t(levels, largest)[level]
        terms[i > order] = -np.inf
        top = np.maximum(terms.max(axis=1), 0.0)
        result[rows] = top + np.log1p(np.exp(terms - top[:, None]).sum(axis=1) + np.expm1(-top))
    return result


def _log_t(s: Floats, largest: int) -> Floats:
    """Return log t_i. Shape: [settings, i = 2..largest]."""
    i = np.arange(2, largest + 1)
    log_b = _log_even_moments(s, largest)
    around = (log_b[:, i // 2] + log_b[:, (i + 1) // 2]) / 2
    return np.minimum(math.log(4) + around, math.log(2) + i * (i - 1) * (s[:, None] ** 2 / 2))


def _log_even_moments(s: Floats, largest: int) -> Floats:
    """Return log B_l, or infinity if the second term of t is smaller. Shape: [settings, l/2 = 0..].

    (1 - w)^l >= 1 - l w for even l, so B_l >= e^(l (l-1) s^2/2) (1 - l e^-(l-1) s^2): l e^-(l-1) s^2 decreases once it
    is at most 1/2, and from there on 4 B_l is at least 2 e^(l (l-1) s^2/2), and 4 sqrt(B_lo B_hi) as well.
    """
    even = np.arange(2, largest + 2, 2)
    small = (even - 1) * s[:, None] ** 2 < np.log(2 * even)
    # One more, because an odd i needs the even numbers on both sides.
    counts = np.minimum(np.where(small.any(axis=1), small.sum(axis=1) + 1, 0), len(even))
    result = np.full((len(s), 1 + len(even)), np.inf)
    for count in np.unique(counts[counts > 0]):
        alike = np.flatnonzero(counts == count)
        nodes = _nodes(even[count - 1], s[alike].max())
        for rows in _chunks(alike, len(nodes) * math.ceil(count / _PRODUCTS)):
            result[rows, 1 : count + 1] = _log_trapezoid(s[rows], even[:count], nodes)
    return result


def _nodes(largest: int, s: float) -> Floats:
    """Return quadrature nodes over the range in which an integrand of an even l up to `largest` is not negligible.

    log |u|^l e^(-x^2/2) + x^2/2 is concave on both sides of s/2; the peaks lie between -sqrt l and l s + sqrt l.
    """
    reach = math.sqrt(largest) + math.sqrt(2 * _TRAPEZOID_DIGITS)
    first, last = math.floor(-reach / _SPACING), math.ceil((largest * s + reach) / _SPACING)
    return np.asarray(_SPACING * np.arange(first, last + 1))


def _log_trapezoid(s: Floats, even: Ints, x: Floats) -> Floats:
    """Return log B_l by the trapezoid rule with spacing h and relative error e^-_TRAPEZOID_DIGITS. Shape: [settings,
    l].

    The integrand f is entire, so the error is at most 2 e^(-2 pi y/h) times the integral of |f(x + iy)|, for every y.
    With A = s Z - s^2/2 and m = l/2, |e^(A + isy) - 1|^2 <= (e^A - 1)^2 + e^A s^2 y^2, and by Minkowski's inequality
        integral <= e^(y^2/2) B_l (1 + s^2 y^2 |e^A|_m / B_l^(1/m))^m,   |e^A|_m = e^((m-1) s^2/2).
    |e^A - 1| >= |A| e^(A/2) gives B_l >= s^l e^(m (m-1) s^2/2) (2m-1)!!, and (2m-1)!! >= (2m/e)^m: so the error is at
    most 2 B_l e^((1+e) y^2/2 - 2 pi y/h), at its least 2 B_l e^(-2 pi^2/(h^2 (1+e))), for all s and l.
    """
    with np.errstate(divide="ignore"):  # u is 0 at s/2
        u = np.expm1(s[:, None] * (x - s[:, None] / 2))
        exponents = even[::_PRODUCTS, None] * np.log(np.abs(u))[:, None, :] - x * x / 2
    top = exponents.max(axis=2, keepdims=True)
    integrand = np.exp(exponents - top)
    sums = []
    for _ in even[:_PRODUCTS]:
        sums.append(integrand.sum(axis=2))
        integrand *= (u * u)[:, None, :]
    logs = np.log(np.stack(sums, axis=2)) + top + math.log(_SPACING / math.sqrt(2 * math.pi))
    return np.asarray(logs.reshape(len(s), -1)[:, : len(even)])


def _chunks(rows: Ints, width: int) -> Iterator[Ints]:
    """Yield chunks of `rows`, each with about _NUMBERS_AT_ONCE numbers if a row has `width` numbers."""
    step = max(1, _NUMBERS_AT_ONCE // int(width))
    return (rows[at : at + step] for at in range(0, len(rows), step))
