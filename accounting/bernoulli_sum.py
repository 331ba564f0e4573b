"""Sums of coins: what a server sees of Bernoulli uploads under secure aggregation. No noise is added.

Exactly K clients toss independent coins with probabilities in [c, 1-c]; the server sees, per coordinate, only how many
came up. One client's probabilities move by at most Delta in L2 (or t in L-infinity). Proof: docs/theory.md, Theorem 5.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import require
from accounting.bernoulli import Bound, channel_bound, floor_of, majorant_slope, sample_steps
from accounting.branch_and_bound import supremum
from accounting.errors import InvalidParameter

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# As in `accounting.bernoulli`: how far the slope is raised, coarse to fine.
_ROOMS = (1e-2, 1e-3)
_MOST_BOXES = (400_000, 30_000)
# Elements of one block of sums, so that K = 1,000 fits into the memory of a laptop.
_BLOCK = 2_000_000
# Laws are kept above this; below it nothing can matter while alpha log((1-c)/c) stays below _LARGEST_EXPONENT.
_SMALLEST_MASS = 1e-290
_LARGEST_EXPONENT = 600.0


def aggregate_rdp(
    orders: ArrayLike,
    *,
    cohort: int,
    dimension: int,
    c: float,
    l2_sensitivity: float | None = None,
    linf_sensitivity: float | None = None,
) -> Floats:
    """The smallest valid Renyi bound of a sum of coin uploads; see `aggregate_bound`. A scalar gives a scalar."""
    bound = aggregate_bound(
        orders,
        cohort=cohort,
        dimension=dimension,
        c=c,
        l2_sensitivity=l2_sensitivity,
        linf_sensitivity=linf_sensitivity,
    )
    return bound.rdp.reshape(np.shape(orders))[()]


def aggregate_bound(
    orders: ArrayLike,
    *,
    cohort: int,
    dimension: int,
    c: float,
    l2_sensitivity: float | None = None,
    linf_sensitivity: float | None = None,
) -> Bound:
    """Renyi divergence between the sums of K = `cohort` uploads that differ in one client, in both directions.

    Claim: per coordinate the law is Poisson-binomial and exp((alpha-1) D) is jointly convex in every probability, so
    the other K-1 sit at c or 1-c (all numbers j at 1-c are tried) and the moving one at c and c + t. With phi(u) the
    largest such divergence for a move of square at most u and phi^ its least concave majorant on [0, t^2],
    rho(alpha) <= d phi^(min(Delta^2/d, t^2)), and d phi(t^2) where only an L-infinity bound t is given (t = 1 - 2c
    where none is). Never above the bound for K = 1, the coins alone.

    Conditions: K is fixed and known, every one of the K sends coins, the cohort's size says nothing. Units: those of
    theta. orders > 1, finite. Direction of error: upper bound, certified within about 1%.
    """
    alpha = np.atleast_1d(np.asarray(orders, dtype=float))
    if alpha.ndim != 1 or np.any(~((alpha > 1) & np.isfinite(alpha))):
        raise InvalidParameter(f"orders={orders!r}: must be finite numbers above 1.")
    d, k, floor = require.count(dimension=dimension), require.count(cohort=cohort), floor_of(c)
    alone = channel_bound(
        alpha, dimension=d, c=floor, noise_std=0.0, l2_sensitivity=l2_sensitivity, linf_sensitivity=linf_sensitivity
    )
    inside = alpha * math.log((1 - floor) / floor) < _LARGEST_EXPONENT
    if k == 1 or not inside.any():
        return alone
    sums = _Sums(k, floor, alpha[inside])
    farthest = min(1 - 2 * floor, math.inf if linf_sensitivity is None else linf_sensitivity)
    bounds: dict[str, Floats] = {}
    if l2_sensitivity is not None:
        bounds["aggregate-l2"] = d * _majorant(sums, min(l2_sensitivity**2 / d, farthest**2), farthest)
    if linf_sensitivity is not None:
        bounds["aggregate-linf"] = d * sums.largest(farthest)
    rdp, by = alone.rdp.copy(), list(alone.by)
    for name, values in bounds.items():
        for index, value in zip(np.flatnonzero(inside), values, strict=True):
            if value < rdp[index]:
                rdp[index], by[index] = value, name
    return Bound(rdp=rdp, by=tuple(by))


def _majorant(sums: "_Sums", step: float, farthest: float) -> Floats:
    """phi^ at `step`, by duality as in `accounting.bernoulli`."""
    if step == 0:
        return np.zeros(len(sums.alpha))
    t = sample_steps(step, farthest, 60)
    sampled = majorant_slope(t * t, sums.sampled(t), step)
    best = np.full(len(sums.alpha), np.inf)
    for room, most in zip(_ROOMS, _MOST_BOXES, strict=True):
        slope = sampled * (1 + room)
        beyond = sums.certified(slope, farthest, slope * step * room / 4, most)
        best = np.minimum(best, slope * step + beyond)
        if np.any(beyond > slope * step * room):
            break
    return best


class _Sums:
    """Divergences of the sum when one coin moves between c and c + t and j of the other K-1 sit at 1-c.

    A box is (j, direction, t): direction 0 is the sum at c from the sum at c + t, direction 1 the reverse. The mirror
    heads <-> tails turns coins at 1-c into coins at c, so that moving near 1-c is covered by K-1-j.
    """

    def __init__(self, cohort: int, c: float, alpha: Floats) -> None:
        self.cohort, self.c, self.alpha = cohort, c, alpha
        others = np.array([_two_binomials(cohort - 1 - j, c, j, 1 - c) for j in range(cohort)])
        nobody = np.zeros((cohort, 1))
        tails, heads = np.concatenate([others, nobody], axis=1), np.concatenate([nobody, others], axis=1)
        self.difference = heads - tails
        self.at_floor = c * heads + (1 - c) * tails

    def sampled(self, t: Floats) -> Floats:
        """Largest divergence over both directions with all others at one end, [orders, t]."""
        j, direction = np.array([0, 0, self.cohort - 1, self.cohort - 1]), np.array([0, 1, 0, 1])
        result = np.zeros((len(self.alpha), len(t)))
        for index in range(len(self.alpha)):
            problem = np.full(4 * len(t), index)
            values = self._divergence(problem, np.tile(j, len(t)), np.tile(direction, len(t)), np.repeat(t, 4))
            result[index] = values.reshape(len(t), 4).max(axis=1)
        return result

    def largest(self, t: float) -> Floats:
        """Largest divergence for a move of at most t: exact, it grows with t and every j is tried."""
        j, direction = np.tile(np.arange(self.cohort), 2), np.repeat([0, 1], self.cohort)
        values = [
            self._divergence(np.full(len(j), index), j, direction, np.full(len(j), t)).max()
            for index in range(len(self.alpha))
        ]
        return np.array(values)

    def certified(self, slope: Floats, farthest: float, tolerance: Floats, most: int) -> Floats:
        """Upper bound on sup over j, direction and t of the divergence minus slope t^2."""
        cuts = farthest * np.array([0.0, 0.03, 0.3, 1.0])
        kinds = [(j, direction) for j in range(self.cohort) for direction in (0, 1)]
        low = np.array([(*kind, t) for kind in kinds for t in cuts[:-1]], dtype=float)
        high = np.array([(*kind, t) for kind in kinds for t in cuts[1:]], dtype=float)
        orders = len(self.alpha)
        found = supremum(
            lambda problem, a, b: self._evaluate(problem, a, b, slope),
            np.tile(low, (orders, 1)),
            np.tile(high, (orders, 1)),
            problem=np.repeat(np.arange(orders), len(low)),
            tolerance=tolerance + 1e-300,
            widths=lambda a, b: np.stack([np.zeros(len(a)), np.zeros(len(a)), b[:, 2] - a[:, 2]], axis=1),
            most=most,
        )
        return np.maximum(found, 0.0)

    def _evaluate(self, problem: Ints, low: Floats, high: Floats, slope: Floats) -> tuple[Floats, Floats]:
        """Attained at the far end; bounded by the divergence there, or by the second order as for one coin."""
        j, direction, t0, t1 = low[:, 0].astype(int), low[:, 1].astype(int), low[:, 2], high[:, 2]
        far, weight = self._blocks(self._far_and_weight, problem, j, direction, t1)
        s, alpha = slope[problem], self.alpha[problem]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            w = alpha * (alpha - 1) * weight
            stationary = 1 / ((alpha - 1) * s) - 1 / w
            u = np.clip(np.where(np.isnan(stationary), np.inf, stationary), t0 * t0, t1 * t1)
            second = np.where(np.isfinite(w), np.log1p(w * u) / (alpha - 1) - s * u, np.inf)
        return np.minimum(far - s * t0 * t0, second), far - s * t1 * t1

    def _divergence(self, problem: Ints, j: Ints, direction: Ints, t: Floats) -> Floats:
        return self._blocks(self._far_and_weight, problem, j, direction, t)[0]

    def _blocks(self, function: Any, *arrays: Any) -> tuple[Floats, Floats]:
        rows = max(1, _BLOCK // (self.cohort + 1))
        parts = [function(*(a[i : i + rows] for a in arrays)) for i in range(0, len(arrays[0]), rows)]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def _far_and_weight(self, problem: Ints, j: Ints, direction: Ints, t: Floats) -> tuple[Floats, Floats]:
        """The divergence of a move by t, and w with sum P^a Q^(1-a) - 1 <= a (a-1) w tau^2 for every move tau <= t."""
        alpha = self.alpha[problem][:, None]
        step = np.where(direction == 0, t, -t)[:, None]
        difference = self.difference[j]
        first = self.at_floor[j] + np.where(direction == 1, t, 0.0)[:, None] * difference
        second = first + step * difference
        kept = (first > _SMALLEST_MASS) & (second > _SMALLEST_MASS)
        first, second = np.where(kept, first, 1.0), np.where(kept, second, 1.0)
        difference = np.where(kept, difference, 0.0)
        with np.errstate(over="ignore"):
            ratio = -step * difference / second  # P/Q - 1
            log_ratio = np.log1p(np.maximum(ratio, -1 + 1e-16))
            exact = np.expm1(alpha * log_ratio) - alpha * ratio
            series = alpha * (alpha - 1) / 2 * ratio**2 * (1 + (alpha - 2) / 3 * ratio)
            excess = np.where(np.abs(alpha * ratio) < 1e-4, series, exact)
            total = np.sum(second * np.where(kept, excess, 0.0), axis=1)
            near_end = np.sum(difference**2 / first, axis=1)
            far_end = np.sum(np.exp(alpha * log_ratio) * difference**2 / second, axis=1)
        divergence = np.log1p(np.maximum(total, 0.0)) / (alpha[:, 0] - 1)
        return divergence, near_end / 3 + far_end / 6


def _two_binomials(n: int, p: float, m: int, q: float) -> Floats:
    """Law of the sum of n coins of probability p and m of probability q, by convolution of positive numbers."""
    from scipy.stats import binom

    return np.convolve(binom.pmf(np.arange(n + 1), n, p), binom.pmf(np.arange(m + 1), m, q))
