"""Corner profile of three Gaussians, which bounds every configuration of a fixed-size round.

In units of the noise a fixed-size round has P = (1-q) N(x0) + q N(a) against Q = (1-q) N(x0) + q N(b) (docs/theory.md,
(F)). With A = |x0 - a|, D = |b - a| and alpha the angle at a,

    corner(gamma; A, D, alpha) = q sup over S of  N(a)(S) - w N(x0)(S) - gamma N(b)(S),    w = (1-q)(gamma-1)/q,

is H_gamma(P || Q) for gamma >= 1. It increases in A, and in D if alpha <= pi/2; it decreases in alpha (Lemma 5 there).
"""

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting.arrays import Floats
from accounting.gaussian.half_lines import log_complement, log_expm1

_ROUNDING, _TAIL = 1e-9, 1e-16
"""Error margins of every value: relative for quadrature, absolute for its truncated ends."""

_WIDEST = 0.97 * math.pi
"""Largest angle that is computed. A wider angle is replaced by this one, because quadrature gets inaccurate near pi.
That gives an upper bound, because the profile decreases in the angle.
"""
_FAR = 60.0
_END = 8.5
_NEWTON = 5
_WIDE = 0.5
"""Step of the quadrature for a single Gaussian, for which the error is exp(-2 pi^2 / step^2)."""


def upper(epsilon: ArrayLike, *, sampling_probability: float, near: float, far: float, angle: float) -> Floats:
    """Return an upper bound on corner(e^epsilon; near, far, angle) for epsilon >= 0.

    near, far: A and D in units of the noise's standard deviation; angle: alpha, in [0, pi].
    Shape: that of `epsilon`.
    Direction of error: upper bound, by 1e-9 relative and 1e-16 absolute. Angles above 0.97 pi are replaced by 0.97 pi.
    """
    exact = corner(epsilon, sampling_probability=sampling_probability, near=near, far=far, angle=min(angle, _WIDEST))
    return np.asarray(np.minimum(exact * (1 + _ROUNDING) + _TAIL, 1.0))


def lower(epsilon: ArrayLike, *, sampling_probability: float, near: float, far: float, angle: float) -> Floats:
    """Return a lower bound on corner(e^epsilon; near, far, angle), for a round with this corner. angle: at most 0.97
    pi.
    """
    exact = corner(epsilon, sampling_probability=sampling_probability, near=near, far=far, angle=angle)
    return np.asarray(np.maximum(exact * (1 - _ROUNDING) - _TAIL, 0.0))


def corner(epsilon: ArrayLike, *, sampling_probability: float, near: float, far: float, angle: float) -> Floats:
    """Return corner(e^epsilon; near, far, angle), by quadrature.

    The x-axis is antiparallel to the bisector at a. On each line of constant y both likelihood ratios decrease in x, so
    the best S is a half-line x > t(y) with one-dimensional normal masses. The integrand is analytic in |Im y| < pi / (2
    max(A, D) sin(alpha/2)), so the trapezoidal rule converges like exp(-2 pi Im y / step). Error: 1e-11 relative for
    noise multipliers of at least 0.2 (tests), plus the mass 2e-17 beyond |y| = 8.5.
    """
    eps, q = np.asarray(epsilon, dtype=float).reshape(-1, 1), sampling_probability
    if far <= 0:
        return np.zeros(np.shape(epsilon))
    half = angle / 2
    y = np.arange(-_END, _END + 1e-9, _step(near, far, half))[None]
    projections = near * math.cos(half), far * math.cos(half)
    log_other = log_complement(q) - math.log(q) + log_expm1(eps) + near * math.sin(half) * y - near**2 / 2
    log_far = eps - far * math.sin(half) * y - far**2 / 2
    t = _half_line_start(log_other, log_far, *projections)
    gain = scipy.special.ndtr(-t)
    for log_weight, distance in zip((log_other, log_far), projections, strict=True):
        gain -= np.exp(np.minimum(log_weight + distance**2 / 2, 700.0)) * scipy.special.ndtr(-distance - t)
    gain = np.where(t < _FAR, np.maximum(gain, 0.0), 0.0) * np.exp(-y * y / 2)
    values = q * gain.sum(axis=1) * (y[0, 1] - y[0, 0]) / math.sqrt(2 * math.pi)
    return np.asarray(values.reshape(np.shape(epsilon)))


