"""Certified upper bounds on the divergence of one noised Bernoulli sample minus a slope times its squared move.

Proofs: docs/theory-bernoulli.md, Theorem 5.
"""

from itertools import pairwise

import numpy as np

from accounting.arrays import Floats, Ints
from accounting.bernoulli.debias import clipped_mean, clipped_mean_slope
from accounting.bernoulli.divergence import divergence
from accounting.bernoulli.majorant import certified_supremum, supremum_above_chord


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
    grid = [(a0, t0, a1, t1) for a0, a1 in pairwise(a_cuts) for t0, t1 in pairwise(t_cuts)]
    boxes = np.array(grid)
    count = len(boxes)
    problem = np.repeat(np.arange(len(alpha)), count)
    low, high = np.tile(boxes[:, :2], (len(alpha), 1)), np.tile(boxes[:, 2:], (len(alpha), 1))
    cells = _Cells(alpha, slope, c, sigma)
    sampled = np.maximum.reduceat(cells.value(problem, low, high), np.arange(0, len(problem), count))
    allowed = np.maximum(tolerance, 1e-3 * np.maximum(sampled, 0.0)) + 1e-300
    return np.maximum(
        certified_supremum(
            cells.evaluate, low, high, problem=problem, tolerance=allowed, widths=cells.widths, most=most
        ),
        0.0,
    )


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
            value_at_point = (
                np.asarray(divergence(self.alpha[problem], self._g(a), self._g(a + t))) - self.slope[problem] * t * t
            )
            best = np.maximum(best, np.where(inside, value_at_point, -np.inf))
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
        second_order = self._second_order_bound(alpha, slope, p0, p1, step, steepest, t0, t1)
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

    def _second_order_bound(
        self,
        alpha: Floats,
        slope: Floats,
        p0: Floats,
        p1: Floats,
        step: Floats,
        slope_of_g: Floats,
        t0: Floats,
        t1: Floats,
    ) -> Floats:
        """Return sup over t of log(1 + w G^2 t^2) / (alpha - 1) - slope t^2, w from `_second_order_weight`, G the
        largest g'.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            w = alpha * (alpha - 1) * self._second_order_weight(alpha, p0, p1, step) * slope_of_g**2
            stationary = 1 / ((alpha - 1) * slope) - 1 / w
            u = np.clip(np.where(np.isnan(stationary), np.inf, stationary), t0 * t0, t1 * t1)
            value = np.log1p(w * u) / (alpha - 1) - slope * u
        return np.asarray(np.where(np.isfinite(w), value, np.inf))

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
