"""Renyi bounds for sums of Bernoulli uploads under secure aggregation.

Exactly K clients draw independent samples with probabilities in [c, 1-c]; the server sees, per coordinate, only the
number of ones. One client's probabilities move by at most Delta in L2 (or t in L-infinity). Proof:
docs/theory-bernoulli.md, Theorem 6.
"""

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats, Ints
from accounting.bernoulli import debias, majorant
from accounting.bernoulli.channel import Bound, channel_bound
from accounting.bernoulli.divergence import floor_of
from accounting.bernoulli.majorant import certified_supremum, supremum_above_chord

# Number of elements of one block of sums, which should fit into the processor cache.
_BLOCK = 200_000
_MIXERS: Ints = np.array([0x1F3D5B79A7C5E30D, 0x2545F4914F6CDD1D, 0x369DEA0F31A53F85, 0x27BB2EE687B0B0FD])
"""Odd factors by which the numbers of a row are mixed into one in which rows differ."""


class SumDivergences:
    """Divergences of a sum in which one Bernoulli sample moves between c and c + t; of the other K-1 samples j are at
    1-c and the rest at c.

    Direction 0 is the divergence of the sum at c from the sum at c + t, direction 1 the reverse. Moves near 1-c are
    mirror images (ones <-> zeros), with K-1-j in place of j. A box is (j, direction, t) with j from j0 to j1. Its bound
    uses only j0 samples at 1-c and K-1-j1 samples at c, which all j of the box share. Dropping independent samples does
    not decrease the divergence (data processing), so this bounds every j of the box.
    """

    def __init__(self, cohort: int, c: float, alpha: Floats) -> None:
        self.cohort, self.c, self.alpha = cohort, c, alpha
        largest = min(float(np.max(alpha)) * math.log((1 - c) / c), LARGEST_EXPONENT)
        self._distributions = DistributionCache(cohort, c, smallest_mass=_RELATIVE_MASS * math.exp(-largest))
        self._known: tuple[Ints, Floats] = np.zeros((4, 0), dtype=np.int64), np.zeros((2, 0))

    def attained(self, t: Floats) -> Floats:
        """Return attained values: the largest divergence over both directions with all other samples at one end.
        Shape: [orders, t].
        """
        kinds = [(j, direction) for j in {0, self.cohort - 1} for direction in (0, 1)]
        shape = (len(self.alpha), len(t), len(kinds))
        problem, move_index, kind = (index.ravel() for index in np.indices(shape))
        j, direction = np.array(kinds)[kind].T
        total, _ = self._moments(problem, j, j, direction, t[move_index])
        return np.asarray((np.log1p(total) / (self.alpha[problem] - 1)).reshape(shape).max(axis=2))

    def largest_up_to(self, t: float) -> Floats:
        """Return an upper bound, within 1e-4, on the divergence for moves of at most t; the divergence increases in
        t.
        """
        attained = self.attained(np.array([t]))[:, 0]
        return self._certified_growth(np.zeros(len(self.alpha)), [(t, t)], attained * 1e-4, 10**7)

    def supremum_minus_slope(self, slope: Floats, farthest: float, tolerance: Floats, most: int) -> Floats:
        """Return an upper bound on sup over j, direction and t <= farthest of the divergence minus slope t^2."""
        cuts = farthest * np.array([0.0, 0.001, 0.03, 0.3, 1.0])
        return np.maximum(self._certified_growth(slope, list(pairwise(cuts)), tolerance, most), 0.0)

    def _certified_growth(
        self, slope: Floats, moves: list[tuple[float, float]], tolerance: Floats, most: int
    ) -> Floats:
        # From -1/2 to 2^n - 1/2, so that halving always splits between two integers.
        end = 2.0 ** (self.cohort - 1).bit_length() - 0.5
        ranges = [(-0.5, end), (-0.5, 0.5), (self.cohort - 1.5, self.cohort - 0.5)]
        boxes = np.array([((a, k, t0), (b, k, t1)) for a, b in ranges for k in (0, 1) for t0, t1 in moves])
        orders = len(self.alpha)
        return certified_supremum(
            lambda problem, low, high: self._evaluate(problem, low, high, slope),
            np.tile(boxes[:, 0], (orders, 1)),
            np.tile(boxes[:, 1], (orders, 1)),
            problem=np.repeat(np.arange(orders), len(boxes)),
            tolerance=tolerance + 1e-300,
            widths=self._widths,
            most=most,
        )

    def _integer_range(self, low: Floats, high: Floats) -> tuple[Ints, Ints]:
        """Return the smallest and the largest integer j <= K-1 of each box."""
        return np.ceil(low[:, 0]).astype(int), np.minimum(np.floor(high[:, 0]).astype(int), self.cohort - 1)

    def _widths(self, low: Floats, high: Floats) -> Floats:
        """Return the relative slack that each dimension of a box adds to its bound."""
        j0, j1 = self._integer_range(low, high)
        missing = np.maximum(j1 - j0, 0)
        t, span = high[:, 2], high[:, 2] - low[:, 2]
        spread = math.sqrt(self.cohort * self.c * (1 - self.c))
        chord_slack = np.minimum((span / np.maximum(t, 1e-300)) ** 2 / 4, 10 * (t / spread) ** 2)
        return np.stack([missing / (self.cohort - missing), np.zeros(len(span)), chord_slack], axis=1)

    def _evaluate(self, problem: Ints, low: Floats, high: Floats, slope: Floats) -> tuple[Floats, Floats]:
        """Return (the smallest of three upper bounds, an attained value) for each box; the latter only if j0 = j1.

        The bounds are the divergence at the largest t; the chord, because sum P^alpha Q^(1-alpha) is convex in t; and
        the second-order bound, as for one Bernoulli sample.
        """
        j0, j1 = self._integer_range(low, high)
        upper, attained = np.full(len(problem), -np.inf), np.full(len(problem), -np.inf)
        nonempty = np.flatnonzero(j0 <= j1)
        problem, j0, j1, direction = problem[nonempty], j0[nonempty], j1[nonempty], low[nonempty, 1].astype(int)
        t0, t1, s, alpha = low[nonempty, 2], high[nonempty, 2], slope[problem], self.alpha[problem]
        # Halved boxes share ends with each other and with the box that was halved.
        problems, firsts, lasts, directions = (np.tile(one, 2) for one in (problem, j0, j1, direction))
        totals, weights = self._moments_once(problems, firsts, lasts, directions, np.concatenate([t1, t0]))
        (end, start), weight = np.split(totals, 2), weights[: len(t1)]
        far = np.log1p(end) / (alpha - 1)
        second = majorant.second_order_bound(alpha, s, weight, t0, t1)
        chord = supremum_above_chord(alpha, s, t0, t1, start, end)
        upper[nonempty] = np.minimum(np.minimum(far - s * t0 * t0, second), chord)
        attained[nonempty] = np.where(j0 == j1, far - s * t1 * t1, -np.inf)
        return upper, attained

    def _moments_once(self, problem: Ints, j0: Ints, j1: Ints, direction: Ints, t: Floats) -> tuple[Floats, Floats]:
        """Return `_moments`, of which equal rows, and rows of the call before, are computed once."""
        before, values = self._known
        rows = np.stack([problem, j0 * self.cohort + j1, direction, np.asarray(t + 0.0).view(np.int64)])
        every = np.concatenate([before, rows], axis=1)
        mixed = (every * _MIXERS[:, None]).sum(axis=0)
        _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
        if not np.array_equal(every[:, first[place]], every):  # different rows with one sum
            return self._moments(problem, j0, j1, direction, t)
        found, new = np.empty((2, len(first))), first >= before.shape[1]
        found[:, ~new] = values[:, first[~new]]
        which = first[new] - before.shape[1]
        found[:, new] = self._moments(problem[which], j0[which], j1[which], direction[which], t[which])
        total, weight = found[:, place[before.shape[1] :]]
        self._known = rows, np.stack([total, weight])
        return total, weight

    def _moments(self, problem: Ints, j0: Ints, j1: Ints, direction: Ints, t: Floats) -> tuple[Floats, Floats]:
        """Return for each row F = sum P^a Q^(1-a) - 1 at a move t, and w with F <= a (a-1) w tau^2 for all moves tau
        <= t.
        """
        total, weight = np.empty(len(problem)), np.empty(len(problem))
        index = self._distributions.index(j0, j1)
        widest = self._distributions.mass.shape[1]
        for kind in (0, 1):
            rows = np.flatnonzero(direction == kind)
            rows = rows[np.argsort(self._distributions.width[index[rows]], kind="stable")]
            size = max(1, _BLOCK // widest)
            for block in (rows[i : i + size] for i in range(0, len(rows), size)):
                mass, tilt = self._distributions.window(index[block])
                total[block], weight[block] = _moments(self.alpha[problem[block]], mass, tilt, t[block], kind)
        return total, weight


def _moments(alpha: Floats, mass: Floats, tilt: Floats, t: Floats, direction: int) -> tuple[Floats, Floats]:
    """Return F = sum P^alpha Q^(1-alpha) - 1 for the distributions `mass` and `mass` (1 + t `tilt`), and its
    second-order weight w.

    Let z = t tilt, with sum mass z = 0. Then F is the sum of mass ((1+z)^e - 1 - e z), e = alpha in direction 1 and 1 -
    alpha in direction 0. No term is negative, so none cancel. The second derivative of F in t over alpha (alpha - 1) is
    sum mass tilt^2 (1+z)^(e-2), A at 0 and B at t. It is convex in t for e <= 2 and e >= 3; between, (1+z)^(e-2) <= 1 +
    (e-2) z. So it is at most its chord (or this line), and w = A/3 + max(A, B)/6.
    """
    beta = (alpha - 1)[:, None]
    e = alpha[:, None] if direction == 1 else -beta
    z = t[:, None] * tilt
    curved = mass * tilt * tilt
    with np.errstate(over="ignore", under="ignore"):
        slope = (beta if direction == 1 else -beta) * z
        rise = np.expm1((beta if direction == 1 else -beta) * np.log1p(z))
        grown = 1 + z
        terms = (grown * rise if direction == 1 else rise) - slope
        row, column = np.nonzero(np.abs(z) * np.maximum(1.0, np.abs(e)) < 1e-3)
        x, k = z[row, column], e[row, 0]
        series = 1 + (k - 2) / 3 * x * (1 + (k - 3) / 4 * x * (1 + (k - 4) / 5 * x))
        terms[row, column] = k * (k - 1) / 2 * x * x * series
        curvature = (1 + rise) / (grown if direction == 1 else grown * grown)
        if direction == 1 and np.any(between := (e > 2) & (e < 3)):
            curvature = np.where(between, 1 + (e - 2) * z, curvature)
        at_zero, at_t = curved.sum(axis=1), np.einsum("ij,ij->i", curved, curvature)
        total = np.einsum("ij,ij->i", mass, np.maximum(terms, 0.0, out=terms))
    return total, (at_zero / 3 + np.maximum(at_zero, at_t) / 6) * (1 + 1e-12)


# Masses below 1e-30 exp(-x) are dropped, where no term is multiplied by more than exp(x), x = alpha log((1-c)/c), at
# most LARGEST_EXPONENT. Their effect is below rounding, with relative size 1e-30 K alpha^2 / c^2.
_RELATIVE_MASS = 1e-30
LARGEST_EXPONENT = 600.0
_CUT = 1e-300


class DistributionCache:
    """Cache of distributions of sums of j0 samples at 1-c, K-1-j1 samples at c and the moving sample at c, with their
    tilts by its move.

    Each distribution is computed when needed. It stores the columns with more than `smallest_mass`, at most 37 standard
    deviations to either side, so memory grows with sqrt K.
    """

    def __init__(self, cohort: int, c: float, smallest_mass: float = 1e-290) -> None:
        self.cohort, self.c, self.smallest_mass = cohort, c, smallest_mass
        self.mass, self.tilt, self.width = np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0, dtype=int)
        self._keys, self._rows = np.zeros(0, dtype=int), np.zeros(0, dtype=int)

    def index(self, j0: Ints, j1: Ints) -> Ints:
        """Return the rows of these distributions, after computing missing ones."""
        keys = j0 * self.cohort + j1
        new = np.setdiff1d(keys, self._keys)
        if len(new):
            self._store(new, [self._new_distribution(*divmod(int(key), self.cohort)) for key in new])
        return np.asarray(self._rows[np.searchsorted(self._keys, keys)])

    def window(self, index: Ints) -> tuple[Floats, Floats]:
        """Return masses and tilts of these distributions, padded to the width of the widest."""
        columns = slice(0, int(self.width[index].max()))
        return self.mass[index, columns], self.tilt[index, columns]

    def _store(self, keys: Ints, computed: list[tuple[Floats, Floats]]) -> None:
        widths = np.array([len(mass) for mass, _ in computed])
        widest = max(self.mass.shape[1], int(widths.max()))
        rows = len(self.mass) + np.arange(len(computed))
        self.mass = _padded_rows(self.mass, [mass for mass, _ in computed], widest)
        self.tilt = _padded_rows(self.tilt, [tilt for _, tilt in computed], widest)
        self.width = np.concatenate([self.width, widths])
        self._keys, self._rows = np.concatenate([self._keys, keys]), np.concatenate([self._rows, rows])
        order = np.argsort(self._keys)
        self._keys, self._rows = self._keys[order], self._rows[order]

    def _new_distribution(self, j0: int, j1: int) -> tuple[Floats, Floats]:
        # The number of ones of samples at 1-c has the reversed distribution of that of samples at c.
        others = np.convolve(_binomial(self.cohort - 1 - j1, self.c), _binomial(j0, self.c)[::-1])
        heads, tails = np.append(0.0, others), np.append(others, 0.0)
        mass = self.c * heads + (1 - self.c) * tails
        above_threshold = np.flatnonzero(mass > self.smallest_mass)
        inside = slice(int(above_threshold[0]), int(above_threshold[-1]) + 1)
        return mass[inside], (heads - tails)[inside] / mass[inside]


