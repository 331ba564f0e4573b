"""Toeplitz factorisations: coefficients in closed form, of banded and buffered ones; sensitivity; inverse."""

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms.correlated import CorrelatedRounds
from accounting.mechanisms.schedules import BallsAndBins, Cyclic, Schedule


def square_root(bands: int) -> Floats:
    """The first `bands` coefficients of the square root of the matrix of prefix sums, c_j = c_(j-1) (2j - 1) / 2j.

    (1 - x)^(-1/2), whose square is 1 / (1 - x) (Fichtenberger, Henzinger, Upadhyay 2023). bands = 1: independent noise.
    Positive and non-increasing. Shape: [bands].
    """
    j = np.arange(1, require.count(bands=bands), dtype=float)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def buffered(weights: ArrayLike, decays: ArrayLike, *, rounds: int) -> Floats:
    """The first column of a buffered linear Toeplitz matrix (BLT): c_0 = 1, c_j = sum_i weights_i decays_i^(j-1).

    Its noise needs one vector for each weight, whatever the rounds (McMahan, Xu, Zhang 2024). Weights >= 0 that add up
    to at most 1 and decays in [0, 1] let it not increase. Shape: [rounds].
    """
    by, how = np.asarray(weights, dtype=float), np.asarray(decays, dtype=float)
    powers = how[:, None] ** np.arange(require.count(rounds=rounds) - 1)
    return np.concatenate([[1.0], by @ powers])


def column(rounds: CorrelatedRounds, count: int) -> Floats:
    """The first column of C for the first `count` rounds of a stream: cut off where the rest is 0."""
    if rounds.weights:
        return buffered(rounds.weights, rounds.decays, rounds=count)
    return np.array(rounds.coefficients[:count])


def sensitivity(coefficients: ArrayLike, *, rounds: int, separation: int, participations: int | None = None) -> float:
    """L2 sensitivity of C x in clip norms: at most `participations` of a client, `separation` rounds apart or more.

    sens^2 = |sum over i of column i * separation of C|^2, over as many i as there is room for: the largest over all
    patterns. With G(s, t) the product of columns s and t, G falls in max(s, t) and in |s - t|, since c does not
    increase; the i-th participation is in round i * separation or later, the i-th and j-th are |i - j| * separation
    apart or more; and all products are >= 0, so that updates that point the same way are the worst. Adjacency: zero-out
    and add-remove; twice that for replace-one. Error: exact to rounding. Errors: InvalidParameter for coefficients that
    are negative or increase.
    """
    c = _checked(coefficients)[: require.count(rounds=rounds)]
    return float(np.linalg.norm(worst_pattern(c, rounds=rounds, separation=separation, participations=participations)))


def worst_pattern(
    coefficients: Floats, *, rounds: int, separation: int, participations: int | None, back: bool = False
) -> Floats:
    """The sum of the columns of C that begin in rounds 0, B, 2B, ...: of the client that shows most. Shape: [rounds].

    back: the transpose, from what is seen in the rounds to the first column. Time: linear in the rounds.
    """
    gap = min(require.count(separation=separation), rounds)
    times = rounds if participations is None else require.count(participations=participations)
    places = np.zeros(-(-rounds // gap) * gap)
    places[: min(len(coefficients), rounds)] = coefficients[:rounds]
    epochs = places.reshape(-1, gap)
    epochs = epochs[::-1] if back else epochs
    summed = np.cumsum(epochs, axis=0)
    if times < len(summed):
        summed[times:] -= summed[:-times].copy()
    return np.asarray((summed[::-1] if back else summed).ravel()[:rounds])


def inverse(coefficients: ArrayLike, *, rounds: int) -> Floats:
    """The first column of C^-1: what of a round's fresh noise comes back in the rounds after it. Shape: [rounds]."""
    from scipy.signal import lfilter

    once = np.zeros(require.count(rounds=rounds))
    once[0] = 1.0
    return np.asarray(lfilter([1.0], _checked(coefficients)[:rounds], once))


def _checked(coefficients: ArrayLike) -> Floats:
    c = np.asarray(coefficients, dtype=float)
    if c.ndim != 1 or not c.size or c[0] != 1 or np.any(np.diff(c) > 0) or np.any(c < 0) or not np.isfinite(c).all():
        raise InvalidParameter(
            "coefficients: must be a list that begins with 1 and does not increase, of numbers of at least 0."
        )
    return c


def squares(schedule: Schedule, count: int) -> float:
    """Squared sensitivity of the first `count` rounds in clip norms, for updates whose sensitivity is one clip norm.

    Of independent noise: the most participations. Of correlated noise: sens(C)^2 (`factorisation.sensitivity`), in
    units of the fresh noise. Direction of error: exact to rounding. UnsupportedMechanism for a secret schedule.
    """
    if isinstance(schedule, CorrelatedRounds):
        c = column(schedule, count)
        most = schedule.participations
        return sensitivity(c, rounds=count, separation=schedule.separation, participations=most) ** 2
    if isinstance(schedule, Cyclic):
        return float(schedule.most_participations(count))
    if isinstance(schedule, BallsAndBins) and not schedule.secret:
        return sensitivity(schedule.coefficients, rounds=count, separation=schedule.bins) ** 2
    raise UnsupportedMechanism(f"sampling={schedule.name!r}: participation is secret, so that rounds are no Gaussian.")
