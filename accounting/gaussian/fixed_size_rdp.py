"""Renyi divergence of the Gaussian under fixed-size sampling, vectorised over settings.

With q = cohort / clients, s = 2 / noise_multiplier (one member of the cohort replaced moves the sum by 2C), Z standard
normal and u(x) = e^(s x - s^2/2) - 1 the relative difference of N(s) and N(0) at x, for whole orders k

    (k - 1) rho(k) <= log(1 + sum_(i=2..k) C(k, i) q^i t_i),
    t_i = min(4 sqrt(B_lo B_hi), 2 e^(i (i-1) s^2/2)),   B_l = E u(Z)^l,   lo, hi the even numbers around i

(Wang, Balle, Kasiviswanathan 2019, Theorem 27). The paper computes B_l as a difference of order l of e^(i (i-1) s^2/2),
whose terms cancel. Here B_l is the integral of a positive function, without cancellation.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from accounting.arrays import Floats, Ints
from accounting.gaussian.poisson_rdp import flat_settings

LARGEST_ORDER = 256
"""Order above which the curve of a sampled round is set to infinity, because sums have one term per order."""

# The trapezoid rule has relative error e^-_DIGITS, and so have its truncated ends.
_DIGITS = 30.0
_SPACING = math.pi * math.sqrt(2 / (_DIGITS * (1 + math.e)))
# A smaller sampling probability is replaced by this one, because its square would underflow.
_LEAST_PROBABILITY = 1e-100
# Covers all rounding errors, which are about 1e-12 (tests).
_ROUNDING = 1 + 1e-10
# Number of integrands per exponential: each further integrand is the previous one times u^2, which is at most e^40.
_PRODUCTS = 8
_NUMBERS_AT_ONCE = 100_000

_LOG_FACTORIAL = np.array([math.lgamma(n + 1) for n in range(LARGEST_ORDER + 1)])


def renyi(orders: ArrayLike, *, sampling_probability: ArrayLike, noise_multiplier: ArrayLike) -> Floats:
    """Return an upper bound rho(alpha) on the Renyi divergence of one round, in both orders; the three arguments
    broadcast.

    Claim: if a fraction q of the clients is drawn without replacement, with clip norm C and noise sigma C, the Renyi
    divergence of order alpha > 1 is at most rho. This holds for replace-one neighbours, and for zero-out, where the
    client that takes the place also moves the sum by 2C. q = 0: 0. q = 1: 2 alpha / sigma^2, which is exact. Otherwise
    rho is the formula above at integer orders; between them it is given by chords of (alpha - 1) rho, which is convex
    (their Corollary 10). It is infinite above LARGEST_ORDER.
    Direction of error: upper bound, 1e-10 (relative) above that formula.
    Errors: InvalidParameter for orders of at most 1, q outside [0, 1], sigma outside [1e-9, 1e9].
    """
    shape, a, q, sigma = flat_settings(orders, sampling_probability, noise_multiplier)
    s = 2 / sigma
    sampled = (q > 0) & (q < 1)
    rho = np.where(q == 0, 0.0, a * s**2 / 2)
    rho[sampled & (a > LARGEST_ORDER)] = np.inf
    chosen = sampled & (a <= LARGEST_ORDER)
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
    for rows in _chunks(by_order, LARGEST_ORDER):
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
    reach = math.sqrt(largest) + math.sqrt(2 * _DIGITS)
    first, last = math.floor(-reach / _SPACING), math.ceil((largest * s + reach) / _SPACING)
    return np.asarray(_SPACING * np.arange(first, last + 1))


def _log_trapezoid(s: Floats, even: Ints, x: Floats) -> Floats:
    """Return log B_l by the trapezoid rule with spacing h and relative error e^-_DIGITS. Shape: [settings, l].

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
