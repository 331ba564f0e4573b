"""Dynamic program for an adversary who chooses the neighbours of each round by the loss so far.

Source: docs/theory.md, Theorem 7. V_t(gamma) is the largest H_gamma of t rounds. V_0(gamma) = (1 - gamma)_+, and the
recursion is

    V_(t+1)(gamma) = sup over the round's pairs (P, Q) of  E_P V_t(gamma dQ/dP).

V is stored at gamma = e^(i d), i = 0..n, and the pairs are kernels on the grid of losses. For an upper bound each pair
of the round is dominated by one of finitely many kernels; for a lower bound each kernel is dominated by a pair of the
round. For gamma < 1 V(gamma) = 1 - gamma + gamma V'(1/gamma), exactly, with V' the value for exchanged neighbours. Only
the part gamma V' needs the transform, because (1 - gamma)_+ becomes the kernel's profile.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import scipy

from accounting.arrays import Floats, Ints
from accounting.compose.loss_distribution import LossDistribution, convex_minorant

_CHARGE = 5e-16
"""Largest rounding error of three transforms of length N: about 3 u log2(N) |G|_2, u = 1.1e-16, for G with masses
summing to at most 1; a hundredth of it was measured."""


@dataclass(frozen=True, kw_only=True)
class StateGrid:
    """Grid of states gamma = e^(i spacing), i = 0..states, and of losses -reach..reach with equal spacing.

    Most losses of a round are within -near..near; profiles are computed at all grid points of this range.
    """

    spacing: float
    states: int
    largest_step: int
    profiled_steps: int = 0

    @property
    def gammas(self) -> Floats:
        """Values of gamma at the states, e^(i spacing), i = 0..states."""
        return np.asarray(np.exp(self.spacing * np.arange(self.states + 1)))

    def losses(self, nodes: Ints) -> Floats:
        """Return the losses at these grid steps."""
        return np.asarray(nodes * self.spacing, dtype=float)

    @cached_property
    def size(self) -> int:
        """Length of the transforms, for which no wrap-around reaches a state."""
        return int(scipy.fft.next_fast_len(self.states + 1 + 2 * self.largest_step, real=True))

    @cached_property
    def shrink(self) -> Floats:
        """Values of gamma left of 1, e^(-i spacing), i = reach..1."""
        return np.asarray(np.exp(-self.spacing * np.arange(self.largest_step, 0, -1)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernel:
    """Pair on the grid of losses: masses of the first neighbour at -reach..reach, with the remaining mass at an
    infinite loss, and the pair's profile at the states.
    """

    masses: Floats
    profile: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernels:
    """Transforms and profiles of the pairs among which the adversary chooses."""

    spectra: Floats
    profiles: Floats

    @classmethod
    def of(cls, kernels: Sequence[Kernel], grid: StateGrid) -> "Kernels":
        spectra = scipy.fft.rfft(np.array([kernel.masses for kernel in kernels]), grid.size, axis=1)
        return cls(spectra=spectra, profiles=np.array([kernel.profile for kernel in kernels]))


Kind = TypeVar("Kind")
Pair = tuple[Kernels, Kernels | None]
"""Kernels of a round for both orders of the neighbours; None if they are equal."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Values:
    """Values V and V' at the states, for one order of the neighbours and for the exchanged order (one array if they are
    equal).

    upper: True for upper bounds, to which rounding errors are added; False for lower bounds, from which they are
    subtracted.
    """

    grid: StateGrid
    forward: Floats
    reverse: Floats
    upper: bool

    @classmethod
    def for_no_rounds(cls, grid: StateGrid, *, upper: bool) -> "Values":
        """Return the values for no rounds."""
        zeros = np.zeros(grid.states + 1)
        return cls(grid=grid, forward=zeros, reverse=zeros, upper=upper)

    def with_another_round(self, forth: Kernels, back: Kernels | None) -> "Values":
        """Return the values with one more round before all others.

        back: kernels of the exchanged neighbours; None if they are equal to `forth`."""
        one = self._value_before_round(forth)
        two = one if back is None else self.exchanged()._value_before_round(back)
        return Values(grid=self.grid, forward=one, reverse=two, upper=self.upper)

    def with_rounds(self, runs: Sequence[tuple[Kind, int]], kernels: Mapping[Kind, Pair]) -> "Values":
        """Return the values with these runs of rounds, in order, before all others."""
        found = self
        for kind, count in reversed(runs):
            for _ in range(count):
                found = found.with_another_round(*kernels[kind])
        return found

    def exchanged(self) -> "Values":
        """Return the values of the exchanged neighbours."""
        return Values(grid=self.grid, forward=self.reverse, reverse=self.forward, upper=self.upper)

    def extended(self) -> Floats:
        """Return G at steps -reach..states+reach: V for gamma >= 1, and gamma V'(1/gamma) for gamma < 1."""
        reach, states = self.grid.largest_step, self.grid.states
        left = np.full(reach, self.reverse[-1] if self.upper else 0.0)
        known_states = min(reach, states)
        left[reach - known_states :] = self.reverse[known_states:0:-1]
        right = np.full(reach, self.forward[-1] if self.upper else 0.0)
        return np.concatenate([left * self.grid.shrink, self.forward, right])

    def all_choices(self, kernels: Kernels, spectrum: Floats) -> Floats:
        """Return E_P V(gamma dQ/dP) for every kernel at every state, without the charge for rounding errors."""
        start = 2 * self.grid.largest_step
        found = scipy.fft.irfft(kernels.spectra * spectrum, self.grid.size, axis=1)
        return np.asarray(found[:, start : start + self.grid.states + 1] + kernels.profiles)

    def spectrum(self) -> Floats:
        """Return the transform of `extended`."""
        return np.asarray(scipy.fft.rfft(self.extended(), self.grid.size))

    def charge(self) -> float:
        """Return a bound on the rounding error of one round."""
        size = float(np.sqrt((self.extended() ** 2).sum()))
        return _CHARGE * (1 + math.log2(self.grid.size) * size)

    def _value_before_round(self, kernels: Kernels) -> Floats:
        best = self.all_choices(kernels, self.spectrum()).max(axis=0)
        best += self.charge() if self.upper else -self.charge()
        best = np.clip(best, 0.0, 1.0)
        # Exact values decrease, so running minima are upper bounds, and running maxima from the right lower bounds.
        return np.minimum.accumulate(best) if self.upper else np.maximum.accumulate(best[::-1])[::-1]

    def with_losses(self, forth: LossDistribution, back: LossDistribution) -> "Values":
        """Return the values with more rounds before all others, in which the adversary has no choice."""
        one = self._with_distribution(forth)
        return Values(grid=self.grid, forward=one, reverse=self.exchanged()._with_distribution(back), upper=True)

    def _with_distribution(self, distribution: LossDistribution) -> Floats:
        last = distribution.lowest + len(distribution.masses) - 1
        values_around = self._value_at_states(np.arange(-last, self.grid.states - distribution.lowest + 1))
        found = scipy.signal.fftconvolve(values_around, np.maximum(distribution.masses, 0.0), mode="valid")
        found += distribution.infinite
        found += _CHARGE * (1 + math.log2(2 * len(values_around)) * math.sqrt(float((values_around**2).sum())))
        return np.asarray(np.minimum.accumulate(np.clip(found, 0.0, 1.0)))

    def _value_at_states(self, states: Ints) -> Floats:
        """Return V at any integer states, rounded upwards."""
        last = self.grid.states
        right = self.forward[np.clip(states, 0, last)]
        gamma = np.exp(-self.grid.spacing * np.maximum(-states, 0).astype(float))
        left = 1 - gamma + gamma * self.reverse[np.clip(-states, 0, last)]
        return np.asarray(np.where(states >= 0, right, left))

    def worse_epsilon(self, delta: float) -> float:
        """Return the larger `epsilon` of both orders of the neighbours."""
        return max(self.epsilon(delta), self.exchanged().epsilon(delta))

    def approximate_crossing(self, delta: float) -> float:
        """Return approximately the loss at which V is `delta`, interpolated between states. It is not a bound."""
        over = np.flatnonzero(self.forward > delta)
        if not over.size:
            return 0.0
        last = int(over[-1])
        after = self.forward[min(last + 1, self.grid.states)]
        logs = math.log(self.forward[last] / delta), math.log(self.forward[last] / after) if after > 0 else math.inf
        return self.grid.spacing * (last + (logs[0] / logs[1] if logs[1] > 0 else 0.0))

    def epsilon(self, delta: float) -> float:
        """Return the loss at which V reaches `delta`.

        For upper bounds it is the first state with V at most `delta`, improved by a chord in gamma (V is convex). For
        lower bounds it is the last state with V above `delta`.
        """
        if not self.upper:
            over = np.flatnonzero(self.forward > delta)
            return float(over[-1]) * self.grid.spacing if over.size else 0.0
        under = np.flatnonzero(self.forward <= delta)
        if not under.size:
            return math.inf
        first = int(under[0])
        if first == 0:
            return 0.0
        high, low = float(self.forward[first - 1]), float(self.forward[first])
        share = (high - delta) / (high - low)
        start = (first - 1) * self.grid.spacing
        return (start + math.log1p(math.expm1(self.grid.spacing) * share)) * (1 + 1e-13)


