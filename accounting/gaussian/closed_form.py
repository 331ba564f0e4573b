"""Closed-form account of the unsampled Gaussian mechanism, exact up to rounding.

All results are functions of mu = (L2 sensitivity) / (noise standard deviation).
"""

import math
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from accounting import require
from accounting.errors import InvalidParameter
from accounting.roots import brentq

# Relative safety margin: a bracketed root is exact to about 1e-15, and results are shifted by this to the safe side.
_ROUNDING = 1e-12


_LARGE_MU = 1e6
"""mu above which the second term of the profile is left out; epsilon rises by less than 1e-11 relative."""
_SMALLEST_EPSILON = 1e-9
"""Smallest epsilon for which noise is calibrated: below it rounding errors of logarithms are not small."""


def _epsilon_rounding(delta: float) -> float:
    """Return a bound on the change of epsilon by rounding errors in the logarithms of delta or 1 - delta."""
    return 2e-15 * (1 - math.log(delta) - math.log1p(-delta))


def privacy_profile(epsilon: ArrayLike, *, mu: float) -> NDArray[np.float64]:
    """Return the privacy profile of a Gaussian mechanism: the smallest delta at `epsilon`.

    Claim: delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), in both orders of the
    neighbours.
    Source: Balle, Wang 2018, Theorem 8.
    Domain: mu > 0; any real epsilon, also negative (the hockey-stick divergence of order e^epsilon).
    Shape: that of `epsilon`.
    Adjacency: the one whose sensitivity is in mu.
    Direction of error: either, by rounding: epsilon shifts by about 1e-16 (1 + log 1/delta).
    Errors: InvalidParameter for mu not above 0, or an epsilon that is nan.

    >>> from accounting.gaussian import privacy_profile
    >>> round(float(privacy_profile(1.0, mu=1.0)), 4)
    0.1269
    """
    mu = require.positive(mu=mu)
    eps = np.asarray(epsilon, dtype=float)
    if np.isnan(eps).any():
        raise InvalidParameter("epsilon=nan: must be real numbers, infinities included.")
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are handled below
        log_gain = scipy.special.log_ndtr(mu / 2 - eps / mu)
        gap = eps + scipy.special.log_ndtr(-mu / 2 - eps / mu) - log_gain
    # The second term is below e^-t^2/2 / mu, and rounding errors exceed it: leaving it out is an upper bound.
    gap = np.full_like(gap, -np.inf) if mu > _LARGE_MU else gap
    # For b <= a, exp(a) - exp(b) = exp(a) (1 - exp(b - a)) avoids cancellation.
    gap = np.where(np.isneginf(log_gain), 0.0, np.minimum(gap, 0.0))
    return np.asarray(np.exp(log_gain) * -np.expm1(gap))


def smallest_epsilon(delta: float, *, mu: float) -> float:
    """Return the smallest epsilon >= 0 at which a mu-Gaussian mechanism has `delta`.

    Claim: inverse of `privacy_profile`, by a bracketed root.
    Source: Balle, Wang 2018.
    Adjacency: the one whose sensitivity is in mu.
    Direction of error: upper bound, by at most 1e-12 relative and 2e-15 (1 + log 1/delta + log 1/(1 - delta)) absolute.
    Errors: InvalidParameter for a delta outside (0, 1), or mu not above 0.

    >>> from accounting.gaussian import smallest_epsilon
    >>> round(smallest_epsilon(1e-5, mu=1.0), 4)
    4.3772
    """
    target = require.open_probability(delta=delta)
    rounding_shift, mu_value = _epsilon_rounding(target), require.positive(mu=mu)
    if _log_ratio(-rounding_shift, mu=mu_value, target=target) <= 0:  # then epsilon is 0 despite rounding
        return 0.0
    return _root(target, mu_value) * (1 + _ROUNDING) + rounding_shift


def epsilon_from_below(delta: float, *, mu: float) -> float:
    """Return `smallest_epsilon` rounded downwards.

    Claim: no mu-Gaussian mechanism has a smaller epsilon at `delta`.
    Source: Balle, Wang 2018.
    Adjacency: the one whose sensitivity is in mu.
    Direction of error: lower bound.
    Errors: as `smallest_epsilon`.

    >>> from accounting.gaussian import epsilon_from_below, smallest_epsilon
    >>> epsilon_from_below(1e-5, mu=1.0) < smallest_epsilon(1e-5, mu=1.0)
    True
    """
    target = require.open_probability(delta=delta)
    margin = _ROUNDING if require.positive(mu=mu) <= _LARGE_MU else 1e-11
    return max(0.0, _root(target, require.positive(mu=mu)) * (1 - margin) - _epsilon_rounding(target))


