"""Uploads of coins: FedPM masks, FedMRN masks, stochastic signs. Renyi bounds that hold at real model sizes.

A client's probabilities theta in [c, 1-c]^d are noised with N(0, sigma^2), clipped to [c, 1-c], and become coins.
Coordinates are independent, so the upload is exactly a product of Bernoulli(g(theta_i)) (`accounting.debias`) and its
divergence a sum over coordinates. Proofs: docs/theory-bernoulli.md.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import require
from accounting.branch_and_bound import supremum
from accounting.debias import clipped_mean, clipped_mean_slope
from accounting.errors import InvalidParameter

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# How far the slope of the majorant is raised, coarse to fine. Where phi is nearly linear, certifying its own slope
# takes for ever; every room gives a valid bound, a finer one a tighter bound if it ends within the boxes allowed.
_ROOMS = (1e-2, 1e-3, 1e-4)
_MOST_BOXES = (400_000, 15_000, 15_000)


def divergence(order: ArrayLike, p: ArrayLike, q: ArrayLike) -> Floats:
    """Renyi divergence of Bernoulli(p) from Bernoulli(q), elementwise with broadcasting; a scalar gives a scalar.

    1/(alpha-1) log(p^alpha q^(1-alpha) + (1-p)^alpha (1-q)^(1-alpha));  alpha = 1: Kullback-Leibler;  infinity: the
    largest log ratio. Domain: order >= 1, p and q in [0, 1]; infinite where Q misses mass of P.
    Exact to about 1e-14 relative, also for p near q: no first-order terms are formed, so none cancel.
    """
    alpha, first, second = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (order, p, q)))
    if np.any(~(alpha >= 1)):
        raise InvalidParameter(f"order={order!r}: must be at least 1.")
    for name, values in (("p", first), ("q", second)):
        if np.any(~((values >= 0) & (values <= 1))):
            raise InvalidParameter(f"{name}: must be probabilities in [0, 1].")
    heads, tails = _Side(first, second, first - second), _Side(1 - first, 1 - second, second - first)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        leibler = heads.leibler() + tails.leibler()
        result = np.where(alpha == 1, leibler, _renyi(alpha, heads, tails, leibler))
        result = np.where(np.isinf(alpha), np.maximum(heads.log_ratio, tails.log_ratio), result)
    missing = ((second == 0) & (first > 0)) | ((second == 1) & (first < 1))
    return np.asarray(np.where(missing, np.inf, np.where(first == second, 0.0, result)))[()]


class _Side:
    """One outcome: its mass under P and Q, and log P/Q (-infinity without mass under P)."""

    def __init__(self, p: Floats, q: Floats, difference: Floats) -> None:
        self.p, self.q, self.difference = p, q, difference
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            self.excess = difference / q
            apart = np.isinf(self.excess) | (self.excess < -0.9)
            log_ratio = np.where(apart, np.log(p) - np.log(q), np.log1p(self.excess))
        self.log_ratio = np.where(p > 0, log_ratio, -np.inf)

    def leibler(self) -> Floats:
        """P log(P/Q) - (P - Q): not negative, sums to the Kullback-Leibler divergence. By its series near P = Q."""
        x = self.excess
        plain = np.where(self.p > 0, self.p * self.log_ratio, 0.0) - self.difference
        return np.asarray(np.where(np.abs(x) < 0.05, self.difference * x * np.polyval(_LEIBLER, x), plain))

    def beyond(self, beta: Floats) -> Floats:
        """P (e^z - 1 - z) with z = beta log(P/Q): not negative. By its series near z = 0."""
        z = np.where(self.p > 0, beta * self.log_ratio, 0.0)
        return self.p * np.where(np.abs(z) < 0.2, z * z * np.polyval(_EXPONENTIAL, z), np.expm1(z) - z)


_LEIBLER = [(-1) ** k / (k * (k - 1)) for k in range(13, 1, -1)]  # ((1+x) log(1+x) - x) / x^2
_EXPONENTIAL = [1 / math.factorial(k) for k in range(13, 1, -1)]  # (e^z - 1 - z) / z^2


def _renyi(alpha: Floats, heads: _Side, tails: _Side, leibler: Floats) -> Floats:
    """sum P e^(beta log(P/Q)) - 1 = sum P (e^z - 1 - z) + beta KL, beta = alpha - 1; in logarithms where e^z is large."""
    beta = alpha - 1
    small = np.log1p(heads.beyond(beta) + tails.beyond(beta) + beta * leibler)
    up, down = beta * heads.log_ratio, beta * tails.log_ratio
    large = np.logaddexp(np.log(heads.p) + up, np.log(tails.p) + down)
    return np.asarray(np.where(np.maximum(up, down) < 30, small, large) / beta)


def worst_divergence(order: ArrayLike, *, c: float) -> Floats:
    """r_alpha(c, 1-c): no coin with probability in [c, 1-c] can show more."""
    floor = floor_of(c)
    return divergence(order, floor, 1 - floor)


def fedpm_bound(order: ArrayLike, rdp: ArrayLike, *, dimension: int, c: float) -> Floats:
    """The FedPM paper's amplification: min(rho, d r_alpha(c)) for a mechanism of Renyi cost `rdp` before the coins.

    Valid (data processing, and every coin at its worst), but no amplification once d is large. Elementwise.
    """
    d = require.count(dimension=dimension)
    return np.asarray(np.minimum(np.asarray(rdp, dtype=float), d * np.asarray(worst_divergence(order, c=c))))[()]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Renyi bounds at the orders, and which of the valid bounds was the smallest at each."""

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
    """The smallest valid Renyi bound of one coin upload; see `channel_bound`. A scalar order gives a scalar."""
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
    """Renyi divergence between the uploads of neighbours theta, theta' in [c, 1-c]^d, in both directions.

    Claim (docs/theory-bernoulli.md, Theorem 4): with phi(u) the largest r_alpha(g(a), g(b)), |a - b|^2 <= u, and phi^ its least
    concave majorant on [0, t^2], rho(alpha) <= d phi^(min(Delta^2 / d, t^2)) for |theta - theta'|_2 <= Delta and
    |theta - theta'|_inf <= t (t = 1 - 2c where no such bound is given), and rho(alpha) <= d phi(t^2). Also valid:
    alpha Delta^2 / (2 sigma^2) (data processing) and d r_alpha(c). The smallest is returned and named: "channel-l2",
    "channel-linf", "gaussian", "floor". At high orders an L-infinity bound beside the L2 one helps much: without it
    the worst client puts all its move into a few coordinates.

    Units: those of theta. noise_std = 0 is allowed: the coins alone. orders > 1, finite. Direction of error: upper
    bound; the majorant and the supremum are certified by branch and bound, within 1.3% of the exact
    phi^, mostly within 0.1%.
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
        nothing = np.zeros(len(alpha))
        bounds["channel-linf"] = d * _largest(alpha, nothing, floor, sigma, farthest, nothing, _MOST_BOXES[0])
    delta = math.inf if l2_sensitivity is None else require.nonnegative(l2_sensitivity=l2_sensitivity)
    if l2_sensitivity is not None:
        bounds["channel-l2"] = d * _majorant(alpha, min(delta * delta / d, farthest**2), floor, sigma, farthest)
    if sigma > 0:
        bounds["gaussian"] = alpha * min(delta, math.sqrt(d) * farthest) ** 2 / (2 * sigma * sigma)
    names = list(bounds)
    table = np.array([bounds[name] for name in names])
    smallest = np.argmin(table, axis=0)
    return Bound(rdp=table.min(axis=0), by=tuple(names[i] for i in smallest))


def floor_of(c: float) -> float:
    """c as a float, or an error: the floor of the probabilities, in (0, 1/2)."""
    value = require.real("a number in (0, 1/2)", c=c)
    if not 0 < value < 0.5:
        raise InvalidParameter(f"c={c!r}: must be in (0, 1/2), the floor of the probabilities.")
    return value


def _majorant(alpha: Floats, step: float, c: float, sigma: float, farthest: float) -> Floats:
    """phi^ at `step` by duality: for every slope s, phi^(u) <= s u + sup over (a, t) of r(g(a), g(a + t)) - s t^2."""
    if step == 0:
        return np.zeros(len(alpha))
    sampled = _sampled_slope(alpha, step, c, sigma, farthest)
    best = np.full(len(alpha), np.inf)
    for room, most in zip(_ROOMS, _MOST_BOXES, strict=True):
        slope = sampled * (1 + room)
        beyond = _largest(alpha, slope, c, sigma, farthest, slope * step * room / 4, most)
        best = np.minimum(best, slope * step + beyond)
        if np.any(beyond > slope * step * room):  # ended early; a finer room would too
            break
    return best


def _sampled_slope(alpha: Floats, step: float, c: float, sigma: float, farthest: float) -> Floats:
    """About the slope of the majorant at `step`: any slope is valid, a good one is tight."""
    t = sample_steps(step, farthest, 90)
    base = c + np.linspace(0, 1, 33)[:, None] * (1 - 2 * c - t)
    p = np.asarray(clipped_mean(base, c=c, noise_std=sigma))
    q = np.asarray(clipped_mean(np.minimum(base + t, 1 - c), c=c, noise_std=sigma))
    phi = np.array([np.max(np.asarray(divergence(a, p, q)), axis=0) for a in alpha])
    return majorant_slope(t * t, phi, step)


def sample_steps(step: float, farthest: float, count: int) -> Floats:
    """Rising moves up to `farthest` that hold sqrt(step) itself, denser towards 0."""
    here = min(math.sqrt(step), farthest)
    return np.unique(np.concatenate([np.geomspace(here / 30, farthest, count)[:-1], [here, farthest]]))


def majorant_slope(u: Floats, phi: Floats, step: float) -> Floats:
    """Slopes of the least concave majorants of phi [problems, n], sampled at rising u [n] that holds `step`, at `step`.

    Any slope gives a valid bound; this one is tight where the samples are dense.
    """
    u = np.concatenate([[0.0], u])
    phi = np.concatenate([np.zeros((len(phi), 1)), phi], axis=1)
    here = int(np.argmin(np.abs(u - step)))
    # The majorant at `step` is its highest chord; any slope between those of the neighbouring chords supports it.
    run = u[None, here + 1 :] - u[:here, None]
    rise = phi[:, None, here + 1 :] - phi[:, :here, None]
    chords = phi[:, :here, None] + rise / run * (step - u[:here, None])
    height = np.maximum(phi[:, here], chords.reshape(len(phi), -1).max(axis=1, initial=0.0))
    before = np.min((height[:, None] - phi[:, :here]) / (step - u[:here]), axis=1)
    after = np.max((phi[:, here + 1 :] - height[:, None]) / (u[here + 1 :] - step), axis=1, initial=0.0)
    return np.asarray(np.maximum((before + after) / 2, 1e-300))


def _largest(
    alpha: Floats, slope: Floats, c: float, sigma: float, farthest: float, tolerance: Floats, most: int
) -> Floats:
    """Certified sup over a, t of r(g(a), g(a + t)) - slope t^2, with c <= a, a + t <= 1 - c, 0 <= t <= farthest.

    One direction covers both: exchanging the worlds is the mirror a -> 1 - a - t.
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
        supremum(cells.evaluate, low, high, problem=problem, tolerance=allowed, widths=cells.widths, most=most),
        0.0,
    )


