"""Profile of three Gaussians in a corner: the bound on every configuration of a fixed-size round.

In units of the noise a fixed-size round has P = (1-q) N(x0) + q N(a) against Q = (1-q) N(x0) + q N(b) (docs/theory.md,
(F)). With A = |x0 - a|, D = |b - a| and alpha the angle at a,

    corner(gamma; A, D, alpha) = q sup over S of  N(a)(S) - w N(x0)(S) - gamma N(b)(S),    w = (1-q)(gamma-1)/q,

is H_gamma(P || Q) for gamma >= 1. It rises with A, with D if alpha <= pi/2, and falls in alpha (Lemma 5 there).
"""

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting.arrays import Floats
from accounting.gaussian.half_lines import log_complement, log_expm1

_ROUNDING, _TAIL = 1e-9, 1e-16
"""Margins of every value: for quadrature (relative) and its cut ends (absolute)."""

_WIDEST = 0.97 * math.pi
"""Largest angle: a wider one counts as this one, an upper bound; the lines cross ever more steeply there."""
_FAR = 60.0
_END = 8.5
_NEWTON = 5
_WIDE = 0.5
"""Step of the quadrature for a Gaussian alone, whose error is exp(-2 pi^2 / step^2)."""


def upper(epsilon: ArrayLike, *, sampling_probability: float, near: float, far: float, angle: float) -> Floats:
    """Return corner(e^epsilon; near, far, angle) for epsilon >= 0, from above.

    near, far: A and D in units of the noise's standard deviation; angle: alpha, in [0, pi]. Shape: that of `epsilon`.
    Direction of error: upper bound, by 1e-9 relative and 1e-16; beyond 0.97 pi the value at that angle.
    """
    exact = corner(epsilon, sampling_probability=sampling_probability, near=near, far=far, angle=min(angle, _WIDEST))
    return np.asarray(np.minimum(exact * (1 + _ROUNDING) + _TAIL, 1.0))


def lower(epsilon: ArrayLike, *, sampling_probability: float, near: float, far: float, angle: float) -> Floats:
    """Return corner(e^epsilon; near, far, angle) from below, for a round with this corner. angle: at most 0.97 pi."""
    exact = corner(epsilon, sampling_probability=sampling_probability, near=near, far=far, angle=angle)
    return np.asarray(np.maximum(exact * (1 - _ROUNDING) - _TAIL, 0.0))


def corner(epsilon: ArrayLike, *, sampling_probability: float, near: float, far: float, angle: float) -> Floats:
    """Return corner(e^epsilon; near, far, angle), by quadrature.

    In the plane, the x-axis against the bisector at a: on each line of constant y both likelihood ratios fall with x,
    so the best S is a half-line x > t(y), and the masses on it are those of one dimension. The integrand is analytic in
    |Im y| < pi / (2 max(A, D) sin(alpha/2)), so the trapezoidal rule converges like exp(-2 pi Im y / step). Error:
    1e-11 relative for noise multipliers from 0.2 (tests), and the mass beyond |y| = 8.5, 2e-17.
    """
    eps, q = np.asarray(epsilon, dtype=float).reshape(-1, 1), sampling_probability
    if far <= 0:
        return np.zeros(np.shape(epsilon))
    half = angle / 2
    y = np.arange(-_END, _END + 1e-9, _step(near, far, half))[None]
    down = near * math.cos(half), far * math.cos(half)
    log_other = log_complement(q) - math.log(q) + log_expm1(eps) + near * math.sin(half) * y - near**2 / 2
    log_far = eps - far * math.sin(half) * y - far**2 / 2
    t = _crossing(log_other, log_far, *down)
    gain = scipy.special.ndtr(-t)
    for log_weight, distance in zip((log_other, log_far), down, strict=True):
        gain -= np.exp(np.minimum(log_weight + distance**2 / 2, 700.0)) * scipy.special.ndtr(-distance - t)
    gain = np.where(t < _FAR, np.maximum(gain, 0.0), 0.0) * np.exp(-y * y / 2)
    values = q * gain.sum(axis=1) * (y[0, 1] - y[0, 0]) / math.sqrt(2 * math.pi)
    return np.asarray(values.reshape(np.shape(epsilon)))


