"""A tight account of fixed-size sampling without replacement; no library has one. Proofs: docs/theory.md.

A round draws r of n clients without replacement, sums their vectors of norm at most C, adds N(0, sigma^2 C^2).
The one-round profile h below is the supremum over all neighbouring pairs in both orders; it is attained, and it
is the profile of one dominating pair, so T copies of that pair bound T adaptive rounds.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from accounting.errors import UnsupportedMechanism
from accounting.gaussian import privacy_profile
from accounting.mechanisms import Adjacency, FixedSizeSampling, Subsampled

Floats = NDArray[np.float64]


def round_profile(epsilon: ArrayLike, mechanism: Subsampled) -> Floats:
    """delta(epsilon) of one round: the supremum of the hockey-stick divergence over all neighbours, both orders.

    With q = r/n, s = 1/sigma, gamma = e^epsilon >= 1 and g = 1 + (gamma - 1)/q:
      replace-one   h = q H_g(N(2s, 1) || N(0, 1))                                     (docs/theory.md, Thm 1)
      zero-out      h = max of  q H_g(N(s, 1) || N(0, 1))  and
                    sup_t (1-q)(1-gamma) Phi(t-s) + q Phi(t+s) - gamma q Phi(t)        (docs/theory.md, Thm 2)
    and h(gamma) = 1 - gamma + gamma h(1/gamma) below 1. Shape: that of `epsilon`. Adjacency: as named; add-remove
    is refused. Error: exact for replace-one to rounding; for zero-out the supremum is found to 1e-13 relative and
    is an upper bound to rounding.
    """
    sampling = mechanism.sampling
    if not isinstance(sampling, FixedSizeSampling):
        raise UnsupportedMechanism(f"sampling={sampling!r}: this profile is for fixed-size sampling.")
    eps = np.asarray(epsilon, dtype=float)
    size = np.abs(eps)
    q, s = sampling.probability, 1 / mechanism.mechanism.noise_multiplier
    # log g without overflow: log(1 + (e^size - 1)/q).
    log_g = np.where(size > 30, size - np.log(q), np.log1p(np.expm1(np.minimum(size, 30.0)) / q))
    if mechanism.adjacency is Adjacency.REPLACE_ONE:
        above_one = q * privacy_profile(log_g, mu=2 * s)
    else:
        above_one = np.maximum(q * privacy_profile(log_g, mu=s), _zeroed_profile(size, q, s))
    mirrored = -np.expm1(-size) + np.exp(-size) * above_one
    return np.asarray(np.where(eps >= 0, above_one, mirrored))


def _zeroed_profile(size: Floats, q: float, s: float) -> Floats:
    """sup_t of the zero-out objective at gamma = e^size, at its one stationary point.

    The derivative over phi(t) e^(-s^2/2) is  -(1-q)(gamma-1) x + q/x - gamma q e^(s^2/2)  with x = e^(ts): it falls
    in x, so its root is the maximum. Over gamma: a x^2 + b x = c; x = 2c / (b + sqrt(b^2 + 4ac)), in logarithms.
    """
    a = (1 - q) * -np.expm1(-size)
    log_b = np.log(q) + s * s / 2
    log_c = np.log(q) - size
    with np.errstate(divide="ignore"):
        log_root = np.logaddexp(2 * log_b, np.log(4 * a) + log_c) / 2
    t = (np.log(2) + log_c - np.logaddexp(log_b, log_root)) / s
    gamma = np.exp(np.minimum(size, 700.0))
    value = (1 - q) * (1 - gamma) * ndtr(t - s) + q * ndtr(t + s) - gamma * q * ndtr(t)
    return np.asarray(np.maximum(value, 0.0))
