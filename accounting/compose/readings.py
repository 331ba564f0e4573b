"""Readings of a profile: errors of tests, groups of clients, an attacker's success.

Everything follows from P(S) <= e^epsilon Q(S) + delta(epsilon) at every real epsilon, in both orders of the neighbours;
a profile that is an upper bound gives a statement that holds.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.compose.profiles import Profile
from accounting.errors import InvalidParameter

_POINTS = np.concatenate([-np.geomspace(1e-4, 60, 600)[::-1], [0.0], np.geomspace(1e-4, 60, 600)])
_LARGEST = 1e4


def tradeoff(profile: Profile, false_positive_rate: ArrayLike) -> Floats:
    """Return the least false negative rate that a test of the two neighbours can have at this false positive rate.

    f(a) = sup over epsilon of 1 - delta(epsilon) - e^epsilon a, at least 0   (Dong, Roth, Su 2022, Prop. 2.12)

    over a grid of epsilon. Shape: that of the rates. Direction of error: lower bound, so no test does better.
    """
    a = np.asarray(false_positive_rate, dtype=float)
    if not np.all((a >= 0) & (a <= 1)):
        raise InvalidParameter("false_positive_rate: must be numbers in [0, 1].")
    lines = 1 - profile(_POINTS) - np.exp(_POINTS) * a[..., None]
    return np.asarray(np.maximum(lines.max(axis=-1), 0.0))


def success(profile: Profile, *, prior: float = 0.5) -> float:
    """Return the largest probability with which an attacker names the right neighbour; prior: that of the first.

    1 - prior + prior delta(log((1 - prior) / prior)), reached by the likelihood-ratio test. Direction of error: upper
    bound.
    """
    p = require.open_probability(prior=prior)
    return float(1 - p + p * profile(math.log((1 - p) / p)))


def advantage(profile: Profile) -> float:
    """Return the largest true positive rate less false positive rate of any test: delta(0). Direction: upper bound."""
    return float(profile(0.0))


def posterior(*, epsilon: float, prior: float) -> float:
    """Return the largest posterior of an observer with this prior, after an outcome whose loss is at most epsilon.

    The odds grow by e^epsilon. With (epsilon, delta), losses above x > epsilon have probability at most delta / (1 -
    e^(epsilon - x)). Direction of error: upper bound.
    """
    p = require.open_probability(prior=prior)
    odds = math.log(p / (1 - p)) + epsilon
    return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0


def of_group(profile: Profile, size: int) -> Profile:
    """Return the profile for neighbours that differ in `size` clients.

    delta_k(epsilon) = delta(epsilon / k) (e^epsilon - 1) / (e^(epsilon / k) - 1): a chain of k neighbours. Direction of
    error: upper bound, loose for large k (exact for Gaussians: k times the shift).
    """
    k = require.count(size=size)

    def above_zero(epsilon: Floats) -> Floats:
        each = np.asarray(epsilon, dtype=float) / k
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.where(each > 0, np.expm1(np.minimum(k * each, 700)) / np.expm1(np.maximum(each, 1e-300)), k)
        known = np.where(k * each <= 700, profile(each) * np.maximum(steps, k), 1.0)
        return np.asarray(np.where(np.isinf(each), np.minimum(profile(each), 1.0) if k == 1 else 1.0, known))

    return Profile(above_zero=above_zero, method=profile.method)


def epsilon_at(profile: Profile, delta: float) -> float:
    """Return an epsilon >= 0 with delta(epsilon) <= delta, the least to 1e-9 if the profile falls; infinite beyond
    10^4.
    """
    target = require.open_probability(delta=delta)
    low, high = 0.0, 1e-3
    if float(profile(0.0)) <= target:
        return 0.0
    while float(profile(high)) > target:
        low, high = high, high * 1.5
        if high > _LARGEST:
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if float(profile(middle)) <= target else (middle, high)
    return high
