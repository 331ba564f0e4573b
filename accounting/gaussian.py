"""The Gaussian mechanism in closed form: no sampling, exact to rounding.

Everything is a function of mu = (L2 sensitivity) / (noise standard deviation).
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from accounting import require
from accounting.errors import InvalidParameter

# Safety against rounding: a bracketed root is exact to about 1e-15 relative; results move this far to the safe side.
_ROUNDING = 1e-12


def privacy_profile(epsilon: ArrayLike, *, mu: float) -> NDArray[np.float64]:
    """The exact privacy profile of a Gaussian mechanism: the smallest delta at `epsilon`.

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)     (Balle, Wang 2018, Thm 8)

    Domain: mu > 0, any real epsilon (negative ones too: the hockey-stick divergence of order e^epsilon).
    Shape: that of `epsilon`. Holds for the adjacency whose sensitivity is in mu; symmetric in the two worlds.
    Error: exact up to a relative rounding of about 1e-13 (evaluated in logarithms).
    """
    mu = require.positive(mu=mu)
    eps = np.asarray(epsilon, dtype=float)
    log_gain = log_ndtr(mu / 2 - eps / mu)
    log_loss = eps + log_ndtr(-mu / 2 - eps / mu)
    # exp(a) - exp(b) with b <= a, without cancelling: exp(a) (1 - exp(b - a)).
    return np.asarray(np.exp(log_gain) * -np.expm1(np.minimum(log_loss - log_gain, 0.0)))


def smallest_epsilon(delta: float, *, mu: float) -> float:
    """The smallest epsilon >= 0 at which a mu-Gaussian mechanism has `delta`; rounded upwards.

    Inverse of `privacy_profile` (Balle, Wang 2018), by a bracketed root. Direction of error: upper bound, at most 1e-12
    relative above the exact value.
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

    return float(brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14, maxiter=500)) * (1 + _ROUNDING)


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

    def excess(log_mu: float) -> float:
        return math.log(max(float(privacy_profile(eps, mu=math.exp(log_mu))), 1e-320)) - math.log(target)

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
    while excess(high) < 0:
        high *= 2
    mu = math.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14, maxiter=500))
    return sensitivity / mu * (1 + _ROUNDING)
