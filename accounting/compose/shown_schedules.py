"""Lower bound under participation schedules: a test of the rounds with exactly known errors.

The attack of `accounting.participation`: no other client sends anything, the differing client sends C u whenever it
takes part. An observer of the rounds x_t adds up phi(x_t), phi the loss of one round of Poisson sampling at some
probability, rounded down to a grid. At the client's probability p to take part that is nearly the loss if rounds reveal
little; at a much smaller one phi is nearly p e^(s x - s^2 / 2), whose sum is the loss of a client that takes part in
one uniform round. Any probability gives a bound, and the largest bound counts (`TILTS`). The sum depends on the number
K of
participations alone, not on their rounds: given K its distribution is a convolution of K distributions of phi(x), x ~
N(s, 1), and the rest with x ~ N(0, 1). This is post-processing, so the two distributions of the sum are a pair of lower
divergence.
"""

import math
from functools import lru_cache

import numpy as np
import scipy

from accounting.arrays import Floats
from accounting.compose.loss_distribution import LossDistribution, ends_of
from accounting.mechanisms.schedules import Allocation, BallsAndBins, MinSeparation, Schedule

TILTS = (1.0, 0.3, 0.1, 0.03)
"""Probabilities for phi, as multiples of p."""
_PER_SPREAD = 25.0
_FARTHEST = 12.0
_LARGEST_PHI = 200.0
"""Value above which phi is cut off: it identifies the neighbour, and cells up to s^2 / 2 would not fit in memory."""
MASS_ERROR = 1e-14
"""Mass that rounding of the transform and wrapped tails can misplace in a group of cells."""
_GROUP = 1e-9
"""Mass below which cells are joined."""
_CUT = 1e-15


def independent(schedule: Schedule, count: int) -> tuple[tuple[int, int], ...]:
    """Return the first `count` rounds as independent, identically distributed stretches: (rounds, number of
    stretches).
    """
    if not isinstance(schedule, BallsAndBins):
        return ((count, 1),)
    whole, rest = divmod(count, schedule.bins)
    return tuple((rounds, often) for rounds, often in ((schedule.bins, whole), (rest, 1)) if rounds and often)


@lru_cache(maxsize=64)
def shown_pair(schedule: Schedule, shift: float, count: int, tilt: float) -> tuple[Floats, Floats]:
    """Return masses of the sum's cells over the first `count` rounds, with the client and without it.

    shift: s; tilt: the probability of phi over p. Error of a mass: at most MASS_ERROR.
    """
    without, with_ = _one_round(tilt * schedule.probability, shift)
    law = counts_distribution(schedule, count)
    numbers = np.flatnonzero(law > 1e-18)
    spread = [ends_of([(without, count)], _CUT)]
    spread += [ends_of([(without, count - k), (with_, k)], _CUT) for k in {int(numbers[0]), int(numbers[-1])}]
    first, last = min(low for low, _ in spread), max(high for _, high in spread)
    length = scipy.fft.next_fast_len(max(last - first + 1, len(with_.masses)), real=True)
    quiet, loud = scipy.fft.rfft(without.masses, length), scipy.fft.rfft(with_.masses, length)
    mixed = sum(law[k] * loud**k * quiet ** (count - k) for k in numbers)
    q, p = (np.roll(scipy.fft.irfft(part, length), -(first % length)) for part in (quiet**count, mixed))
    return _grouped(np.maximum(p, 0.0), np.maximum(q, 0.0))


def _one_round(chance: float, shift: float) -> tuple[LossDistribution, LossDistribution]:
    """Return the distributions of phi on one grid, without and with the client."""
    spread = chance * math.sqrt(math.expm1(min(shift * shift, 50.0)))
    spacing = min(max(spread, 1e-6), 0.5) / _PER_SPREAD
    x = np.linspace(-_FARTHEST, _FARTHEST + shift, 400_001)
    phi = np.logaddexp(math.log1p(-chance), math.log(chance) + shift * x - shift * shift / 2)
    phi = np.minimum(phi, _LARGEST_PHI)
    cells = np.floor(phi / spacing).astype(np.int64)
    lowest, edges = int(cells[0]), np.concatenate([[-np.inf], x[1:], [np.inf]])
    laws = []
    for mean in (0.0, shift):
        z = edges - mean
        masses = np.where(z[1:] > 0, -np.diff(scipy.special.ndtr(-z)), np.diff(scipy.special.ndtr(z)))
        summed = np.bincount(cells - lowest, weights=masses)
        laws.append(
            LossDistribution(spacing=spacing, lowest=lowest, masses=np.asarray(summed / summed.sum()), infinite=0.0)
        )
    return laws[0], laws[1]


def _grouped(p: Floats, q: Floats) -> tuple[Floats, Floats]:
    """Return cells in a row, joined until their mass is large enough."""
    group = np.floor(np.cumsum(np.minimum(p, q)) / _GROUP).astype(np.int64)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return np.add.reduceat(p, starts), np.add.reduceat(q, starts)


def counts_distribution(schedule: Schedule, count: int) -> Floats:
    """Return the probabilities of 0, 1, 2, ... participations of one client in the first `count` rounds.

    Exact to rounding; for a cyclic order those of the first client.
    """
    if isinstance(schedule, BallsAndBins):
        law = np.zeros(count // schedule.bins + 2)
        law[-1] = (count % schedule.bins) / schedule.bins
        law[-2] = 1 - law[-1]
        return law
    if isinstance(schedule, Allocation):
        from scipy.stats import hypergeom

        numbers = np.arange(schedule.participations + 1)
        return np.asarray(hypergeom.pmf(numbers, schedule.rounds, schedule.participations, count), dtype=float)
    if not isinstance(schedule, MinSeparation):
        law = np.zeros(schedule.most_participations(count) + 1)
        law[-1] = 1.0
        return law
    return _renewals(schedule, count)


def _renewals(schedule: MinSeparation, count: int) -> Floats:
    """Return the probabilities by the chain over (rest left, participations so far), stationary at the beginning."""
    rest, coin = schedule.separation - 1, schedule.coin
    state = np.zeros((rest + 1, schedule.most_participations(count) + 2))
    state[:, 0] = schedule.probability
    state[0, 0] = 1 - rest * schedule.probability
    for _ in range(count):
        free = state[0].copy()
        taking_part = np.append(0.0, coin * free[:-1])
        state[0] = (1 - coin) * free
        if rest:
            state[0] += state[1]
            state[1:-1] = state[2:]
            state[-1] = taking_part
        else:
            state[0] += taking_part
    return np.asarray(state.sum(axis=0))
