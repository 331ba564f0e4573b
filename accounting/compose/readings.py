"""Readings of a profile: errors of membership tests, Gaussian DP, groups of clients, an attacker's success.

Everything follows from P(S) <= e^epsilon Q(S) + delta(epsilon) at every real epsilon, in both orders of the neighbours;
a profile that is an upper bound gives a statement that holds.
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
"""Rates at which the true positive rate of a membership test is stated beside an epsilon."""
READING_KEYS = ("advantage", "tpr_at_fpr", "gaussian_dp")
_UP = 1 + 1e-12
_CELLS = 2000
_POINTS = np.concatenate([-np.geomspace(1e-4, 60, 600)[::-1], [0.0], np.geomspace(1e-4, 60, 600)])
_LARGEST = 1e4


def tradeoff(profile: Callable[[Floats], ArrayLike], false_positive_rate: ArrayLike) -> Floats:
    """Return the least false negative rate that a test of the two neighbours can have at this false positive rate.

    f(a) = sup over epsilon of 1 - delta(epsilon) - e^epsilon a, at least 0   (Dong, Roth, Su 2022, Prop. 2.12)

    over a grid of epsilon. Shape: that of the rates. Direction of error: lower bound, so no test does better.
    """
    a = np.asarray(false_positive_rate, dtype=float)
    if not np.all((a >= 0) & (a <= 1)):
        raise InvalidParameter("false_positive_rate: must be numbers in [0, 1].")
    lines = 1 - np.asarray(profile(_POINTS)) - np.exp(_POINTS) * a[..., None]
    return np.asarray(np.maximum(lines.max(axis=-1), 0.0))


def true_positive_rate(profile: Profile, false_positive_rate: ArrayLike) -> Floats:
    """Return the largest true positive rate of a test of two neighbouring datasets at each false positive rate.

    inf over epsilon of delta(epsilon) + e^epsilon a   (Dong, Roth, Su 2022, Prop. 2.12)

    The datasets may be in either order. Every epsilon gives a bound; the grid is refined around the least one. Shape:
    that of the rates. Direction of error: upper bound, so no test does better.
    """
    rates = np.asarray(false_positive_rate, dtype=float)
    if not np.all((rates >= 0) & (rates <= 1)):
        raise InvalidParameter("false_positive_rate: must be numbers in [0, 1].")
    found = [_largest_rate(profile, float(rate)) for rate in rates.flat]
    return np.asarray(found, dtype=float).reshape(rates.shape)


def _largest_rate(profile: Profile, rate: float) -> float:
    points, least = _POINTS, 1.0
    for _ in range(4):
        bounds = profile(points) + np.exp(points) * rate
        best = int(np.argmin(bounds))
        least = min(least, float(bounds[best]) * _UP)
        points = np.linspace(points[max(best - 1, 0)], points[min(best + 1, len(points) - 1)], 100)
    return max(least, rate)


def success(profile: Profile, *, prior: float = 0.5) -> float:
    """Return the largest probability with which an attacker names the right neighbour; prior: that of the first.

    1 - prior + prior delta(log((1 - prior) / prior)), reached by the likelihood-ratio test. Direction of error: upper
    bound.
    """
    p = require.open_probability(prior=prior)
    return float(1 - p + p * profile(math.log((1 - p) / p)))


def advantage(profile: Profile) -> float:
    """Return the largest true positive rate less false positive rate of any test: delta(0). Direction: upper bound."""
    return min(float(profile(0.0)) * _UP, 1.0)


def gaussian_dp(profile: Profile, delta_min: float) -> float:
    """Return the smallest mu whose Gaussian profile is at least the given one wherever that is at least `delta_min`.

    A summary: below delta_min the mu-Gaussian profile may be smaller, so mu alone is no guarantee. Returns infinity if
    the profile never falls to delta_min, and if its delta at epsilon 0 is 1 in double precision (mu above 14).

    On each cell of a grid the true profile is convex in e^epsilon, so it is below the chord of the bounds at the cell's
    ends; the Gaussian profile is above its tangent at the middle. Tangent against chord is a comparison at two points.
    Direction of error: upwards, by about 1e-5 relative.
    """
    end = max(epsilon_at(profile, delta_min), 1e-6)
    if not math.isfinite(end):
        return math.inf
    knots = np.linspace(0.0, end, _CELLS + 1)
    wanted = profile(knots) * _UP
    if wanted[0] == 0:
        return 0.0
    if wanted[0] >= 1:
        return math.inf
    middles = (knots[:-1] + knots[1:]) / 2
    before, after = np.expm1(knots[:-1] - middles), np.expm1(knots[1:] - middles)

    def is_above(mu: float) -> bool:
        value = privacy_profile(middles, mu=mu)
        slope = -np.exp(middles + scipy.special.log_ndtr(-mu / 2 - middles / mu))  # in e^epsilon, times e^middle
        return bool(np.all((value + slope * before >= wanted[:-1]) & (value + slope * after >= wanted[1:])))

    return crossing_bracket(is_above, 1e-6, rtol=1e-9, limit=_LARGEST)[1]


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Readings of a guarantee: a membership test's advantage and true positive rates, and a Gaussian DP summary.

    advantage, true_positive_rates: upper bounds for every test of two neighbouring datasets, in both orders.
    mu: the smallest whose Gaussian profile is above the run's wherever delta is at least `delta_min`; no guarantee.
    """

    advantage: float
    true_positive_rates: dict[float, float]
    mu: float
    delta_min: float

    def to_dict(self) -> dict[str, object]:
        """JSON keys beside an epsilon; an infinite mu is null."""
        return {
            "advantage": self.advantage,
            "tpr_at_fpr": {f"{rate:g}": value for rate, value in self.true_positive_rates.items()},
            "gaussian_dp": {"mu": self.mu if math.isfinite(self.mu) else None, "delta_min": self.delta_min},
        }


