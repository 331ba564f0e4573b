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
    """What rounding the profile's logarithms (of size log 1/delta) can shift epsilon by, with room to spare."""
    return 2e-15 * (1 - math.log(delta))


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
    by 1e-12 relative and 2e-15 (1 + log 1/delta) absolute at most.
    """
    from scipy.optimize import brentq  # scipy.optimize takes longer to load than all of this package

    target = require.open_probability(delta=delta)
    mu = require.positive(mu=mu)
    if float(privacy_profile(0.0, mu=mu)) <= target:
        return 0.0
    # delta(eps) <= Phi(mu/2 - eps/mu), so this end is past the root.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / target)) + 1e-12

    def excess(eps: float) -> float:
        return float(privacy_profile(eps, mu=mu)) - target

    return float(brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14, maxiter=500)) * (1 + _ROUNDING) + _blur(target)


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

    surely = max(eps - _blur(target), eps / 2)

    def excess(log_mu: float) -> float:
        return math.log(max(float(privacy_profile(surely, mu=math.exp(log_mu))), 1e-320)) - math.log(target)

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
    while excess(high) < 0:
        high *= 2
    mu = math.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14, maxiter=500))
    return sensitivity / mu * (1 + _ROUNDING)
