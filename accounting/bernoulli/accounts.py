"""Accounts of Bernoulli uploads for `accounting.compose`: sums and individually visible uploads.

Dominating Gaussian pairs: docs/theory-bernoulli.md, Theorem 7.
"""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from accounting.arrays import Floats
from accounting.bernoulli import debias, exact
from accounting.bernoulli.certificate import Path, cached_path, path_of
from accounting.bernoulli.channel import channel_rdp
from accounting.bernoulli.growth import ROUNDED, Coordinates, growth_of
from accounting.bernoulli.sums import LARGEST_COHORT, aggregate_rdp
from accounting.gaussian.subsampling import amplified_curve
from accounting.mechanisms import Sampling
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.kinds import Account

_ROUNDING = 1 + 1e-12
_SMALLEST_LOSS = 1e-60
_SMALLEST_FLOOR = 1e-60
"""Smallest floor of probabilities for which squared Fisher distances are in the range of doubles."""


def dominating_mu(release: BernoulliAggregate | BernoulliChannel, in_clips: float, lost: float) -> float | None:
    """Return mu of a Gaussian pair that dominates one release, as `mechanisms.kinds.Account.dominating_mu` requires.

    in_clips: distance of neighbours' probabilities over the clip of one client: 1, or 2 if one client replaces another.
    Units: none.
    Direction of error: upwards. Returns None if the certificate fails or cannot be computed: likelihood ratios are too
    large, Bernoulli samples too few, or moves too many.
    """
    if lost < _SMALLEST_LOSS or release.floor < _SMALLEST_FLOOR:
        return None
    floor, l2, linf = _floor_and_clips(release)
    squared = (in_clips * l2) ** 2
    coordinates = Coordinates(
        coins=min(release.cohort, LARGEST_COHORT) if isinstance(release, BernoulliAggregate) else 1,
        floor=floor,
        # Distance of a probability in the sum from the public one; None if only the floor bounds it.
        largest_distance=None if getattr(release, "others", "") == "anywhere" else linf,
        move=in_clips * linf,
        fisher=release.clip_metric == "fisher",
        reference=None if release.reference is None or release.noise_std else release.reference,
    )
    # Powers of ten and two, so that similar arguments share one cached path.
    zeta, farthest = 10.0 ** math.floor(math.log10(lost / squared)), 2.0 ** math.ceil(math.log2(squared))
    if zeta * squared > lost:
        zeta /= 10
    path = _cached_path(coordinates, min(zeta, 0.1), farthest)
    variance = math.inf if path is None else path.variance(squared)
    return math.sqrt(variance) * _ROUNDING if math.isfinite(variance) else None


@lru_cache(maxsize=64)
def _cached_path(coordinates: Coordinates, zeta: float, squared_norm: float) -> Path | None:
    def compute() -> Path | None:
        growth = growth_of(coordinates)
        return None if growth is None else path_of(growth, zeta, squared_norm)

    return cached_path(coordinates, zeta, squared_norm, compute)


def _floor_and_clips(release: BernoulliAggregate | BernoulliChannel) -> tuple[float, float, float]:
    """Return (floor, L2 clip, L-infinity clip) of the means g(theta) of the samples, widened by float32 rounding.

    With noise [c, 1-c] becomes [g(c), g(1-c)], and clips are multiplied by g'(1/2).
    """
    floor, slope = release.floor, 1.0
    if release.noise_std:
        slope = float(debias.clipped_mean_slope(0.5, c=floor, noise_std=release.noise_std)) * _ROUNDING
        floor = debias.reachable(c=floor, noise_std=release.noise_std)[0] / _ROUNDING
    rounded, widest = ROUNDED, 1 - 2 * floor
    if release.clip_metric == "fisher":
        rounded, widest = ROUNDED / math.sqrt(floor * (1 - floor)), 1 / math.sqrt(floor * (1 - floor))
    given = [slope * clip for clip in (release.l2_clip, release.linf_clip) if clip is not None]
    linf = min(*given, widest) + rounded
    root = math.sqrt(release.dimension)
    l2 = root * linf if release.l2_clip is None else min(slope * release.l2_clip + root * rounded, root * linf)
    return floor, l2 * _ROUNDING, linf * _ROUNDING


COIN_ORDERS: Floats = np.array([2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64], dtype=float)
"""Orders at which the divergence of sums of Bernoulli samples is computed, with one search per order."""

SAMPLED_COIN_ORDERS: Floats = np.arange(2.0, COIN_ORDERS[-1] + 1)
"""Orders for sampled cohorts: all integers. Their base curve is interpolated by chords between COIN_ORDERS, which is
fast.
"""


def channel_renyi(orders: Floats, release: BernoulliChannel) -> Floats:
    """Return Renyi bounds of individually visible uploads (`bernoulli.channel`)."""
    return np.asarray(channel_rdp(orders, **_channel_arguments(release)))


def aggregate_renyi(orders: Floats, release: BernoulliAggregate) -> Floats:
    """Return Renyi bounds of sums (`bernoulli.sums`)."""
    return np.asarray(aggregate_rdp(orders, cohort=release.cohort, **_channel_arguments(release)))


def _channel_arguments(release: BernoulliAggregate | BernoulliChannel) -> dict[str, Any]:
    return {
        "dimension": release.dimension,
        "c": release.floor,
        "noise_std": release.noise_std,
        "l2_sensitivity": release.euclidean_sensitivity(release.l2_clip),
        "linf_sensitivity": release.euclidean_sensitivity(release.linf_clip),
    }


def aggregate_sampled(orders: Floats, release: BernoulliAggregate, sampling: Sampling) -> Floats:
    """Return the sampled bounds of `gaussian.subsampling`. Their base curve is given by chords of (alpha - 1) rho,
    which is convex in alpha.
    """
    base = replace(release, adjacency=sampling.base_adjacency(release.adjacency))

    def chord_curve(at_orders: Floats) -> Floats:
        return np.interp(at_orders, COIN_ORDERS, (COIN_ORDERS - 1) * _divergence_at_orders(base)) / (at_orders - 1)

    return amplified_curve(orders, chord_curve, release.adjacency, sampling, largest=COIN_ORDERS[-1])


@lru_cache(maxsize=64)
def _divergence_at_orders(release: BernoulliAggregate) -> Floats:
    return aggregate_renyi(COIN_ORDERS, release)


CHANNEL = Account(
    renyi=channel_renyi,
    orders=(COIN_ORDERS, SAMPLED_COIN_ORDERS),
    exact=exact.exact_epsilon,
    exact_fits=exact.fits_exact_account,
    dominating_mu=dominating_mu,
)
AGGREGATE = Account(
    renyi=aggregate_renyi,
    sampled=aggregate_sampled,
    orders=(COIN_ORDERS, SAMPLED_COIN_ORDERS),
    dominating_mu=dominating_mu,
)
