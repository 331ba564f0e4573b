"""Grids of privacy losses: spacing, connecting the dots of a profile, and PLDs of participation schedules."""

import math
from functools import lru_cache

import numpy as np
import scipy

from accounting.arrays import Floats
from accounting.compose.loss_distribution import LossDistribution, convex_minorant
from accounting.errors import UnsupportedMechanism
from accounting.factorisation.toeplitz import squared_sensitivity
from accounting.gaussian.attacks import attack_pairs
from accounting.mechanisms import Mechanism, SingleRelease, gaussian_of, parts_of, sampling_of, schedule_of
from accounting.mechanisms.samplings.independent import full_round_multiplier, shift_in_clips
from accounting.participation import ratio_distribution
from accounting.participation.blocks import Blocks, OnceInBlock, dominating_blocks

# Largest mass of one release that is moved to an infinite loss, which keeps the upper bound.
_TAIL_MASS = 1e-19
_LARGEST_GRID = 1_000_000
_COARSEST = 1e-3


def interval(mechanism: Mechanism, *, finer: float = 1.0) -> float:
    """Return the grid spacing of the losses. It is fine against one release's spread, divided by `finer`, and within
    the memory limit.

    Every spacing d gives an upper bound. Connecting the dots increases the variance of each loss by at most about
    d^2/6, so a sixtieth of the spread (root mean square over all releases) adds a relative 5e-5 to the composed
    variance.
    """
    if not _sampled_parts(mechanism):
        return _COARSEST
    return max(min(_COARSEST, spread(mechanism) / 60) / finer, least_interval(mechanism), 1e-14)


def least_interval(mechanism: Mechanism) -> float:
    """Return the smallest spacing: the losses of `mechanism` then span _LARGEST_GRID steps."""
    parts = _sampled_parts(mechanism)
    moments = [_loss_moments(part, count) for part, count in parts]
    drift, variance = sum(mean for _, mean, _ in moments), sum(variance for _, _, variance in moments)
    largest = max((_largest_loss_of_part(part, count) for part, count in parts), default=0.0)
    return max(drift + 20 * math.sqrt(variance), 2 * largest) / _LARGEST_GRID


def _sampled_parts(mechanism: Mechanism) -> list[tuple[SingleRelease, int]]:
    """Return the parts with a sampling probability above 0."""
    return [(part, count) for part, count in parts_of(mechanism) if _sampling_and_mu(part)[0] > 0]


def spread(mechanism: Mechanism) -> float:
    """Return the root mean square of the standard deviations of the sampled releases' losses."""
    moments = [_loss_moments(part, count) for part, count in _sampled_parts(mechanism)]
    return math.sqrt(sum(variance for _, _, variance in moments) / sum(releases for releases, _, _ in moments))


def _loss_moments(part: SingleRelease, count: int) -> tuple[int, float, float]:
    """Return (number of releases, mean, variance) of the sum of losses; mean and variance are the larger of both
    orders.
    """
    if (squared := squared_shift(part, count)) is not None:  # composes in closed form to one release
        return 1, squared / 2, squared
    if found := blocks(part, count):
        (of_part, shift), approximate = found, ratio_distribution.approximate_loss_moments
        sums = [sum(times * approximate(block, shift)[k] for block, times in of_part) for k in (0, 1)]
        return sum(times for _, times in of_part), sums[0], sums[1]
    orders = [pair.loss_moments() for pair in attack_pairs(part)]
    return count, count * max(mean for mean, _ in orders), count * max(variance for _, variance in orders)


def squared_shift(part: SingleRelease, count: int) -> float | None:
    """Return mu^2 of the one Gaussian to which `count` such releases compose; None if participation is secret, or the
    noise is not Gaussian.

    An order that is public given a client's secret lane counts as public, which is an upper bound by joint convexity.
    """
    noise, schedule = gaussian_of(part), schedule_of(part)
    if noise is None or sampling_of(part).secret_in_lane:
        return None
    return (count if schedule is None else squared_sensitivity(schedule, count)) * noise.mu**2


def blocks(part: SingleRelease, count: int) -> tuple[Blocks, float] | None:
    """Return blocks that dominate the first `count` rounds of a secret schedule, and the shift s; None for other
    releases.
    """
    schedule, noise = schedule_of(part), gaussian_of(part)
    if schedule is None or noise is None or not schedule.secret_in_lane:
        return None
    return dominating_blocks(schedule, count), noise.mu * schedule.norm(count)