def dominating_kernel(nodes: Ints, forth: Floats, back: Floats, grid: StateGrid) -> Kernel:
    """Return a kernel that dominates a pair: its profile connects given points of the pair's profile (Doroshenko et al.
    2022).

    forth, back: profiles of both orders at losses `nodes` times spacing, from 0 to reach. Between the nodes the
    kernel's profile is linear in gamma, beyond them constant, with the remaining mass of `forth` at an infinite loss.
    At gamma = 1 the larger of both values is used if rounding makes them differ.
    """
    forth, back = forth.copy(), back.copy()
    forth[0] = back[0] = max(forth[0], back[0])
    gammas = np.exp(nodes * grid.spacing)
    widths = gammas[:-1] * np.expm1(np.diff(nodes) * grid.spacing)
    rising = np.append(np.diff(forth) / widths, 0.0), np.append(np.diff(back) / widths, 0.0)
    masses = np.zeros(2 * grid.largest_step + 1)
    masses[grid.largest_step + nodes[1:]] = np.maximum(gammas[1:] * np.diff(rising[0]), 0.0)
    masses[grid.largest_step - nodes[1:]] = np.maximum(np.diff(rising[1]), 0.0)
    masses[grid.largest_step] = max(1.0 - float(forth[-1]) - float(masses.sum()), 0.0)
    states = np.interp(grid.gammas, gammas, forth)
    return Kernel(masses=masses, profile=states)


