"""The Gaussian mechanism in closed form: no sampling, exact to rounding.

Everything is a function of mu = (L2 sensitivity) / (noise standard deviation).
"""

import math
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from accounting import require
from accounting.errors import InvalidParameter

# Safety against rounding: a bracketed root is exact to about 1e-15 relative; results move this far to the safe side.
_ROUNDING = 1e-12


def _blur(delta: float) -> float:
    """Return a bound on the shift of epsilon by rounding the logarithms of delta or of 1 - delta."""
    return 2e-15 * (1 - math.log(delta) - math.log1p(-delta))


def privacy_profile(epsilon: ArrayLike, *, mu: float) -> NDArray[np.float64]:
    """The exact privacy profile of a Gaussian mechanism: the smallest delta at `epsilon`.

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)     (Balle, Wang 2018, Thm 8)

    Domain: mu > 0, any real epsilon (negative ones too: the hockey-stick divergence of order e^epsilon).
    Shape: that of `epsilon`. Holds for the adjacency whose sensitivity is in mu; symmetric in the two worlds.
    Error: rounding of the logarithms, which shifts epsilon by about 1e-16 (1 + log 1/delta).
    """
    mu = require.positive(mu=mu)
    eps = np.asarray(epsilon, dtype=float)
    if np.isnan(eps).any():
        raise InvalidParameter("epsilon=nan: must be real numbers, infinities included.")
    with np.errstate(over="ignore", invalid="ignore"):  # infinities, of which those that matter are caught below
        log_gain = scipy.special.log_ndtr(mu / 2 - eps / mu)
        gap = eps + scipy.special.log_ndtr(-mu / 2 - eps / mu) - log_gain
    # exp(a) - exp(b) with b <= a, without cancelling: exp(a) (1 - exp(b - a)).
    gap = np.where(np.isneginf(log_gain), 0.0, np.minimum(gap, 0.0))
    return np.asarray(np.exp(log_gain) * -np.expm1(gap))


def smallest_epsilon(delta: float, *, mu: float) -> float:
    """The smallest epsilon >= 0 at which a mu-Gaussian mechanism has `delta`; rounded upwards.

    Inverse of `privacy_profile` (Balle, Wang 2018), by a bracketed root. Direction of error: upper bound,
    by 1e-12 relative and 2e-15 (1 + log 1/delta + log 1/(1 - delta)) absolute at most.
    """
    target = require.open_probability(delta=delta)
    blur, shift = _blur(target), require.positive(mu=mu)
    if _log_ratio(-blur, mu=shift, target=target) <= 0:  # at 0, then, whatever rounding does
        return 0.0
    return _root(target, shift) * (1 + _ROUNDING) + blur


def epsilon_from_below(delta: float, *, mu: float) -> float:
    """`smallest_epsilon` rounded downwards: no mu-Gaussian mechanism has a smaller epsilon at `delta`."""
    target = require.open_probability(delta=delta)
    return max(0.0, _root(target, require.positive(mu=mu)) * (1 - _ROUNDING) - _blur(target))


def _root(target: float, mu: float) -> float:
    """Epsilon with delta(epsilon) = target, to rounding; 0 where delta(0) is not above it."""
    from scipy.optimize import brentq  # scipy.optimize takes longer to load than all of this package

    def excess(eps: float) -> float:
        return _log_ratio(eps, mu=mu, target=target)

    if excess(0.0) <= 0:
        return 0.0
    # delta(eps) <= Phi(mu/2 - eps/mu), so this end is past the root.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / target)) + 1e-12
    return float(brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14, maxiter=500))


def _log_ratio(eps: float, *, mu: float, target: float) -> float:
    """log(delta / target), or log((1 - target) / (1 - delta)) where target is above 1/2: each rises with delta.

    With t = mu/2 - eps/mu, b = mu/2 + eps/mu and erfcx(x) = e^(x^2) erfc(x),
        1 - delta(eps) = Phi(-t) + e^eps Phi(-b) = e^(-t^2/2) (erfcx(t/sqrt 2) + erfcx(b/sqrt 2)) / 2,
    a sum in which nothing cancels where delta is near 1.
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
    """Noise standard deviation that makes one Gaussian release (epsilon, delta)-DP.

    analytic:   the smallest one, sensitivity / mu with delta(epsilon; mu) = delta   (Balle, Wang 2018, Alg. 1)
    classical:  sensitivity sqrt(2 ln(1.25/delta)) / epsilon   (Dwork, Roth 2014, Thm A.1), a theorem for
                epsilon < 1 only and refused above it: at epsilon = 9 it delivers delta 1.7e-4 for a stated 1e-4.

    Units: those of `l2_sensitivity`. Direction of error: never too small (rounded upwards by 1e-12).
    """
    eps = require.positive(epsilon=epsilon)
    target = require.open_probability(delta=delta)
    sensitivity = require.positive(l2_sensitivity=l2_sensitivity)
    if calibration == "classical":
        if eps >= 1:
            raise InvalidParameter(
                f"epsilon={eps} with calibration='classical': that theorem needs epsilon < 1. "
                "Use calibration='analytic', which holds for every epsilon and needs less noise."
            )
        return sensitivity * math.sqrt(2 * math.log(1.25 / target)) / eps
    if calibration != "analytic":
        raise InvalidParameter(f"calibration={calibration!r}: must be 'analytic' or 'classical'.")

    from scipy.optimize import brentq

    blur = _blur(target)
    if eps < 2 * blur:  # delta(0) = erf(mu / sqrt 8), without rounding in logarithms
        half = scipy.special.erfinv(target) if target < 0.5 else scipy.special.erfcinv(1 - target)
        return sensitivity / (math.sqrt(8) * float(half)) * (1 + _ROUNDING)
    surely = eps - blur

    def excess(log_mu: float) -> float:
        return _log_ratio(surely, mu=math.exp(log_mu), target=target)

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
    while excess(high) < 0:
        high *= 2
    mu = math.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14, maxiter=500))
    return sensitivity / mu * (1 + _ROUNDING)
