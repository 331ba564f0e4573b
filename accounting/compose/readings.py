"""Readings of a profile: errors of membership tests, Gaussian DP, groups of clients, success of an attacker.

All readings follow from P(S) <= e^epsilon Q(S) + delta(epsilon) at every real epsilon, in both orders of the
neighbours. A profile that is an upper bound gives valid readings.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.compose.profiles import Profile, profile, profile_of_pair
from accounting.compose.twins import plain_shift
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian import privacy_profile
from accounting.mechanisms import Mechanism
from accounting.roots import crossing_bracket

FALSE_POSITIVE_RATES = (0.01, 0.001)
"""False-positive rates at which the true-positive rate of a membership test is stated in addition to an epsilon."""
READING_KEYS = ("advantage", "tpr_at_fpr", "gaussian_dp")
_UP = 1 + 1e-12
_CELLS = 2000
_POINTS = np.concatenate([-np.geomspace(1e-4, 60, 600)[::-1], [0.0], np.geomspace(1e-4, 60, 600)])
_LARGEST = 1e4


def tradeoff(profile: Callable[[Floats], ArrayLike], false_positive_rate: ArrayLike) -> Floats:
    """Return the smallest false-negative rate of a test of two neighbours at each false-positive rate.

    f(a) = sup over epsilon of 1 - delta(epsilon) - e^epsilon a, at least 0   (Dong, Roth, Su 2022, Prop. 2.12)

    The sup is over a grid of epsilon.
    Shape: as the rates.
    Direction of error: lower bound, so no test is better.
    """
    a = _checked_rates(false_positive_rate)
    lines = 1 - np.asarray(profile(_POINTS)) - np.exp(_POINTS) * a[..., None]
    return np.asarray(np.maximum(lines.max(axis=-1), 0.0))


def _checked_rates(given: ArrayLike) -> Floats:
    rates = np.asarray(given, dtype=float)
    if not np.all((rates >= 0) & (rates <= 1)):
        raise InvalidParameter("false_positive_rate: must be numbers in [0, 1].")
    return rates


def true_positive_rate(profile: Profile, false_positive_rate: ArrayLike) -> Floats:
    """Return the largest true positive rate of a test of two neighbouring datasets at each false positive rate.

    inf over epsilon of delta(epsilon) + e^epsilon a   (Dong, Roth, Su 2022, Prop. 2.12)

    It holds for both orders of the datasets. Every epsilon gives a bound; the grid is refined around the minimum.
    Shape: as the rates.
    Direction of error: upper bound, so no test is better.
    """
    rates = _checked_rates(false_positive_rate)
    found = [_largest_rate(profile, float(rate)) for rate in rates.flat]
    return np.asarray(found, dtype=float).reshape(rates.shape)


def _largest_rate(profile: Profile, rate: float) -> float:
    points, smallest = _POINTS, 1.0
    for _ in range(4):
        bounds = profile(points) + np.exp(points) * rate
        best = int(np.argmin(bounds))
        smallest = min(smallest, float(bounds[best]) * _UP)
        points = np.linspace(points[max(best - 1, 0)], points[min(best + 1, len(points) - 1)], 100)
    return max(smallest, rate)


def advantage(profile: Profile) -> float:
    """Return the largest true-positive rate minus false-positive rate of any test, delta(0). Direction of error:
    upper bound.
    """
    return min(float(profile(0.0)) * _UP, 1.0)


def gaussian_dp(profile: Profile, delta_min: float) -> float:
    """Return the smallest mu whose Gaussian profile is at least `profile` wherever `profile` is at least `delta_min`.

    mu is a summary, not a guarantee: below delta_min the mu-Gaussian profile may be smaller than `profile`. Returns
    infinity if the profile stays above delta_min, and if its delta at epsilon 0 is 1 in double precision (mu above 14).

    On each cell of a grid the profile is convex in e^epsilon, so it is at most the chord of the bounds at the ends of
    the cell. The Gaussian profile is at least its tangent at the middle. Comparing tangent and chord at both ends
    suffices.
    Direction of error: upwards, by about 1e-5 relative.
    """
    end = max(epsilon_at(profile, delta_min), 1e-6)
    if not math.isfinite(end):
        return math.inf
    knots = np.linspace(0.0, end, _CELLS + 1)
    values_needed = profile(knots) * _UP
    if values_needed[0] == 0:
        return 0.0
    if values_needed[0] >= 1:
        return math.inf
    middles = (knots[:-1] + knots[1:]) / 2
    before, after = np.expm1(knots[:-1] - middles), np.expm1(knots[1:] - middles)

    def is_above(mu: float) -> bool:
        value = privacy_profile(middles, mu=mu)
        # The derivative in e^epsilon, times e^middle.
        slope = -np.exp(middles + scipy.special.log_ndtr(-mu / 2 - middles / mu))
        ends = (before, values_needed[:-1]), (after, values_needed[1:])
        return all(bool(np.all(value + slope * step >= needed)) for step, needed in ends)

    return crossing_bracket(is_above, 1e-6, rtol=1e-9, limit=_LARGEST)[1]


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Readings of a guarantee: a membership test's advantage and true positive rates, and a Gaussian DP summary.

    advantage, true_positive_rates: upper bounds for every test of two neighbouring datasets, in both orders.
    mu: the smallest mu whose Gaussian profile is above the run's wherever delta is at least `delta_min`. It is a
    summary, not a guarantee.
    """

    advantage: float
    true_positive_rates: dict[float, float]
    mu: float
    delta_min: float

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the readings; an infinite mu is null."""
        return {
            "advantage": self.advantage,
            "tpr_at_fpr": {f"{rate:g}": value for rate, value in self.true_positive_rates.items()},
            "gaussian_dp": {"mu": self.mu if math.isfinite(self.mu) else None, "delta_min": self.delta_min},
        }


@lru_cache(maxsize=64)
def readings(mechanism: Mechanism, delta_min: float, pair: tuple[float, float] | None = None) -> Readings:
    """Return the readings of the profile of `mechanism` by the best account. Direction of error: upwards.

    pair: an (epsilon, delta) that holds for the mechanism, by an account without a profile or with a looser profile.
    Errors: UnsupportedMechanism if no account has a profile and no pair is given.
    """
    delta_min = require.open_probability(delta_min=delta_min)
    claims = [] if pair is None else [profile_of_pair(*pair)]
    try:
        claims.append(profile(mechanism, delta=delta_min))
    except (UnsupportedMechanism, InvalidParameter):
        if pair is None:
            raise
    least = Profile(above_zero=lambda eps: np.min([one(eps) for one in claims], axis=0), method="readings")
    return readings_of_profile(least, delta_min, shift=plain_shift(mechanism))


def readings_of_profile(claim: Profile, delta_min: float, *, shift: float | None = None) -> Readings:
    """Return the readings of a profile. shift: mu if the mechanism is exactly one Gaussian."""
    rates = true_positive_rate(claim, FALSE_POSITIVE_RATES)
    return Readings(
        advantage=advantage(claim),
        true_positive_rates=dict(zip(FALSE_POSITIVE_RATES, map(float, rates), strict=True)),
        mu=gaussian_dp(claim, delta_min) if shift is None else shift * _UP,
        delta_min=delta_min,
    )


def posterior(*, epsilon: float, prior: float) -> float:
    """Return the largest posterior probability of an observer with this prior, after an outcome with a loss of at most
    epsilon.

    The odds increase by at most a factor e^epsilon. Under (epsilon, delta)-DP, losses above x > epsilon have
    probability at most delta / (1 - e^(epsilon - x)).
    Direction of error: upper bound.
    """
    p = require.open_probability(prior=prior)
    odds = math.log(p / (1 - p)) + epsilon
    return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0


def group_profile(profile: Profile, size: int) -> Profile:
    """Return the profile for neighbours that differ in `size` clients.

    By a chain of k neighbours it is delta_k(epsilon) = delta(epsilon / k) (e^epsilon - 1) / (e^(epsilon / k) - 1).
    Direction of error: upper bound, loose for large k (for Gaussians the exact profile has k times the shift)."""
    k = require.count(size=size)

    def above_zero(epsilon: Floats) -> Floats:
        one = epsilon / k
        near = np.clip(one, 1e-300, 700 / k)  # beyond it e^epsilon overflows, and the bound is 1
        steps = np.maximum(np.expm1(k * near) / np.expm1(near), k)
        return np.asarray(np.where(one <= 700 / k, profile(one) * steps, 1.0))

    return Profile(above_zero=above_zero, method=profile.method)


def epsilon_at(profile: Profile, delta: float) -> float:
    """Return an epsilon >= 0 with delta(epsilon) <= delta. For a decreasing profile it is the smallest, to 1e-9;
    above 10^4 it is infinite.
    """
    target = require.open_probability(delta=delta)

    def is_enough(epsilon: float) -> bool:
        return float(profile(epsilon)) <= target

    return 0.0 if is_enough(0.0) else crossing_bracket(is_enough, 1e-3, rtol=1e-9, limit=_LARGEST, growth=1.5)[1]