def dominated_kernel(nodes: Ints, forth: Floats, back: Floats, grid: StateGrid) -> Kernel:
    """Return a kernel that is dominated by the pair with these profiles at losses `nodes` times spacing, from 0 to
    reach.

    A convex curve is above the extensions of its adjacent chords. So between two points it is at most w a b / (a + b)
    below its chord, w the width, a and b the changes of slope at the points. If the points are lowered by that amount,
    every chord is below the curve. The lower convex hull of these points is then below the curve, and its value at the
    end is subtracted everywhere.
    Direction of error: lower bound, of the second order in the spacing.
    Errors: ValueError if the nodes are too far apart.
    """
    gammas = np.exp(nodes * grid.spacing)
    one, two = _curve_below_chords(gammas, forth, back), _curve_below_chords(gammas, back, forth)
    one[0] = two[0] = min(one[0], two[0])
    left = 1 / gammas[:0:-1]
    points = np.concatenate([left, gammas])
    curve = np.concatenate([1 - left + left * two[:0:-1], one])
    hull = convex_minorant(points, curve)
    middle = len(left)
    mirrored = np.append((hull[:middle] - (1 - left)) / left, hull[middle])[::-1]
    kernel = dominating_kernel(nodes, np.maximum(hull[middle:], 0.0), np.maximum(mirrored, 0.0), grid)
    if one[0] <= 0 or kernel.masses.sum() > 1 + 1e-9:
        raise ValueError("nodes: too far apart for a lower bound.")
    return kernel


def _curve_below_chords(gammas: Floats, curve: Floats, other: Floats) -> Floats:
    """Return `curve` at the nodes, lowered so much that the chords between them are below it, and set to 0 at the end.

    other: curve of the exchanged neighbours
    """
    before, widths = 1 / gammas[1], np.diff(gammas)
    first = (curve[0] - (1 - before + before * other[1])) / (1 - before)
    slopes = np.concatenate([[first], np.diff(curve) / widths])
    a = np.maximum(np.diff(slopes), 0.0)
    b = np.append(a[1:], np.inf)  # the curve is unknown beyond the end
    with np.errstate(invalid="ignore", divide="ignore"):
        gaps = widths * np.where(np.isinf(b), a, np.where(a * b > 0, a * b / (a + b), 0.0))
    lowered = curve - np.maximum(np.append(gaps, 0.0), np.append(0.0, gaps))
    lowered -= lowered[-1]
    # 0 from the point before the first that is not above 0, because a later line to 0 would not be below the curve.
    lowered[max(int(np.argmax(lowered <= 0)) - 1, 0) :] = 0.0
    return np.asarray(lowered)