def _largest_loss_of_part(part: SingleRelease, count: int) -> float:
    found = blocks(part, count)
    if found is None:
        return largest_loss(part)
    return max(ratio_distribution.largest_loss(block, found[1], _TAIL_MASS) for block, _ in found[0])


def _sampling_and_mu(part: SingleRelease) -> tuple[float, float]:
    """Return the sampling probability, and the largest shift of one round over the noise standard deviation."""
    noise, sampling = gaussian_of(part), sampling_of(part)
    if noise is None:
        raise UnsupportedMechanism(f"{type(part).__name__}: no privacy loss distribution is implemented.")
    multiplier = min(noise.noise_multiplier, full_round_multiplier(sampling))
    return sampling.probability, shift_in_clips(sampling, noise.adjacency) / multiplier


def largest_loss(part: SingleRelease) -> float:
    """Return a loss that one release exceeds with probability at most _TAIL_MASS."""
    return largest_shift_loss(*_sampling_and_mu(part))


def largest_shift_loss(q: float, mu: float, mass: float = _TAIL_MASS) -> float:
    """Return a loss that a shift mu with probability q exceeds with probability at most _TAIL_MASS."""
    if q == 0:
        return 0.0
    tail = float(-scipy.special.ndtri(min(0.5, mass / q)))
    return float(np.logaddexp(math.log1p(-q) if q < 1 else -math.inf, math.log(q) + mu * mu / 2 + tail * mu))


def connect_dots(spacing: float, forth: Floats, back: Floats) -> LossDistribution:
    """Return the privacy loss distribution on the grid -m..m whose profile has the given values at the grid points.

    Source: Doroshenko et al. 2022, Algorithm 1. `forth` and `back` are the profiles of the two orders of the neighbours
    at losses 0, d, ..., m d. Let u_k be the first profile and v_k the second. The masses of the first neighbour are p_k
    = ((u_(k-1) - u_k) - e^-d (u_k - u_(k+1))) / (1 - e^-d) for k >= 1, p_-k = e^(-kd) times that expression in v, and
    mass beyond m d is at an infinite loss.
    Direction of error: the distribution dominates (upper bound). Masses at negative losses are computed from the other
    order, so that rounding errors are relative, without subtracting profiles near 1. e^-d is not subtracted from 1
    either, which would increase rounding errors a thousandfold.
    """
    shrink, width = math.exp(-spacing), -math.expm1(-spacing)

    def masses(profile: Floats) -> Floats:
        decreases = -np.diff(np.minimum.accumulate(np.clip(profile, 0.0, 1.0)))
        after = np.append(decreases[1:], 0.0)
        return np.asarray(np.maximum((decreases - after) / width + after, 0.0))

    centre = 1 - forth[0] - shrink * ((forth[0] - forth[1]) + (back[0] - back[1])) / width
    above = masses(forth)
    below = np.exp(-spacing * np.arange(1, len(back))) * masses(back)
    probabilities = np.concatenate([below[::-1], [max(float(centre), 0.0)], above])
    return LossDistribution(spacing=spacing, lowest=-len(below), masses=probabilities, infinite=float(forth[-1]))


_COARSE_FROM = 1.5
"""Shift from which the grid of a block's distribution may be coarser than
`ratio_distribution.divergences_with_public_round`.
"""
_LARGEST_LOG_GAMMA = 690.0
"""Largest log gamma in the range of doubles. Above it the client's round of participation counts as public."""


@lru_cache(maxsize=256)
def block_distributions(block: OnceInBlock, shift: float, interval: float) -> tuple[LossDistribution, LossDistribution]:
    steps = math.ceil(ratio_distribution.largest_loss(block, shift, _TAIL_MASS) / interval) + 1
    losses = interval * np.arange(steps + 1, dtype=float)
    if losses[-1] > _LARGEST_LOG_GAMMA:
        forth, back = ratio_distribution.divergences_with_public_round(block, shift, losses)
        return connect_dots(interval, forth, back), connect_dots(interval, back, forth)
    forth, back = ratio_distribution.divergences(block, shift, losses)
    if shift > _COARSE_FROM:
        public = ratio_distribution.divergences_with_public_round(block, shift, losses)
        forth, back = (_smaller_profile(losses, one, two) for one, two in zip((forth, back), public, strict=True))
    return connect_dots(interval, forth, back), connect_dots(interval, back, forth)


def _smaller_profile(losses: Floats, one: Floats, two: Floats) -> Floats:
    """Return the largest curve that is at most both curves and convex in gamma; the exact profile is such a curve."""
    lower = np.minimum(one, two)
    return lower if np.all(lower == one) or np.all(lower == two) else convex_minorant(np.exp(losses), lower)
