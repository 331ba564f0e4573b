"""All neighbours of one fixed-size round, covered by finitely many pairs of profiles.

Replace-one: it suffices to consider x0, a, b on a circle of radius s = 1/sigma whose triangle is not obtuse (Lemma 4 of
docs/theory.md), so at angles alpha at a, beta at b in [0, pi/2] with alpha + beta >= pi/2. A `Box` of such angles is
below the corners of its largest distances and least angles (Lemma 5). Zero-out: x0 and the client's vector are on the
circle around 0, at an angle theta in [0, pi]; an `Arc` is an interval of theta. Bounds of boxes and arcs are whole
numbers of `UNIT`, so that halves fit without a gap.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self

from accounting.arrays import Floats
from accounting.gaussian import corner_profile

RIGHT = 2**20
"""A right angle, in units."""
UNIT = math.pi / 2 / RIGHT
_NARROWEST = RIGHT // 64
"""Width below which arcs are not divided: a corner above 0.97 pi counts as that angle, which no division improves."""
_UP = 1 + 1e-14
"""Factor by which distances are rounded up."""

Profiles = tuple[Floats, Floats]
"""Profiles H_gamma(P || Q) and H_gamma(Q || P) at losses >= 0."""


@dataclass(kw_only=True, eq=False)
class FixedSizeRound:
    """One fixed-size round: its sampling probability q, s = 1/sigma, and the losses at which profiles are computed."""

    q: float
    s: float
    losses: Floats
    _known: dict[tuple[float, float, int], Floats] = field(default_factory=dict)

    def corner(self, near: float, far: float, angle: int) -> Floats:
        """Return a corner of distances in units of s, from above; each is computed once."""
        key = near, far, angle
        if key not in self._known:
            self._known[key] = corner_profile.upper(
                self.losses,
                sampling_probability=self.q,
                near=near * self.s * _UP,
                far=far * self.s * _UP,
                angle=angle * UNIT,
            )
        return self._known[key]


class Configurations(Protocol):
    """Part of the configurations, which can be halved."""

    def profiles(self, of: FixedSizeRound) -> Profiles:
        """Return profiles above those of every configuration in it, in both orders and at every loss."""
        ...

    def parts(self) -> Iterable[Self]:
        """Return cells that cover it together; itself alone if dividing it would gain nothing."""
        ...


@dataclass(frozen=True, kw_only=True)
class Box:
    """Triangles with alpha and beta between these bounds."""

    alpha: tuple[int, int]
    beta: tuple[int, int]

    def profiles(self, of: FixedSizeRound) -> Profiles:
        """Return corners: D <= 2s sin(alpha + beta) at the least sum, |a - x0| = 2s sin(beta), |b - x0| = 2s
        sin(alpha).
        """
        (alpha, most_alpha), (beta, most_beta) = self.alpha, self.beta
        far = 2 * _sine(max(RIGHT, alpha + beta))
        return of.corner(2 * _sine(most_beta), far, alpha), of.corner(2 * _sine(most_alpha), far, beta)

    def parts(self) -> Iterable["Box"]:
        """Return quarters, without those of obtuse triangles."""
        halves = [(low, (low + high) // 2, high) for low, high in (self.alpha, self.beta)]
        for alpha in (halves[0][:2], halves[0][1:]):
            for beta in (halves[1][:2], halves[1][1:]):
                if alpha[1] + beta[1] > RIGHT:
                    yield Box(alpha=(alpha[0], alpha[1]), beta=(beta[0], beta[1]))


@dataclass(frozen=True, kw_only=True)
class Arc:
    """Angles theta under zero-out between the other client's vector and the one that counts or is zero.

    `restored`: the order of the neighbours in which the client's vector is zero first.
    """

    theta: tuple[int, int]
    restored: bool

    def profiles(self, of: FixedSizeRound) -> Profiles:
        """Return corners: seen from a = C, x0 at 2s sin(theta/2), 0 at s, (pi - theta)/2 between; seen from 0, at s,
        theta.
        """
        least, most = self.theta
        counted = of.corner(2 * _sine(most / 2), 1.0, (2 * RIGHT - most) // 2)
        zero = of.corner(1.0, 1.0, least)
        return (zero, counted) if self.restored else (counted, zero)

    def parts(self) -> Iterable["Arc"]:
        """Return halves; the arc itself if it is narrow."""
        least, most = self.theta
        if most - least <= _NARROWEST:
            return [self]
        middle = (least + most) // 2
        return [Arc(theta=bounds, restored=self.restored) for bounds in ((least, middle), (middle, most))]


def all_triangles() -> list[Configurations]:
    """Return all configurations of replace-one."""
    return list(Box(alpha=(0, RIGHT), beta=(0, RIGHT)).parts())


def all_arcs(*, restored: bool) -> list[Configurations]:
    """Return all configurations of zero-out in one order of the neighbours."""
    bounds = range(0, 2 * RIGHT + 1, RIGHT // 8)
    return [Arc(theta=(least, most), restored=restored) for least, most in itertools.pairwise(bounds)]


def extremes(of: FixedSizeRound) -> list[Profiles]:
    """Return replace-one's two directions, exactly: all others send -C u, the client C u or -C u, and the reverse."""
    removed, added = _row(of, 2.0, 2.0), _row(of, 0.0, 2.0)
    return [(removed, added), (added, removed)]


def shown(of: FixedSizeRound, angles: Iterable[int]) -> list[Profiles]:
    """Return lower profiles of zero-out: x0 opposite to the client's vector, and x0 at even angles theta from it."""
    across = corner_profile.opposite(of.losses, sampling_probability=of.q, distance=of.s)
    return [(_row(of, 2.0, 1.0), across), *(_arc(of, theta) for theta in angles)]


def _arc(of: FixedSizeRound, theta: int) -> Profiles:
    return _lower_profile(of, 2 * _sine(theta / 2), 1.0, (2 * RIGHT - theta) // 2), _lower_profile(of, 1.0, 1.0, theta)


def _lower_profile(of: FixedSizeRound, near: float, far: float, angle: int) -> Floats:
    return corner_profile.lower(
        of.losses, sampling_probability=of.q, near=near * of.s, far=far * of.s, angle=angle * UNIT
    )


def _row(of: FixedSizeRound, near: float, far: float) -> Floats:
    return corner_profile.in_a_row(of.losses, sampling_probability=of.q, near=near * of.s, far=far * of.s)


def _sine(angle: float) -> float:
    return math.sin(min(angle, 2 * RIGHT) * UNIT)