def _root(target: float, mu: float) -> float:
    """Return the epsilon with delta(epsilon) = target, up to rounding; 0 if delta(0) <= target."""

    def excess(eps: float) -> float:
        return _log_ratio(eps, mu=mu, target=target)

    if excess(0.0) <= 0:
        return 0.0
    # delta(eps) <= Phi(mu/2 - eps/mu), so the root is below this end.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / target)) + 1e-12
    return float(brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14))


def _log_ratio(eps: float, *, mu: float, target: float) -> float:
    """Return log(delta / target), or log((1 - target) / (1 - delta)) for a target above 1/2. Both increase in delta.

    With t = mu/2 - eps/mu, b = mu/2 + eps/mu and erfcx(x) = e^(x^2) erfc(x),
        1 - delta(eps) = Phi(-t) + e^eps Phi(-b) = e^(-t^2/2) (erfcx(t/sqrt 2) + erfcx(b/sqrt 2)) / 2,
    a sum of positive terms, which is accurate for delta near 1.
    """
    t, b = mu / 2 - eps / mu, mu / 2 + eps / mu
    if target > 0.5 and t > 0:
        tails = scipy.special.erfcx(t / math.sqrt(2)) + scipy.special.erfcx(b / math.sqrt(2))
        return math.log(1 - target) + min(t * t / 2, 1e300) - math.log(tails / 2)
    delta = float(privacy_profile(eps, mu=mu))
    if target > 0.5:
        return math.log(1 - target) - math.log1p(-delta)
    return math.log(max(delta, 1e-320)) - math.log(target)


def noise_std(
    epsilon: float,
    delta: float,
    *,
    l2_sensitivity: float,
    calibration: Literal["analytic", "classical"] = "analytic",
) -> float:
    """Return the noise standard deviation that makes one Gaussian release (epsilon, delta)-DP.

    Claim: "analytic" is the smallest such value, sensitivity / mu with delta(epsilon; mu) = delta. "classical" is
    sensitivity sqrt(2 ln(1.25/delta)) / epsilon, a theorem only for epsilon < 1 and otherwise rejected: at epsilon = 9
    it would give delta 1.7e-4 for a stated 1e-4.
    Source: Balle, Wang 2018, Algorithm 1; Dwork, Roth 2014, Theorem A.1.
    Units: those of `l2_sensitivity`.
    Adjacency: the one of the sensitivity.
    Direction of error: upwards, by 1e-12 relative (analytic).
    Errors: InvalidParameter for a number outside its domain, epsilon below 1e-9, or epsilon >= 1 with "classical".

    >>> from accounting.gaussian import noise_std
    >>> round(noise_std(1.0, 1e-5, l2_sensitivity=2.0), 4)
    7.4613
    """
    eps = require.positive(epsilon=epsilon)
    if eps < _SMALLEST_EPSILON:
        raise InvalidParameter(
            f"epsilon={eps}: must be at least 1e-09, because below it rounding errors may exceed "
            "the margin of the noise."
        )
    target = require.open_probability(delta=delta)
    sensitivity = require.positive(l2_sensitivity=l2_sensitivity)
    if calibration == "classical":
        if eps >= 1:
            raise InvalidParameter(
                f"epsilon={eps} with calibration='classical': the classical theorem requires epsilon < 1. Use "
                "calibration='analytic', which holds for every epsilon and needs less noise."
            )
        return sensitivity * math.sqrt(2 * math.log(1.25 / target)) / eps
    if calibration != "analytic":
        raise InvalidParameter(f"calibration={calibration!r}: must be 'analytic' or 'classical'.")

    safe_epsilon = eps - _epsilon_rounding(target)

    def excess(log_mu: float) -> float:
        return _log_ratio(safe_epsilon, mu=math.exp(log_mu), target=target)

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
    while excess(high) < 0:
        high *= 2
    mu = math.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14))
    return sensitivity / mu * (1 + _ROUNDING)