@lru_cache(maxsize=64)
def readings(mechanism: Mechanism, delta_min: float, pair: tuple[float, float] | None = None) -> Readings:
    """Return the readings of the best account's profile of `mechanism`. Direction of error: upwards.

    pair: an (epsilon, delta) that holds of the mechanism, by an account that has no profile or a looser one. Errors:
    UnsupportedMechanism if no account has a profile and there is no pair.
    """
    require.open_probability(delta_min=delta_min)
    known = None if pair is None else profile_of_pair(*pair)
    try:
        claim = profile(mechanism, delta=delta_min)
    except (UnsupportedMechanism, InvalidParameter):
        if known is None:
            raise
        claim = known
    else:
        claim = claim if known is None else smaller(claim, known)
    return readings_of_profile(claim, delta_min, shift=plain_shift(mechanism))


def smaller(one: Profile, other: Profile) -> Profile:
    """Return the profile that two claims of one mechanism have together."""
    return Profile(above_zero=lambda eps: np.minimum(one(eps), other(eps)), method=f"{one.method}+{other.method}")


def readings_of_profile(claim: Profile, delta_min: float, *, shift: float | None = None) -> Readings:
    """Return the readings of a profile; shift: mu of a mechanism that is exactly Gaussian."""
    rates = true_positive_rate(claim, FALSE_POSITIVE_RATES)
    return Readings(
        advantage=advantage(claim),
        true_positive_rates=dict(zip(FALSE_POSITIVE_RATES, map(float, rates), strict=True)),
        mu=gaussian_dp(claim, delta_min) if shift is None else shift * _UP,
        delta_min=delta_min,
    )


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

    def enough(epsilon: float) -> bool:
        return float(profile(epsilon)) <= target

    return 0.0 if enough(0.0) else crossing_bracket(enough, 1e-3, rtol=1e-9, limit=_LARGEST, growth=1.5)[1]
