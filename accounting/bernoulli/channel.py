"""Renyi bounds of one client's Bernoulli upload (FedPM and FedMRN masks, stochastic signs), with certified suprema.

The suprema bound the divergence of one noised Bernoulli sample minus a slope times its squared move
(docs/theory-bernoulli.md, Theorem 5). A client's probabilities theta in [c, 1-c]^d are noised with N(0, sigma^2),
clipped to [c, 1-c], and sampled. Coordinates are independent, so the upload is exactly a product of
Bernoulli(g(theta_i)) (`bernoulli.debias`), and its divergence is a sum over coordinates. Proofs: docs/theory-
bernoulli.md.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats, Ints
from accounting.bernoulli import majorant
from accounting.bernoulli.debias import clipped_mean, clipped_mean_slope
from accounting.bernoulli.divergence import divergence, floor_of, worst_divergence
from accounting.bernoulli.majorant import certified_supremum, supremum_above_chord
from accounting.errors import InvalidParameter


def largest_divergence(
    alpha: Floats, slope: Floats, c: float, sigma: float, farthest: float, tolerance: Floats, most: int
) -> Floats:
    """Return a certified upper bound on sup over a, t of r(g(a), g(a + t)) - slope t^2, with c <= a, a + t <= 1 - c and
    0 <= t <= farthest.

    One direction covers both, because exchanging the neighbours is the mirror image a -> 1 - a - t.
    """
    if farthest <= 0:
        return np.zeros(len(alpha))
    t_cuts = np.concatenate([[0.0], np.geomspace(farthest * 1e-6, farthest, 13)])
    a_cuts = np.linspace(c, 1 - c, 9)
    boxes = np.array([(a0, t0, a1, t1) for a0, a1 in pairwise(a_cuts) for t0, t1 in pairwise(t_cuts)])
    count = len(boxes)
    problem = np.repeat(np.arange(len(alpha)), count)
    low, high = np.tile(boxes[:, :2], (len(alpha), 1)), np.tile(boxes[:, 2:], (len(alpha), 1))
    cells = _Cells(alpha, slope, c, sigma)
    sampled = np.maximum.reduceat(cells.value(problem, low, high), np.arange(0, len(problem), count))
    allowed = np.maximum(tolerance, 1e-3 * np.maximum(sampled, 0.0)) + 1e-300
    found = certified_supremum(
        cells.evaluate, low, high, problem=problem, tolerance=allowed, widths=cells.widths, most=most
    )
    return np.maximum(found, 0.0)


class _Cells:
    """Bounds of r(g(a), g(a + t)) - slope t^2 over boxes [a0, a1] x [t0, t1]."""

    def __init__(self, alpha: Floats, slope: Floats, c: float, sigma: float) -> None:
        self.alpha, self.slope, self.c, self.sigma = alpha, slope, c, sigma
        # Rounded upwards like all image bounds of this class; g is exact to 1e-15.
        self.top = min(float(clipped_mean(1 - c, c=c, noise_std=sigma)) + 2e-15, 1 - c)
        self.flattest = float(clipped_mean_slope(1 - c, c=c, noise_std=sigma))
        self.scale = min(c, 1 - 2 * c)

    def _g(self, theta: Floats) -> Floats:
        return np.asarray(clipped_mean(np.clip(theta, self.c, 1 - self.c), c=self.c, noise_std=self.sigma))

    def _slope(self, theta: Floats) -> Floats:
        """Return g', increased by the effect of rounding theta."""
        slope = np.asarray(clipped_mean_slope(theta, c=self.c, noise_std=self.sigma))
        return np.minimum(slope * (1 + 1e-12) + 1e-15 / max(self.sigma, 1e-300), 1.0)

    def evaluate(self, problem: Ints, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Return (upper bound, attained value) of the function on each box."""
        return self.bound(problem, low, high), self.value(problem, low, high)

    def value(self, problem: Ints, low: Floats, high: Floats) -> Floats:
        """Return the larger of the values at the centre of the box and at its corner of smallest a and largest t, if
        they are allowed.
        """
        best = np.full(len(problem), -np.inf)
        for a, t in ((low[:, 0], high[:, 1]), ((low[:, 0] + high[:, 0]) / 2, (low[:, 1] + high[:, 1]) / 2)):
            inside = a + t <= 1 - self.c
            there = divergence(self.alpha[problem], self._g(a), self._g(a + t)) - self.slope[problem] * t * t
            best = np.maximum(best, np.where(inside, there, -np.inf))
        return best

    def bound(self, problem: Ints, low: Floats, high: Floats) -> Floats:
        """Return the smallest of three upper bounds: at the corners of the box's image, of second order, and by
        chords in t.
        """
        a0, a1, t0, t1 = low[:, 0], np.minimum(high[:, 0], 1 - self.c - low[:, 1]), low[:, 1], high[:, 1]
        a1 = np.maximum(a1, a0)
        alpha, slope = self.alpha[problem], self.slope[problem]
        p0, p1 = self._g(a0), self._g(a1)
        steepest = self._slope(np.clip(0.5, a0, a1 + t1))
        step = self._largest_step(a0, a1, t1, steepest)
        far = self._corner_bound(alpha, p0, p1, step, self.top)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            weight = self._second_order_weight(alpha, p0, p1, step) * steepest**2
        second_order = majorant.second_order_bound(alpha, slope, weight, t0, t1)
        chords = self._chord_bound(alpha, slope, (a0, a1, t0, t1), steepest)
        upper = np.minimum(np.minimum(far - slope * t0 * t0, second_order), chords)
        return np.asarray(np.where(a0 + t0 > 1 - self.c, -np.inf, upper))

    def _largest_step(self, a0: Floats, a1: Floats, t: Floats, steepest: Floats, beyond: float = 0.0) -> Floats:
        """Return the largest g(a + t) - g(a), which increases in a up to (1 - t)/2 and then decreases. Above 1-c, g
        is extended with slope `beyond`, at most its smallest slope.
        """
        peak = np.clip((1 - t) / 2, a0, a1)
        past = np.maximum(peak + t - (1 - self.c), 0.0) * beyond
        return np.minimum(self._g(peak + t) + past - self._g(peak) + 3e-15, steepest * t)

    def _chord_bound(self, alpha: Floats, slope: Floats, box: tuple[Floats, ...], steepest: Floats) -> Floats:
        """Return the upper bound by chords. sum P^alpha Q^(1-alpha) is convex in q, and g(a + t) is at most its chord
        in t plus max -g'' (t1-t0)^2 / 8.

        Here g is extended as a line above 1-c, and q may exceed g(1-c), because with a cap the sum would not be convex
        in t.
        """
        a0, a1, t0, t1 = box
        bent = self._largest_curvature(a1 + t1) * (t1 - t0) ** 2 / 8
        p0, p1, beta = self._g(a0), self._g(a1), alpha - 1
        steps = [self._largest_step(a0, a1, t, steepest, self.flattest) + bent for t in (t0, t1)]
        straight = steepest * t1 < steps[1]  # g(a + t) - g(a) <= t max g', which is also a line
        steps = [np.where(straight, steepest * t, step) for t, step in zip((t0, t1), steps, strict=True)]
        with np.errstate(over="ignore"):
            start, end = (np.expm1(beta * self._corner_bound(alpha, p0, p1, step, 1.0)) for step in steps)
        return supremum_above_chord(alpha, slope, t0, t1, start, end)

    def _largest_curvature(self, high: Floats) -> Floats:
        """Return an upper bound on -g'' = (phi((1-c-theta)/sigma) - phi((theta-c)/sigma)) / sigma over theta <=
        high.
        """
        if self.sigma == 0:
            return np.zeros(len(high))
        nearest = np.maximum(1 - self.c - high, 0.0)
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.exp(-((nearest / self.sigma) ** 2) / 2) / (self.sigma * np.sqrt(2 * np.pi)))

    def _corner_bound(self, alpha: Floats, p0: Floats, p1: Floats, step: Floats, top: float) -> Floats:
        """Return the upper bound at corners. exp((alpha-1) r) is jointly convex, so its maximum is at a corner of p0
        <= p <= p1, p <= q <= min(p + step, top).
        """
        kink = np.clip(top - step, p0, p1)
        ends = [np.minimum(np.nextafter(p + step, 2.0), top) for p in (p0, p1, kink)]
        values = [np.asarray(divergence(alpha, p, np.maximum(q, p))) for p, q in zip((p0, p1, kink), ends, strict=True)]
        return np.asarray(np.maximum.reduce(values))

    def _second_order_weight(self, alpha: Floats, p0: Floats, p1: Floats, step: Floats) -> Floats:
        """Return w with sum P^alpha Q^(1-alpha) - 1 <= alpha (alpha-1) w tau^2 for p in [p0, p1], q = p + tau, tau <=
        step.

        The second derivative in q over alpha (alpha-1), p^alpha q^(-alpha-1) + (1-p)^alpha (1-q)^(-alpha-1), is convex
        in q. So it is at most its chord from A at q = p to B at q = p + step. That gives A/2 + (B - A) tau / (6 step),
        so w = A/3 + max(A, B)/6 (if B < A, w = A/3 + B/6 would fail for tau < step). With p/q at its largest value, w
        is convex in p on both sides of the point where p + step equals `top`.
        """
        kink = np.clip(self.top - step, p0, p1)
        ratio = np.exp(-alpha * np.log1p((np.minimum(p1 + step, self.top) - p1) / p1))
        weights = []
        for p in (p0, p1, kink):
            q = np.maximum(np.minimum(p + step, self.top), p)
            tails = np.exp(alpha * np.log1p((q - p) / (1 - q))) / (1 - q)
            at_p = 1 / p + 1 / (1 - p)
            weights.append(at_p / 3 + np.maximum(at_p, ratio / q + tails) / 6)
        return np.asarray(np.maximum.reduce(weights)) * (1 + 1e-12)

    def widths(self, low: Floats, high: Floats) -> Floats:
        """Return the slack that each dimension adds to the bound: for a from the changes of probability and g', for
        t from its relative width.
        """
        ends = np.clip(np.stack([low[:, 0], high[:, 0]]), self.c, 1 - self.c)
        slopes = np.asarray(clipped_mean_slope(ends, c=self.c, noise_std=self.sigma))
        bend = np.abs(slopes[0] - slopes[1]) / slopes.max(axis=0)
        span = high - low
        t = (span[:, 1] / np.maximum(low[:, 1], 1e-9 * (1 - 2 * self.c))) ** 2 / 2
        return np.stack([span[:, 0] / self.scale + 2 * bend, t], axis=1)


# Largest number of boxes in the search for one supremum.
_MOST_BOXES = 400_000


def fedpm_bound(order: ArrayLike, rdp: ArrayLike, *, dimension: int, c: float) -> Floats:
    """Return the amplified bound of the FedPM paper, min(rho, d r_alpha(c)), rho the Renyi bound `rdp` before sampling.

    Claim: the bound is valid, by data processing and the worst case of each coordinate. For large d it does not
    amplify.
    Source: Isik, Pase, Gündüz, Weissman, Zorzi 2023.
    Shapes: `order` and `rdp` broadcast.
    Adjacency: that of `rdp`.
    Direction of error: upper bound if `rdp` is an upper bound.
    Errors: InvalidParameter for c outside (0, 1/2), an order below 1 or a dimension below 1.

    >>> from accounting.bernoulli import fedpm_bound
    >>> round(float(fedpm_bound(2.0, 100.0, dimension=10, c=0.1)), 4)
    20.9323
    """
    d = require.count(dimension=dimension)
    return np.asarray(np.minimum(np.asarray(rdp, dtype=float), d * np.asarray(worst_divergence(order, c=c))))[()]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Smallest valid Renyi bound at each order, with its name.

    Shapes: rdp and by have one entry per order.

    >>> from accounting.bernoulli import channel_bound
    >>> channel_bound([2.0], dimension=10, c=0.1, noise_std=0.5, linf_sensitivity=0.1).by
    ('channel-linf',)
    """

    rdp: Floats
    by: tuple[str, ...]


def channel_rdp(
    orders: ArrayLike,
    *,
    dimension: int,
    c: float,
    noise_std: float,
    l2_sensitivity: float | None = None,
    linf_sensitivity: float | None = None,
) -> Floats:
    """Return the smallest valid Renyi bound of one Bernoulli upload at each order.

    Claim: the bound holds for the divergence in both directions.
    Source: docs/theory-bernoulli.md, Theorem 5.
    Shapes: that of `orders`; a scalar gives a scalar.
    Units: those of theta.
    Adjacency: the one of the sensitivities.
    Direction of error: upper bound.
    Errors: as `channel_bound`.

    >>> from accounting.bernoulli import channel_rdp
    >>> round(float(channel_rdp(2.0, dimension=10, c=0.1, noise_std=0.5, linf_sensitivity=0.1)), 4)
    0.1325
    """
    bound = channel_bound(
        orders,
        dimension=dimension,
        c=c,
        noise_std=noise_std,
        l2_sensitivity=l2_sensitivity,
        linf_sensitivity=linf_sensitivity,
    )
    return bound.rdp.reshape(np.shape(orders))[()]


def channel_bound(
    orders: ArrayLike,
    *,
    dimension: int,
    c: float,
    noise_std: float,
    l2_sensitivity: float | None = None,
    linf_sensitivity: float | None = None,
) -> Bound:
    """Return Renyi bounds between uploads of neighbours theta, theta' in [c, 1-c]^d, in both directions.

    Claim: with phi(u) the largest r_alpha(g(a), g(b)) for |a - b|^2 <= u, and phi^ its least concave majorant on [0,
    t^2], rho(alpha) <= d phi^(min(Delta^2 / d, t^2)) for |theta - theta'|_2 <= Delta and |theta - theta'|_inf <= t (t =
    1 - 2c without such a bound), and rho(alpha) <= d phi(t^2). Also valid: alpha Delta^2 / (2 sigma^2) (data
    processing) and d r_alpha(c). The smallest of the four is returned with its name: "channel-l2", "channel-linf",
    "gaussian" or "floor". At high orders an L-infinity bound in addition to the L2 bound lowers rho, because without it
    the worst client moves only a few coordinates.
    Source: docs/theory-bernoulli.md, Theorem 5.
    Shapes: `orders` [k] or a scalar; the bounds [k].
    Units: those of theta.
    Adjacency: the one of the sensitivities (zero-out, or replace-one with twice the clip).
    Direction of error: upper bound; majorant and supremum are certified by branch and bound. They are within 1.3% of
    the exact phi^, mostly within 0.1%.
    Errors: InvalidParameter for an order not finite and above 1, or without a sensitivity. noise_std = 0 is allowed.

    >>> from accounting.bernoulli import channel_bound
    >>> bound = channel_bound([2.0, 8.0], dimension=10, c=0.1, noise_std=0.0, linf_sensitivity=0.1)
    >>> bound.rdp.round(4).tolist()
    [1.0536, 4.6517]
    """
    alpha = np.atleast_1d(np.asarray(orders, dtype=float))
    if alpha.ndim != 1 or np.any(~((alpha > 1) & np.isfinite(alpha))):
        raise InvalidParameter(f"orders={orders!r}: must be finite numbers above 1.")
    d, floor = require.count(dimension=dimension), floor_of(c)
    sigma = require.nonnegative(noise_std=noise_std)
    if l2_sensitivity is None and linf_sensitivity is None:
        raise InvalidParameter("l2_sensitivity and linf_sensitivity are both missing: give at least one.")
    farthest = 1 - 2 * floor
    bounds: dict[str, Floats] = {"floor": d * np.asarray(worst_divergence(alpha, c=floor))}
    if linf_sensitivity is not None:
        farthest = min(require.nonnegative(linf_sensitivity=linf_sensitivity), farthest)
        zeros = np.zeros(len(alpha))
        bounds["channel-linf"] = d * largest_divergence(alpha, zeros, floor, sigma, farthest, zeros, _MOST_BOXES)
    delta = math.inf if l2_sensitivity is None else require.nonnegative(l2_sensitivity=l2_sensitivity)
    if l2_sensitivity is not None:
        bounds["channel-l2"] = d * _majorant_bound(alpha, min(delta * delta / d, farthest**2), floor, sigma, farthest)
    if sigma > 0:
        bounds["gaussian"] = alpha * min(delta, math.sqrt(d) * farthest) ** 2 / (2 * sigma * sigma)
    names, table = list(bounds), np.array(list(bounds.values()))
    return Bound(rdp=table.min(axis=0), by=tuple(names[i] for i in table.argmin(axis=0)))


def _majorant_bound(alpha: Floats, step: float, c: float, sigma: float, farthest: float) -> Floats:
    if step == 0:
        return np.zeros(len(alpha))
    t = majorant.sample_steps(step, farthest, 90)
    ends = np.geomspace(1e-4, 0.3, 30)
    base = c + np.unique([*np.linspace(0, 1, 41), *ends, *(1 - ends)])[:, None] * (1 - 2 * c - t)
    p = np.asarray(clipped_mean(np.clip(base, c, 1 - c), c=c, noise_std=sigma))
    q = np.asarray(clipped_mean(np.clip(base + t, c, 1 - c), c=c, noise_std=sigma))
    phi = np.array([np.max(np.asarray(divergence(a, p, q)), axis=0) for a in alpha])

    def certified(slope: Floats, tolerance: Floats, most: int) -> Floats:
        return largest_divergence(alpha, slope, c, sigma, farthest, tolerance, most)

    return majorant.majorant_bound(step, t, phi, certified, majorant.SLOPE_INCREASES)
