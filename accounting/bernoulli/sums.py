"""Renyi bounds for sums of Bernoulli uploads under secure aggregation.

Exactly K clients draw independent samples with probabilities in [c, 1-c]; the server sees, per coordinate, only the
number of ones. One client's probabilities move by at most Delta in L2 (or t in L-infinity). Proof:
docs/theory-bernoulli.md, Theorem 6.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.bernoulli import debias, majorant
from accounting.bernoulli.channel import Bound, channel_bound, floor_of
from accounting.bernoulli.sum_distributions import LARGEST_EXPONENT, SumDivergences

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
