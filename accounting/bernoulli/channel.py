"""Renyi bounds of one client's Bernoulli upload (FedPM and FedMRN masks, stochastic signs), for large dimensions.

A client's probabilities theta in [c, 1-c]^d are noised with N(0, sigma^2), clipped to [c, 1-c], and sampled.
Coordinates are independent, so the upload is exactly a product of Bernoulli(g(theta_i)) (`bernoulli.debias`), and its
divergence is a sum over coordinates. Proofs: docs/theory-bernoulli.md.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.bernoulli import majorant
from accounting.bernoulli.cells import largest_divergence
from accounting.bernoulli.debias import clipped_mean
from accounting.bernoulli.divergence import divergence, floor_of, worst_divergence
from accounting.errors import InvalidParameter

__all__ = ["Bound", "channel_bound", "channel_rdp", "divergence", "fedpm_bound", "floor_of", "worst_divergence"]

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
    names = list(bounds)
    table = np.array([bounds[name] for name in names])
    smallest = np.argmin(table, axis=0)
    return Bound(rdp=table.min(axis=0), by=tuple(names[i] for i in smallest))


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
