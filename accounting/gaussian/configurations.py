"""Cover of all neighbouring pairs of one fixed-size round by finitely many pairs of profiles.

Replace-one: it suffices to consider x0, a, b on a circle of radius s = 1/sigma whose triangle is not obtuse (Lemma 4 of
docs/theory.md). Its angles alpha at a and beta at b are in [0, pi/2] with alpha + beta >= pi/2. Profiles in a `Box` of
such angles are at most the corner profiles at its largest distances and smallest angles (Lemma 5). Zero-out: x0 and the
client's vector are on the circle around 0, at an angle theta in [0, pi]; an `Arc` is an interval of theta. Bounds of
boxes and arcs are integer multiples of `UNIT`, so that their parts leave no gap.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self

from accounting.arrays import Floats
from accounting.gaussian import corner_profile

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

    def corner(self, near: float, far: float, angle: int) -> Floats:
        """Return an upper bound on a corner profile, cached. near, far: distances in units of s; angle: in multiples of
        `UNIT`.
        """
        key = near, far, angle
        if key not in self._corner_cache:
            self._corner_cache[key] = corner_profile.upper(
                self.losses,
                sampling_probability=self.q,
                near=near * self.s * _UP,
                far=far * self.s * _UP,
                angle=angle * UNIT,
            )
        return self._corner_cache[key]


class Configurations(Protocol):
    """Set of configurations of one round that can be divided into smaller sets."""

    def profiles(self, sampled_round: FixedSizeRound) -> Profiles:
        """Return upper bounds on the profiles of every configuration in the set, in both orders and at every loss."""
        ...

    def parts(self) -> Iterable[Self]:
        """Return sets that together cover this set; only the set itself if dividing it would not improve the bound."""
        ...


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
        return sampled_round.corner(2 * _sine(most_beta), far, alpha), sampled_round.corner(
            2 * _sine(most_alpha), far, beta
        )

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
    opposite_profile = corner_profile.opposite_corner(
        sampled_round.losses, sampling_probability=sampled_round.q, distance=sampled_round.s
    )
    return [
        (_collinear_profiles(sampled_round, 2.0, 1.0), opposite_profile),
        *(_arc_profiles(sampled_round, theta) for theta in angles),
    ]


def _arc_profiles(sampled_round: FixedSizeRound, theta: int) -> Profiles:
    return _lower_profile(sampled_round, 2 * _sine(theta / 2), 1.0, (2 * RIGHT - theta) // 2), _lower_profile(
        sampled_round, 1.0, 1.0, theta
    )


def _lower_profile(sampled_round: FixedSizeRound, near: float, far: float, angle: int) -> Floats:
    return corner_profile.lower(
        sampled_round.losses,
        sampling_probability=sampled_round.q,
        near=near * sampled_round.s,
        far=far * sampled_round.s,
        angle=angle * UNIT,
    )


def _collinear_profiles(sampled_round: FixedSizeRound, near: float, far: float) -> Floats:
    return corner_profile.collinear_corner(
        sampled_round.losses,
        sampling_probability=sampled_round.q,
        near=near * sampled_round.s,
        far=far * sampled_round.s,
    )


def _sine(angle: float) -> float:
    return math.sin(min(angle, 2 * RIGHT) * UNIT)
