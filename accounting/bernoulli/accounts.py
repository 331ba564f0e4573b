"""Accounts of Bernoulli uploads, in sums and single ones, for `accounting.compose`.

Dominating Gaussian pairs: docs/theory-bernoulli.md, Theorem 7.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from accounting.arrays import Floats
from accounting.bernoulli import debias, pairs
from accounting.bernoulli.certificate import Path, path_of
from accounting.bernoulli.channel import channel_rdp
from accounting.bernoulli.growth import growth_of
from accounting.bernoulli.kept_paths import kept
from accounting.bernoulli.sums import LARGEST_COHORT, aggregate_rdp
from accounting.bernoulli.windows import ROUNDED, Coordinates
from accounting.gaussian.subsampling import amplified, lemma_adjacency
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.kinds import Account
from accounting.mechanisms.samplings import Sampling

_ROUNDING = 1 + 1e-12
_SMALLEST_LOSS = 1e-60


@dataclass(frozen=True, kw_only=True)
class _Moves:
    """Floor and clips of one client's means of Bernoulli samples, widened by the rounding of float32."""

    floor: float
    l2: float
    linf: float


def gaussian_above(coins: BernoulliAggregate | BernoulliChannel, in_clips: float, lost: float) -> float | None:
    """Return mu of a Gaussian pair above one release of `coins`, as `mechanisms.kinds.Account.above` has it.

    in_clips: distance of neighbours' probabilities over the clip of one client: 1, or 2 if one client replaces another.
    Units: none. Direction of error: upwards. None if the certificate does not pass or cannot be computed: likelihood
    ratios too large, too few Bernoulli samples, too many moves.
    """
    if lost < _SMALLEST_LOSS:
        return None
    moves = _moves(coins)
    squared = (in_clips * moves.l2) ** 2
    at = Coordinates(
        coins=min(coins.cohort, LARGEST_COHORT) if isinstance(coins, BernoulliAggregate) else 1,
        floor=moves.floor,
        reach=_largest_distance(coins, moves),
        move=in_clips * moves.linf,
        fisher=coins.clip_metric == "fisher",
        reference=None if coins.reference is None or coins.noise_std else coins.reference,
    )
    # Powers of ten and two: neighbouring questions have one path.
    zeta, farthest = 10.0 ** math.floor(math.log10(lost / squared)), 2.0 ** math.ceil(math.log2(squared))
    if zeta * squared > lost:
        zeta /= 10
    path = _path(at, min(zeta, 0.1), farthest)
    variance = math.inf if path is None else path.variance(squared)
    return math.sqrt(variance) * _ROUNDING if math.isfinite(variance) else None


@lru_cache(maxsize=64)
def _path(at: Coordinates, zeta: float, squared_norm: float) -> Path | None:
    def compute() -> Path | None:
        growth = growth_of(at)
        return None if growth is None else path_of(growth, zeta, squared_norm)

    return kept(at, zeta, squared_norm, compute)


def _moves(coins: BernoulliAggregate | BernoulliChannel) -> _Moves:
    """Return floor and clips; with noise those of g: [c, 1-c] becomes [g(c), g(1-c)], with slopes up to g'(1/2)."""
    floor, slope = coins.floor, 1.0
    if coins.noise_std:
        slope = float(debias.clipped_mean_slope(0.5, c=floor, noise_std=coins.noise_std)) * _ROUNDING
        floor = debias.reachable(c=floor, noise_std=coins.noise_std)[0] / _ROUNDING
    rounded = ROUNDED / math.sqrt(floor * (1 - floor)) if coins.clip_metric == "fisher" else ROUNDED
    widest = 1 / math.sqrt(floor * (1 - floor)) if coins.clip_metric == "fisher" else 1 - 2 * floor
    given = [slope * clip for clip in (coins.l2_clip, coins.linf_clip) if clip is not None]
    linf = min(*given, widest) + rounded
    root = math.sqrt(coins.dimension)
    l2 = root * linf if coins.l2_clip is None else min(slope * coins.l2_clip + root * rounded, root * linf)
    return _Moves(floor=floor, l2=l2 * _ROUNDING, linf=linf * _ROUNDING)


def _largest_distance(coins: BernoulliAggregate | BernoulliChannel, moves: _Moves) -> float | None:
    """Return the largest distance of a probability of the sum from the public one; for single uploads the clip."""
    if isinstance(coins, BernoulliAggregate) and coins.others == "anywhere":
        return None
    return moves.linf


COIN_ORDERS: Floats = np.array([2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64], dtype=float)
"""Orders at which sums of Bernoulli samples are computed, by one search each."""

SAMPLED_COIN_ORDERS: Floats = np.arange(2.0, COIN_ORDERS[-1] + 1)
"""Orders of sampled cohorts: all whole ones, amplified from chords between COIN_ORDERS, which takes little time."""


def channel_renyi(orders: Floats, coins: BernoulliChannel) -> Floats:
    """Return Renyi bounds of single uploads (`bernoulli.channel`)."""
    return np.asarray(channel_rdp(orders, **_bounds(coins)))


def aggregate_renyi(orders: Floats, coins: BernoulliAggregate) -> Floats:
    """Return Renyi bounds of sums (`bernoulli.sums`)."""
    return np.asarray(aggregate_rdp(orders, cohort=coins.cohort, **_bounds(coins)))


def _bounds(coins: BernoulliAggregate | BernoulliChannel) -> dict[str, Any]:
    return {
        "dimension": coins.dimension,
        "c": coins.floor,
        "noise_std": coins.noise_std,
        "l2_sensitivity": coins.euclidean_sensitivity(coins.l2_clip),
        "linf_sensitivity": coins.euclidean_sensitivity(coins.linf_clip),
    }


def aggregate_sampled(orders: Floats, coins: BernoulliAggregate, sampling: Sampling) -> Floats:
    """Return the generic bounds of `gaussian.subsampling`, from chords of (alpha - 1) rho, which is convex in alpha."""
    base = replace(coins, adjacency=lemma_adjacency(coins.adjacency, sampling))

    def between(at: Floats) -> Floats:
        return np.interp(at, COIN_ORDERS, (COIN_ORDERS - 1) * _knots(base)) / (at - 1)

    return amplified(orders, between, coins.adjacency, sampling, largest=COIN_ORDERS[-1])


@lru_cache(maxsize=64)
def _knots(coins: BernoulliAggregate) -> Floats:
    return aggregate_renyi(COIN_ORDERS, coins)


CHANNEL = Account(
    renyi=channel_renyi,
    orders=(COIN_ORDERS, SAMPLED_COIN_ORDERS),
    exact=pairs.epsilon_of,
    exact_fits=pairs.fits,
    above=gaussian_above,
)
AGGREGATE = Account(
    renyi=aggregate_renyi,
    sampled=aggregate_sampled,
    orders=(COIN_ORDERS, SAMPLED_COIN_ORDERS),
    above=gaussian_above,
)
