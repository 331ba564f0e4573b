"""Renyi divergence of two Bernoulli distributions, also accurate for nearly equal probabilities."""

import math

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.errors import InvalidParameter


def floor_of(c: float) -> float:
    """Return c as a float. Errors: InvalidParameter unless c, the floor of the probabilities, is in (0, 1/2).

    >>> floor_of(0.1)
    0.1
    """
    value = require.real("a number in (0, 1/2)", c=c)
    if not 0 < value < 0.5:
        raise InvalidParameter(f"c={c!r}: must be in (0, 1/2), the floor of the probabilities.")
    return value


def divergence(order: ArrayLike, p: ArrayLike, q: ArrayLike) -> Floats:
    """Return the Renyi divergence of Bernoulli(p) from Bernoulli(q), elementwise.

    Source: Rényi 1961, 1/(alpha-1) log(p^alpha q^(1-alpha) + (1-p)^alpha (1-q)^(1-alpha)); alpha = 1: Kullback-Leibler;
    infinity: the largest log ratio. It is infinite if P has mass where Q has none.
    Shapes: the arguments broadcast; a scalar gives a scalar.
    Direction of error: either, by about 1e-14 relative. This includes p near q, because no first-order terms are
    computed that would cancel.
    Errors: InvalidParameter for an order below 1, or p or q outside [0, 1].

    >>> from accounting.bernoulli import divergence
    >>> round(float(divergence(2.0, 0.5, 0.25)), 4)
    0.2877
    """
    alpha, first, second = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (order, p, q)))
    if np.any(~(alpha >= 1)):
        raise InvalidParameter(f"order={order!r}: must be at least 1.")
    for name, values in (("p", first), ("q", second)):
        if np.any(~((values >= 0) & (values <= 1))):
            raise InvalidParameter(f"{name}: must be probabilities in [0, 1].")
    heads, tails = _Outcome(first, second, first - second), _Outcome(1 - first, 1 - second, second - first)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        leibler_term = heads.leibler_term() + tails.leibler_term()
        result = np.where(alpha == 1, leibler_term, _renyi(alpha, heads, tails, leibler_term))
        result = np.where(np.isinf(alpha), np.maximum(heads.log_ratio, tails.log_ratio), result)
    return np.asarray(np.where(first == second, 0.0, result))[()]


class _Outcome:
    """One of the two outcomes: its probabilities under P and Q, and log(P/Q), which is -infinity if P is 0."""

    def __init__(self, p: Floats, q: Floats, difference: Floats) -> None:
        self.p, self.q, self.difference = p, q, difference
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            self.excess = difference / q
            is_far = np.isinf(self.excess) | (self.excess < -0.9)
            log_ratio = np.where(is_far, np.log(p) - np.log(q), np.log1p(self.excess))
        self.log_ratio = np.where(p > 0, log_ratio, -np.inf)

    def leibler_term(self) -> Floats:
        """Return P log(P/Q) - (P - Q), by a series near P = Q. It is not negative and sums to the Kullback-Leibler
        divergence.
        """
        x = self.excess
        direct = np.where(self.p > 0, self.p * self.log_ratio, 0.0) - self.difference
        return np.asarray(np.where(np.abs(x) < 0.05, self.difference * x * np.polyval(_LEIBLER, x), direct))

    def exponential_remainder(self, beta: Floats) -> Floats:
        """Return P (e^z - 1 - z) >= 0 with z = beta log(P/Q), by a series near z = 0."""
        z = np.where(self.p > 0, beta * self.log_ratio, 0.0)
        return self.p * np.where(np.abs(z) < 0.2, z * z * np.polyval(_EXPONENTIAL, z), np.expm1(z) - z)


_LEIBLER = [(-1) ** k / (k * (k - 1)) for k in range(13, 1, -1)]  # ((1+x) log(1+x) - x) / x^2
_EXPONENTIAL = [1 / math.factorial(k) for k in range(13, 1, -1)]  # (e^z - 1 - z) / z^2


def _renyi(alpha: Floats, heads: _Outcome, tails: _Outcome, leibler_term: Floats) -> Floats:
    """Return the divergence from sum P e^z - 1 = sum P (e^z - 1 - z) + beta KL, z = beta log(P/Q), beta = alpha - 1.

    For large z the sum is computed in logarithms.
    """
    beta = alpha - 1
    small = np.log1p(heads.exponential_remainder(beta) + tails.exponential_remainder(beta) + beta * leibler_term)
    up, down = beta * heads.log_ratio, beta * tails.log_ratio
    large = np.logaddexp(np.log(heads.p) + up, np.log(tails.p) + down)
    return np.asarray(np.where(np.maximum(up, down) < 30, small, large) / beta)


def worst_divergence(order: ArrayLike, *, c: float) -> Floats:
    """Return r_alpha(c, 1-c), the largest divergence of two Bernoulli distributions with probabilities in [c, 1-c].

    Source: docs/theory-bernoulli.md (r increases with the distance of p and q).
    Shapes: as `order`; a scalar gives a scalar.
    Direction of error: either, by about 1e-14 relative.
    Errors: InvalidParameter for c outside (0, 1/2) or an order below 1.

    >>> from accounting.bernoulli import worst_divergence
    >>> round(float(worst_divergence(2.0, c=0.25)), 4)
    0.8473
    """
    floor = floor_of(c)
    return divergence(order, floor, 1 - floor)