class _Cells:
    """Bounds of r(g(a), g(a + t)) - slope t^2 over boxes [a0, a1] x [t0, t1]."""

    def __init__(self, alpha: Floats, slope: Floats, c: float, sigma: float) -> None:
        self.alpha, self.slope, self.c, self.sigma = alpha, slope, c, sigma
        # Rounded upwards, as are all ends of images below: g is exact to 1e-15.
        self.top = min(float(clipped_mean(1 - c, c=c, noise_std=sigma)) + 2e-15, 1 - c)
        # g changes its slope over a distance of sigma; nothing changes faster than c.
        self.scale = min(max(sigma, 1e-3 * c), c, 1 - 2 * c) if sigma > 0 else c

    def _g(self, theta: Floats) -> Floats:
        return np.asarray(clipped_mean(np.clip(theta, self.c, 1 - self.c), c=self.c, noise_std=self.sigma))

    def evaluate(self, problem: Ints, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Upper bound and an attained value of each box."""
        return self.bound(problem, low, high), self.value(problem, low, high)

    def value(self, problem: Ints, low: Floats, high: Floats) -> Floats:
        """The function at the middle of the box, or at its corner of least a and largest t where that is allowed."""
        best = np.full(len(problem), -np.inf)
        for a, t in ((low[:, 0], high[:, 1]), ((low[:, 0] + high[:, 0]) / 2, (low[:, 1] + high[:, 1]) / 2)):
            inside = a + t <= 1 - self.c
            there = (
                np.asarray(divergence(self.alpha[problem], self._g(a), self._g(a + t))) - self.slope[problem] * t * t
            )
            best = np.maximum(best, np.where(inside, there, -np.inf))
        return best

    def bound(self, problem: Ints, low: Floats, high: Floats) -> Floats:
        """The smaller of two bounds: the divergence at the corners of the box's image, and the second-order one."""
        a0, a1, t0, t1 = low[:, 0], np.minimum(high[:, 0], 1 - self.c - low[:, 1]), low[:, 1], high[:, 1]
        alpha, slope = self.alpha[problem], self.slope[problem]
        p0, p1 = self._g(a0), self._g(np.maximum(a1, a0))
        steepest = np.clip(0.5, a0, np.minimum(np.maximum(a1, a0) + t1, 1 - self.c))
        slope_of_g = np.asarray(clipped_mean_slope(steepest, c=self.c, noise_std=self.sigma))
        peak = np.clip((1 - t1) / 2, a0, np.maximum(a1, a0))
        step = np.minimum(self._g(peak + t1) - self._g(peak) + 3e-15, slope_of_g * t1 * (1 + 1e-12))
        corners = self._corners(alpha, p0, p1, step) - slope * t0 * t0
        second_order = self._second_order(alpha, slope, p0, p1, step, slope_of_g, t0, t1)
        return np.asarray(np.where(a0 + t0 > 1 - self.c, -np.inf, np.minimum(corners, second_order)))

    def _corners(self, alpha: Floats, p0: Floats, p1: Floats, step: Floats) -> Floats:
        """exp((alpha-1) r) is jointly convex, so largest at a corner of p0 <= p <= p1, p <= q <= min(p + step, top)."""
        kink = np.clip(self.top - step, p0, p1)
        tops = [np.minimum(np.nextafter(p + step, 1.0), self.top) for p in (p0, p1, kink)]
        values = [np.asarray(divergence(alpha, p, np.maximum(q, p))) for p, q in zip((p0, p1, kink), tops, strict=True)]
        return np.asarray(np.maximum.reduce(values))

    def _second_order(
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
        """sup over t of log(1 + w G^2 t^2) / (alpha - 1) - slope t^2, w from `_weight`, G the largest g'."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            w = alpha * (alpha - 1) * self._weight(alpha, p0, p1, step) * slope_of_g**2
            stationary = 1 / ((alpha - 1) * slope) - 1 / w
            u = np.clip(np.where(np.isnan(stationary), np.inf, stationary), t0 * t0, t1 * t1)
            value = np.log1p(w * u) / (alpha - 1) - slope * u
        return np.asarray(np.where(np.isfinite(w), value, np.inf))

    def _weight(self, alpha: Floats, p0: Floats, p1: Floats, step: Floats) -> Floats:
        """w with sum P^alpha Q^(1-alpha) - 1 <= alpha (alpha-1) w tau^2 for p in [p0, p1], q = p + tau, tau <= step.

        The second derivative in q over alpha (alpha-1), p^alpha q^(-alpha-1) + (1-p)^alpha (1-q)^(-alpha-1), is convex
        in q: at most its chord from A at q = p to B at q = p + step. That gives A/2 + (B - A) tau / (6 step), so
        w = A/3 + max(A, B)/6 (B < A happens: w = A/3 + B/6 would fail for tau < step). With p/q put at its largest, w is
        convex in p both up to where p + step meets the top and from there.
        """
        kink = np.clip(self.top - step, p0, p1)
        ratio = np.exp(-alpha * np.log1p((np.minimum(p1 + step, self.top) - p1) / p1))
        weights = []
        for p in (p0, p1, kink):
            q = np.maximum(np.minimum(p + step, self.top), p)
            tails = np.exp(alpha * np.log1p((q - p) / (1 - q))) / (1 - q)
            here = 1 / p + 1 / (1 - p)
            weights.append(here / 3 + np.maximum(here, ratio / q + tails) / 6)
        return np.asarray(np.maximum.reduce(weights)) * (1 + 1e-12)

    def widths(self, low: Floats, high: Floats) -> Floats:
        """How much each dimension loosens the bound: a against the scale of g, t against itself."""
        span = high - low
        t = span[:, 1] / np.maximum(low[:, 1], 1e-9 * (1 - 2 * self.c))
        return np.stack([span[:, 0] / self.scale, t], axis=1)
