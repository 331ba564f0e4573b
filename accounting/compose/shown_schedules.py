"""Lower bound under participation schedules, from a test statistic with exactly known distributions.

In the attack of `accounting.participation` all other clients send zero, and the differing client sends C u whenever it
takes part. An observer of the rounds x_t computes the sum of phi(x_t). phi is the loss of one round of Poisson sampling
at some probability, rounded down to a grid. At the client's participation probability p this is nearly the loss if
rounds reveal little. At a much smaller probability phi is nearly p e^(s x - s^2 / 2), whose sum is the loss of a client
that takes part in one uniform round. Every probability gives a bound, and the largest is used (`TILTS`). The sum
depends only on the number K of participations, not on their rounds. Given K, phi(x) has the distribution of
x ~ N(s, 1) in K rounds and of x ~ N(0, 1) in all others, and the sum is their convolution. The sum is post-processing:
the divergence of its two distributions is at most that of all rounds.
"""

import math
from functools import lru_cache

import numpy as np
import scipy

from accounting.arrays import Floats
from accounting.compose.loss_distribution import LossDistribution, chernoff_window
from accounting.mechanisms.schedules import Allocation, BallsAndBins, MinSeparation, Schedule

TILTS = (1.0, 0.3, 0.1, 0.03)
"""Probabilities for phi, as multiples of p."""
_PER_SPREAD = 25.0
_FARTHEST = 12.0
_LARGEST_PHI = 200.0
"""Value at which phi is truncated. Larger values identify the neighbour, and cells up to s^2 / 2 would not fit in
memory.
"""
MASS_ERROR = 1e-14
"""Largest mass that rounding of the transform and wrapped tails can misplace in a group of cells."""
_GROUP = 1e-9
"""Smallest mass of a group of cells; cells with less mass are merged."""
_CUT = 1e-15


def independent_blocks(schedule: Schedule, count: int) -> tuple[tuple[int, int], ...]:
    """Return the first `count` rounds as independent blocks: pairs (rounds of a block, number of identically
    distributed blocks).
    """
    if not isinstance(schedule, BallsAndBins):
        return ((count, 1),)
    whole, remaining = divmod(count, schedule.bins)
    return tuple((rounds, copies) for rounds, copies in ((schedule.bins, whole), (remaining, 1)) if rounds and copies)


@lru_cache(maxsize=64)
def distributions_of_sum(schedule: Schedule, shift: float, count: int, tilt: float) -> tuple[Floats, Floats]:
    """Return the masses of the cells of the sum over the first `count` rounds, with the client and without it.

    shift: s; tilt: the probability of phi over p. Error of a mass: at most MASS_ERROR.
    """
    without, with_ = _distributions_of_phi(tilt * schedule.probability, shift)
    probabilities = counts_distribution(schedule, count)
    numbers = np.flatnonzero(probabilities > 1e-18)
    spread = [chernoff_window([(without, count)], _CUT)]
    spread += [chernoff_window([(without, count - k), (with_, k)], _CUT) for k in {int(numbers[0]), int(numbers[-1])}]
    first, last = min(low for low, _ in spread), max(high for _, high in spread)
    length = scipy.fft.next_fast_len(max(last - first + 1, len(with_.masses)), real=True)
    transform_without, transform_with = scipy.fft.rfft(without.masses, length), scipy.fft.rfft(with_.masses, length)
    mixed = sum(probabilities[k] * transform_with**k * transform_without ** (count - k) for k in numbers)
    q, p = (np.roll(scipy.fft.irfft(part, length), -(first % length)) for part in (transform_without**count, mixed))
    return _merged_cells(np.maximum(p, 0.0), np.maximum(q, 0.0))


def _distributions_of_phi(chance: float, shift: float) -> tuple[LossDistribution, LossDistribution]:
    """Return the distributions of phi on one grid, without and with the client."""
    spread = chance * math.sqrt(math.expm1(min(shift * shift, 50.0)))
    spacing = min(max(spread, 1e-6), 0.5) / _PER_SPREAD
    x = np.linspace(-_FARTHEST, _FARTHEST + shift, 400_001)
    phi = np.logaddexp(math.log1p(-chance), math.log(chance) + shift * x - shift * shift / 2)
    phi = np.minimum(phi, _LARGEST_PHI)
    cells = np.floor(phi / spacing).astype(np.int64)
    lowest, edges = int(cells[0]), np.concatenate([[-np.inf], x[1:], [np.inf]])
    distributions = []
    for mean in (0.0, shift):
        z = edges - mean
        masses = np.where(z[1:] > 0, -np.diff(scipy.special.ndtr(-z)), np.diff(scipy.special.ndtr(z)))
        summed = np.bincount(cells - lowest, weights=masses)
        distributions.append(
            LossDistribution(spacing=spacing, lowest=lowest, masses=np.asarray(summed / summed.sum()), infinite=0.0)
        )
    return distributions[0], distributions[1]


def _merged_cells(p: Floats, q: Floats) -> tuple[Floats, Floats]:
    """Merge consecutive cells until their mass is large enough."""
    group = np.floor(np.cumsum(np.minimum(p, q)) / _GROUP).astype(np.int64)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return np.add.reduceat(p, starts), np.add.reduceat(q, starts)


def counts_distribution(schedule: Schedule, count: int) -> Floats:
    """Return the probabilities of 0, 1, 2, ... participations of one client in the first `count` rounds.

    They are exact up to rounding; for a cyclic order they are those of the first client.
    """
    if isinstance(schedule, BallsAndBins):
        probabilities = np.zeros(count // schedule.bins + 2)
        probabilities[-1] = (count % schedule.bins) / schedule.bins
        probabilities[-2] = 1 - probabilities[-1]
        return probabilities
    if isinstance(schedule, Allocation):
        from scipy.stats import hypergeom

        numbers = np.arange(schedule.participations + 1)
        return np.asarray(hypergeom.pmf(numbers, schedule.rounds, schedule.participations, count), dtype=float)
    if not isinstance(schedule, MinSeparation):
        probabilities = np.zeros(schedule.most_participations(count) + 1)
        probabilities[-1] = 1.0
        return probabilities
    return _renewal_counts(schedule, count)


def _renewal_counts(schedule: MinSeparation, count: int) -> Floats:
    """Return the probabilities by a Markov chain over (remaining rest, participations so far), with a stationary
    start.
    """
    rest_rounds, coin = schedule.separation - 1, schedule.coin
    state = np.zeros((rest_rounds + 1, schedule.most_participations(count) + 2))
    state[:, 0] = schedule.probability
    state[0, 0] = 1 - rest_rounds * schedule.probability
    for _ in range(count):
        free = state[0].copy()
        participates = np.append(0.0, coin * free[:-1])
        state[0] = (1 - coin) * free
        if rest_rounds:
            state[0] += state[1]
            state[1:-1] = state[2:]
            state[-1] = participates
        else:
            state[0] += participates
    return np.asarray(state.sum(axis=0))