def collinear_corner(epsilon: ArrayLike, *, sampling_probability: float, near: float, far: float) -> Floats:
    """Return corner(e^epsilon; near, far, 0), exact up to rounding. x0 and b are on one ray from a, and the best S is a
    half-line.
    """
    eps, q = np.asarray(epsilon, dtype=float), sampling_probability
    if far <= 0:
        return np.zeros(eps.shape)
    log_other = log_complement(q) - math.log(q) + log_expm1(eps) - near**2 / 2
    t = _half_line_start(log_other, eps - far**2 / 2, near, far)
    inside = scipy.special.log_ndtr(-t)
    subtracted = np.exp(log_other + near**2 / 2 + scipy.special.log_ndtr(-near - t) - inside)
    subtracted = subtracted + np.exp(eps + scipy.special.log_ndtr(-far - t) - inside)
    return np.asarray(q * np.exp(inside) * np.where(t < _FAR, np.maximum(1 - subtracted, 0.0), 0.0))


def opposite_corner(epsilon: ArrayLike, *, sampling_probability: float, distance: float) -> Floats:
    """Return corner(e^epsilon; distance, distance, pi), exact up to rounding. x0 and b are on opposite sides of a.

    The best S is the interval on which w e^(-s x - s^2/2) + gamma e^(s x - s^2/2) < 1; its ends are the roots of a
    quadratic in e^(s x).
    """
    eps, q, s = np.asarray(epsilon, dtype=float), sampling_probability, distance
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        log_other = log_complement(q) - math.log(q) + log_expm1(eps)
        room = -np.expm1(np.minimum(math.log(4) + eps + log_other - s * s, 0.0))
        high = s * s / 2 - math.log(2) - eps + np.log1p(np.sqrt(room))
        low = log_other - eps - high  # the product of the roots is w / gamma
        left, right = low / s, high / s
        inside = _normal_mass(left, right)
        subtracted = np.exp(log_other) * _normal_mass(left + s, right + s) + np.exp(eps) * _normal_mass(
            left - s, right - s
        )
    return np.asarray(q * np.where(room > 0, np.maximum(inside - subtracted, 0.0), 0.0))


def _normal_mass(left: Floats, right: Floats) -> Floats:
    """Return Phi(right) - Phi(left), computed in the tail without cancellation."""
    upper = left > 0
    one, two = np.where(upper, -right, left), np.where(upper, -left, right)
    return np.asarray(scipy.special.ndtr(two) - scipy.special.ndtr(one))


def _step(near: float, far: float, half: float) -> float:
    """Return a quadrature step that is small against the strip of analyticity and the distance of the Gaussians."""
    sine = math.sin(half)
    if sine == 0:
        return _WIDE
    return min(_WIDE, 0.5 / math.tan(half), 0.25 / (max(near, far) * sine))


def _half_line_start(log_other: Floats, log_far: Floats, slope: float, far_slope: float) -> Floats:
    """Return t with e^(log_other - slope t) + e^(log_far - far_slope t) = 1, at most 60, above which the mass is 0.

    Newton's method on the logarithm starts at the larger root of the single terms. The sum is log-convex and
    decreasing, so every step stays left of the root; an error of t enters the result squared.
    """
    with np.errstate(all="ignore"):
        if slope > 0:
            single_root = np.where(np.isneginf(log_other), -np.inf, log_other / slope)
        else:
            single_root = np.where(log_other < 0, -np.inf, np.inf)
        t = np.fmin(np.maximum(single_root, log_far / far_slope), _FAR)
        for _ in range(_NEWTON):
            one, two = np.exp(log_other - slope * t), np.exp(log_far - far_slope * t)
            total = one + two
            t = t + np.log(total) * total / (slope * one + far_slope * two)
            t = np.where(np.isfinite(t), np.minimum(t, _FAR), _FAR)
    return np.asarray(t)