def _padded_rows(rows: Floats, more: list[Floats], width: int) -> Floats:
    """Return `rows` and `more` as one array [rows + more, width], padded with zeros."""
    stacked = np.zeros((len(rows) + len(more), width))
    stacked[: len(rows), : rows.shape[1]] = rows
    for place, row in enumerate(more, start=len(rows)):
        stacked[place, : len(row)] = row
    return stacked


@lru_cache(maxsize=1024)
def _binomial(n: int, p: float) -> Floats:
    """Return the distribution of the sum of n Bernoulli samples of probability p, with truncated tails.

    The truncated mass is far below the mass that `DistributionCache` drops.
    """
    probabilities = scipy.stats.binom.pmf(np.arange(n + 1), n, p)
    above_threshold = np.flatnonzero(probabilities > _CUT)
    return np.asarray(probabilities[above_threshold[0] : above_threshold[-1] + 1])


LARGEST_COHORT = 10_000
"""Largest cohort of an account. Larger cohorts are accounted with this number of uploads, because larger
distributions take a minute and 0.6 GB.
"""
_ROUNDING = 1e-12
"""Relative safety margin above rounding errors of g and its slope."""


def aggregate_rdp(
    orders: ArrayLike,
    *,
    cohort: int,
    dimension: int,
    c: float,
    noise_std: float = 0.0,
    l2_sensitivity: float | None = None,
    linf_sensitivity: float | None = None,
) -> Floats:
    """Return the Renyi bounds of `aggregate_bound` without their names; a scalar order gives a scalar."""
    bound = aggregate_bound(
        orders,
        cohort=cohort,
        dimension=dimension,
        c=c,
        noise_std=noise_std,
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
    noise_std: float = 0.0,
    l2_sensitivity: float | None = None,
    linf_sensitivity: float | None = None,
) -> Bound:
    """Return Renyi bounds between sums of K = `cohort` uploads that differ in one client, in both directions.

    Claim: per coordinate the distribution is Poisson-binomial, and exp((alpha-1) D) is convex in each probability. So
    at its maximum the other K-1 probabilities are at c or 1-c (all numbers j at 1-c are tried), and the moving one is
    at c and c + t, in both directions. With phi(u) the largest such divergence for a move of square at most u and phi^
    its least concave majorant on [0, t^2], rho(alpha) <= d phi^(min(Delta^2/d, t^2)), and d phi(t^2) if only an
    L-infinity bound t is given (t = 1 - 2c without one). The bound is never above that for K = 1. Cohorts above
    LARGEST_COHORT have the bound of that cohort, because dropping independent samples does not decrease the divergence.
    With noise_std the samples have probabilities clip(theta + N(0, sigma^2), c, 1-c). Their means g(theta) are in
    [g(c), g(1-c)] and move by at most g'(1/2) times the move of theta, so the bound is that without noise for this
    floor and these sensitivities.
    Source: docs/theory-bernoulli.md, Theorem 6.
    Conditions: K is fixed and public, each of the K clients sends samples, and the cohort size reveals nothing.
    Shapes: `orders` [k] or a scalar; the bounds [k].
    Units: those of theta.
    Adjacency: the one of the sensitivities.
    Direction of error: upper bound, certified within about 1%.
    Errors: InvalidParameter for an order not finite and above 1, or without a sensitivity.

    >>> from accounting import bernoulli_sum
    >>> round(float(bernoulli_sum.aggregate_rdp(2.0, cohort=5, dimension=10, c=0.25, linf_sensitivity=0.1)), 4)
    0.162
    """
    alpha = np.atleast_1d(np.asarray(orders, dtype=float))
    d, k, floor = require.count(dimension=dimension), require.count(cohort=cohort), floor_of(c)
    single_upload = channel_bound(
        orders,
        dimension=d,
        c=floor,
        noise_std=noise_std,
        l2_sensitivity=l2_sensitivity,
        linf_sensitivity=linf_sensitivity,
    )
    if noise_std:
        slope = float(debias.clipped_mean_slope(0.5, c=floor, noise_std=noise_std)) * (1 + _ROUNDING)
        floor = debias.reachable(c=floor, noise_std=noise_std)[0] * (1 - _ROUNDING)
        l2_sensitivity = None if l2_sensitivity is None else slope * l2_sensitivity
        linf_sensitivity = None if linf_sensitivity is None else slope * linf_sensitivity
    inside = alpha * math.log((1 - floor) / floor) < LARGEST_EXPONENT
    if k == 1 or not inside.any():
        return single_upload
    sums = SumDivergences(min(k, LARGEST_COHORT), floor, alpha[inside])
    farthest = min(1 - 2 * floor, math.inf if linf_sensitivity is None else linf_sensitivity)
    bounds: dict[str, Floats] = {}
    if l2_sensitivity is not None:
        bounds["aggregate-l2"] = d * _majorant_bound(sums, min(l2_sensitivity**2 / d, farthest**2), farthest)
    if linf_sensitivity is not None:
        bounds["aggregate-linf"] = d * sums.largest_up_to(farthest)
    rdp, by = single_upload.rdp.copy(), list(single_upload.by)
    for name, values in bounds.items():
        for index, value in zip(np.flatnonzero(inside), values, strict=True):
            if value < rdp[index]:
                rdp[index], by[index] = value, name
    return Bound(rdp=rdp, by=tuple(by))


def _majorant_bound(sums: SumDivergences, step: float, farthest: float) -> Floats:
    if step == 0:
        return np.zeros(len(sums.alpha))
    t = majorant.sample_steps(step, farthest, 60)

    def certified(slope: Floats, tolerance: Floats, most: int) -> Floats:
        return sums.supremum_minus_slope(slope, farthest, tolerance, most)

    return majorant.majorant_bound(step, t, sums.attained(t), certified, majorant.SLOPE_INCREASES[:3])
