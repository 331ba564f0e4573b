"""A tight account of fixed-size sampling without replacement; no library has one. Proofs: docs/theory.md.

A round draws r of n clients without replacement, sums their vectors of norm at most C, adds N(0, sigma^2 C^2).
The one-round profile h below is the supremum over all neighbouring pairs in both orders; it is attained, and it
is the profile of one dominating pair, so T copies of that pair bound T adaptive rounds.
"""

import numpy as np
from numpy.typing import ArrayLike

from accounting import half_lines
from accounting.errors import UnsupportedMechanism
from accounting.gaussian import privacy_profile
from accounting.half_lines import Floats
from accounting.mechanisms import Adjacency, FixedSizeSampling, Subsampled


def round_profile(epsilon: ArrayLike, mechanism: Subsampled) -> Floats:
    """delta(epsilon) of one round: the supremum of the hockey-stick divergence over all neighbours, both orders.

    With q = r/n, s = 1/sigma, gamma = e^epsilon >= 1 and g = 1 + (gamma - 1)/q:
      replace-one   h = q H_g(N(2s, 1) || N(0, 1))                                     (docs/theory.md, Theorem 1)
      zero-out      h = max of  q H_g(N(s, 1) || N(0, 1))  and
                    sup_t (1-q)(1-gamma) Phi(t-s) - gamma q Phi(t) + q Phi(t+s)        (docs/theory.md, Theorem 2)
    and h(gamma) = 1 - gamma + gamma h(1/gamma) below 1. Shape: that of `epsilon`. Adjacency: as named; add-remove
    cannot be built. Error: exact to rounding (about 1e-13 relative).
    """
    sampling = mechanism.sampling
    if not isinstance(sampling, FixedSizeSampling):
        raise UnsupportedMechanism(f"sampling={sampling!r}: this profile is for fixed-size sampling.")
    eps = np.asarray(epsilon, dtype=float)
    size = np.abs(eps)
    q, s = sampling.probability, 1 / mechanism.mechanism.noise_multiplier
    log_g = np.logaddexp(0.0, half_lines.log_expm1(size) - np.log(q))
    if mechanism.adjacency is Adjacency.REPLACE_ONE:
        above_one = q * privacy_profile(log_g, mu=2 * s)
    else:
        above_one = np.maximum(q * privacy_profile(log_g, mu=s), _zeroed_towards_zero(size, q, s))
    return symmetric(eps, above_one)


def _zeroed_towards_zero(size: Floats, q: float, s: float) -> Floats:
    """The order of zero-out in which the client sends +C in one world and 0 in the other, all others -C."""
    log_near = np.log1p(-q) + half_lines.log_expm1(size)
    return half_lines.supremum(log_near, np.log(q) + size, np.full(size.shape, np.log(q)), s)


def symmetric(epsilon: Floats, at_absolute: Floats) -> Floats:
    """A profile that is its own reverse, from its values at |epsilon|: h(gamma) = 1 - gamma + gamma h(1/gamma)."""
    mirrored = -np.expm1(-np.abs(epsilon)) + np.exp(-np.abs(epsilon)) * at_absolute
    return np.asarray(np.where(epsilon >= 0, at_absolute, mirrored))
