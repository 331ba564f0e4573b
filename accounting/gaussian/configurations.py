"""Configurations of one fixed-size round: a finite cover of all neighbouring pairs by pairs of profiles.

The corner profile of three Gaussians bounds every configuration. In units of the noise a fixed-size round has P = (1-q)
N(x0) + q N(a) against Q = (1-q) N(x0) + q N(b) (docs/theory.md, (F)). With A = |x0 - a|, D = |b - a| and alpha the
angle at a,

    corner(gamma; A, D, alpha) = q sup over S of  N(a)(S) - w N(x0)(S) - gamma N(b)(S),    w = (1-q)(gamma-1)/q,

is H_gamma(P || Q) for gamma >= 1. It increases in A, and in D if alpha <= pi/2; it decreases in alpha (Lemma 5 there).

Cover. Replace-one: it suffices to consider x0, a, b on a circle of radius s = 1/sigma whose triangle is not obtuse
(Lemma 4 of docs/theory.md). Its angles alpha at a and beta at b are in [0, pi/2] with alpha + beta >= pi/2. Profiles in
a `Box` of such angles are at most the corner profiles at its largest distances and smallest angles (Lemma 5). Zero-out:
x0 and the client's vector are on the circle around 0, at an angle theta in [0, pi]; an `Arc` is an interval of theta.
Bounds of boxes and arcs are integer multiples of `UNIT`, so that their parts leave no gap.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting.arrays import Floats
from accounting.gaussian.sampled_profiles import log_complement, log_expm1

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
        subtracted = np.exp(log_other) * _normal_mass(left + s, right + s)
        subtracted = subtracted + np.exp(eps) * _normal_mass(left - s, right - s)
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


RIGHT = 2**20
"""Right angle, in multiples of `UNIT`."""
UNIT = math.pi / 2 / RIGHT
_NARROWEST = RIGHT // 64
"""Width below which arcs are not divided. A corner angle above 0.97 pi is replaced by 0.97 pi, so dividing would not
improve the bound.
"""
_UP = 1 + 1e-14
"""Factor for rounding distances up."""

Profiles = tuple[Floats, Floats]
"""Profiles H_gamma(P || Q) and H_gamma(Q || P) at losses >= 0."""


@dataclass(kw_only=True, eq=False)
class FixedSizeRound:
    """Fixed-size round with sampling probability q and s = 1/sigma, and the losses at which profiles are computed."""

    q: float
    s: float
    losses: Floats
    _corner_cache: dict[tuple[float, float, int], Floats] = field(default_factory=dict)

    def setting(self, near: float, far: float) -> dict[str, float]:
        """Return the arguments of corner profiles for distances in shifts."""
        return {"sampling_probability": self.q, "near": near * self.s, "far": far * self.s}

    def corner(self, near: float, far: float, angle: int) -> Floats:
        """Return an upper bound on a corner profile, cached. near, far: distances in units of s; angle: in multiples of
        `UNIT`.
        """
        key = near, far, angle
        if key not in self._corner_cache:
            distances = {"near": near * self.s * _UP, "far": far * self.s * _UP}
            self._corner_cache[key] = upper(self.losses, sampling_probability=self.q, **distances, angle=angle * UNIT)
        return self._corner_cache[key]


@dataclass(frozen=True, kw_only=True)
class Box:
    """Set of triangles with angles alpha and beta between the given bounds, under replace-one."""

    alpha: tuple[int, int]
    beta: tuple[int, int]

    def profiles(self, sampled_round: FixedSizeRound) -> Profiles:
        """Return corner profiles with D <= 2s sin(alpha + beta) at the smallest sum, |a - x0| = 2s sin(beta) and |b -
        x0| = 2s sin(alpha).
        """
        (alpha, most_alpha), (beta, most_beta) = self.alpha, self.beta
        far = 2 * _sine(max(RIGHT, alpha + beta))
        corner = sampled_round.corner
        return corner(2 * _sine(most_beta), far, alpha), corner(2 * _sine(most_alpha), far, beta)

    def parts(self) -> Iterable["Box"]:
        """Return the quarters of the box, without those that contain only obtuse triangles."""
        halves = [(low, (low + high) // 2, high) for low, high in (self.alpha, self.beta)]
        for alpha in (halves[0][:2], halves[0][1:]):
            for beta in (halves[1][:2], halves[1][1:]):
                if alpha[1] + beta[1] > RIGHT:
                    yield Box(alpha=(alpha[0], alpha[1]), beta=(beta[0], beta[1]))


@dataclass(frozen=True, kw_only=True)
class Arc:
    """Interval of angles theta under zero-out, between another client's vector and the vector that is zeroed.

    `restored`: True for the order of the neighbours in which the first has the zeroed vector.
    """

    theta: tuple[int, int]
    restored: bool

    def profiles(self, sampled_round: FixedSizeRound) -> Profiles:
        """Return corner profiles. At the client's vector the distances are 2s sin(theta/2) to x0 and s to 0, with angle
        (pi - theta)/2. At 0 both distances are s, with angle theta.
        """
        least, most = self.theta
        counted = sampled_round.corner(2 * _sine(most / 2), 1.0, (2 * RIGHT - most) // 2)
        zero = sampled_round.corner(1.0, 1.0, least)
        return (zero, counted) if self.restored else (counted, zero)

    def parts(self) -> Iterable["Arc"]:
        """Return the halves of the arc; only the arc itself if it is narrow."""
        least, most = self.theta
        if most - least <= _NARROWEST:
            return [self]
        middle = (least + most) // 2
        return [Arc(theta=bounds, restored=self.restored) for bounds in ((least, middle), (middle, most))]


Configurations = Box | Arc
"""Set of configurations of one round. `profiles` bounds the profiles of every configuration in the set from above, in
both orders and at every loss. `parts` are sets that cover it; only itself if dividing would not improve the bound.
"""


def all_triangles() -> list[Configurations]:
    """Return boxes that cover all configurations under replace-one."""
    return list(Box(alpha=(0, RIGHT), beta=(0, RIGHT)).parts())


def all_arcs(*, restored: bool) -> list[Configurations]:
    """Return arcs that cover all configurations under zero-out, in one order of the neighbours."""
    bounds = range(0, 2 * RIGHT + 1, RIGHT // 8)
    return [Arc(theta=(least, most), restored=restored) for least, most in itertools.pairwise(bounds)]


def extremes(sampled_round: FixedSizeRound) -> list[Profiles]:
    """Return the exact profiles of the extreme configuration under replace-one, and of its reverse: all other clients
    send -C u, and the client sends C u or -C u.
    """
    removed, added = _collinear_profiles(sampled_round, 2.0, 2.0), _collinear_profiles(sampled_round, 0.0, 2.0)
    return [(removed, added), (added, removed)]


def attained_profiles(sampled_round: FixedSizeRound, angles: Iterable[int]) -> list[Profiles]:
    """Return lower bounds on the zero-out profile: for x0 opposite to the client's vector, and for x0 at the given
    angles from it.
    """
    losses, q, s = sampled_round.losses, sampled_round.q, sampled_round.s
    return [
        (_collinear_profiles(sampled_round, 2.0, 1.0), opposite_corner(losses, sampling_probability=q, distance=s)),
        *(_arc_profiles(sampled_round, theta) for theta in angles),
    ]


def _arc_profiles(sampled_round: FixedSizeRound, theta: int) -> Profiles:
    def profile(near: float, angle: int) -> Floats:
        return lower(sampled_round.losses, **sampled_round.setting(near, 1.0), angle=angle * UNIT)

    return profile(2 * _sine(theta / 2), (2 * RIGHT - theta) // 2), profile(1.0, theta)


def _collinear_profiles(sampled_round: FixedSizeRound, near: float, far: float) -> Floats:
    return collinear_corner(sampled_round.losses, **sampled_round.setting(near, far))


def _sine(angle: float) -> float:
    return math.sin(min(angle, 2 * RIGHT) * UNIT)