def in_a_row(epsilon: ArrayLike, *, sampling_probability: float, near: float, far: float) -> Floats:
    """Return corner(e^epsilon; near, far, 0): x0 and b on one ray from a, where a half-line is best. Exact to
    rounding.
    """
    eps, q = np.asarray(epsilon, dtype=float), sampling_probability
    if far <= 0:
        return np.zeros(eps.shape)
    log_other = log_complement(q) - math.log(q) + log_expm1(eps) - near**2 / 2
    t = _crossing(log_other, eps - far**2 / 2, near, far)
    inside = scipy.special.log_ndtr(-t)
    taken = np.exp(log_other + near**2 / 2 + scipy.special.log_ndtr(-near - t) - inside)
    taken = taken + np.exp(eps + scipy.special.log_ndtr(-far - t) - inside)
    return np.asarray(q * np.exp(inside) * np.where(t < _FAR, np.maximum(1 - taken, 0.0), 0.0))


def opposite(epsilon: ArrayLike, *, sampling_probability: float, distance: float) -> Floats:
    """Return corner(e^epsilon; distance, distance, pi): x0 and b on opposite sides of a, where an interval is best.

    On it w e^(-s x - s^2/2) + gamma e^(s x - s^2/2) < 1, so its ends are the roots of a quadratic in e^(s x). Exact to
    rounding.
    """
    eps, q, s = np.asarray(epsilon, dtype=float), sampling_probability, distance
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        log_other = log_complement(q) - math.log(q) + log_expm1(eps)
        room = -np.expm1(np.minimum(math.log(4) + eps + log_other - s * s, 0.0))
        high = s * s / 2 - math.log(2) - eps + np.log1p(np.sqrt(room))
        low = log_other - eps - high  # the product of the roots is w / gamma
        left, right = low / s, high / s
        inside = _mass(left, right)
        taken = np.exp(log_other) * _mass(left + s, right + s) + np.exp(eps) * _mass(left - s, right - s)
    return np.asarray(q * np.where(room > 0, np.maximum(inside - taken, 0.0), 0.0))


def _mass(left: Floats, right: Floats) -> Floats:
    """Return Phi(right) - Phi(left), in the tail in which it does not cancel."""
    upper = left > 0
    one, two = np.where(upper, -right, left), np.where(upper, -left, right)
    return np.asarray(scipy.special.ndtr(two) - scipy.special.ndtr(one))


def _step(near: float, far: float, half: float) -> float:
    """Return a step narrow against the strip of analyticity and against the gap between two far Gaussians."""
    sine = math.sin(half)
    if sine == 0:
        return _WIDE
    return min(_WIDE, 0.5 / math.tan(half), 0.25 / (max(near, far) * sine))


def _crossing(log_other: Floats, log_far: Floats, slope: float, far_slope: float) -> Floats:
    """Return t with e^(log_other - slope t) + e^(log_far - far_slope t) = 1, at most 60, beyond which there is no mass.

    Newton on the logarithm from the larger single root: the sum is log-convex and falls, so every step stays left of
    the root, and an error of t enters the result squared.
    """
    with np.errstate(all="ignore"):
        if slope > 0:
            alone = np.where(np.isneginf(log_other), -np.inf, log_other / slope)
        else:
            alone = np.where(log_other < 0, -np.inf, np.inf)
        t = np.fmin(np.maximum(alone, log_far / far_slope), _FAR)
        for _ in range(_NEWTON):
            one, two = np.exp(log_other - slope * t), np.exp(log_far - far_slope * t)
            total = one + two
            t = t + np.log(total) * total / (slope * one + far_slope * two)
            t = np.where(np.isfinite(t), np.minimum(t, _FAR), _FAR)
    return np.asarray(t)
