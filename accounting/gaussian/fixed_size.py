"""Tight account of one round of fixed-size sampling without replacement. Proofs: docs/theory.md.

A round draws r of n clients without replacement, sums their vectors of norm at most C, and adds N(0, sigma^2 C^2). With
q = r/n, s = 1/sigma, gamma = e^epsilon and g = 1 + (gamma - 1)/q, each profile here is the supremum of the hockey-stick
divergence over all neighbouring pairs in one order of the two neighbours, and it is attained. It is the profile of one
dominating pair, so T copies of that pair bound T adaptive rounds in that order.
"""

import numpy as np
from numpy.typing import ArrayLike

from accounting.arrays import Floats
from accounting.gaussian import half_lines
from accounting.gaussian.closed_form import privacy_profile


def replacement_profile(epsilon: ArrayLike, *, sampling_probability: float, noise_multiplier: float) -> Floats:
    """Return the largest H_gamma if one client's vector is replaced by any other vector; both orders are equal.

    h = q H_g(N(2s) || N(0)) for gamma >= 1 (docs/theory.md, Theorem 1); 1 - gamma + gamma h(1/gamma) below.
    Shape: that of `epsilon`.
    Adjacency: replace-one.
    Direction of error: none but rounding.
    """
    eps = np.asarray(epsilon, dtype=float)
    return symmetric_profile(eps, _amplified_profile(np.abs(eps), sampling_probability, 2 / noise_multiplier))


def zeroing_profile(epsilon: ArrayLike, *, sampling_probability: float, noise_multiplier: float) -> Floats:
    """Return the largest H_gamma(P || Q), P with the client's vector and Q with zero in its place.

    h = sup_t q Phi(t+s) - gamma q Phi(t) - (1-q)(gamma-1) Phi(t-s) for gamma >= 1 (docs/theory.md, Theorem 2, first
    order); below 1 it follows from the other order.
    Shape: that of `epsilon`.
    Adjacency: zero-out.
    Direction of error: none but rounding.
    """
    eps = np.asarray(epsilon, dtype=float)
    forth, back = _zero_out_profiles(np.abs(eps), sampling_probability, 1 / noise_multiplier)
    return profile_from_both_orders(eps, forth, back)


def restoring_profile(epsilon: ArrayLike, *, sampling_probability: float, noise_multiplier: float) -> Floats:
    """Return the largest H_gamma(P || Q), P with zero in place of the client's vector and Q with the vector.

    h = q H_g(N(s) || N(0)) for gamma >= 1 (docs/theory.md, Theorem 2, second order); below 1 it follows from the other
    order.
    Shape: that of `epsilon`.
    Adjacency: zero-out.
    Direction of error: none but rounding.
    """
    eps = np.asarray(epsilon, dtype=float)
    forth, back = _zero_out_profiles(np.abs(eps), sampling_probability, 1 / noise_multiplier)
    return profile_from_both_orders(eps, back, forth)


def profile_from_both_orders(epsilon: Floats, forth: Floats, back: Floats) -> Floats:
    """Return a profile at all epsilon from its values at |epsilon| (`forth`) and those of the exchanged neighbours
    (`back`).

    Below gamma = 1:  h(gamma) = 1 - gamma + gamma h_back(1/gamma).
    """
    size = np.abs(epsilon)
    mirrored = -np.expm1(-size) + np.exp(-size) * back
    return np.asarray(np.where(epsilon >= 0, forth, mirrored))


def symmetric_profile(epsilon: Floats, at_absolute: Floats) -> Floats:
    """Return a profile that is symmetric under exchange of the neighbours, from its values at |epsilon|."""
    return profile_from_both_orders(epsilon, at_absolute, at_absolute)


def _zero_out_profiles(size: Floats, q: float, s: float) -> tuple[Floats, Floats]:
    log_near = half_lines.log_complement(q) + half_lines.log_expm1(size)
    zeroing = half_lines.half_line_supremum(log_near, np.log(q) + size, np.full(size.shape, np.log(q)), s)
    return zeroing, _amplified_profile(size, q, s)


def _amplified_profile(size: Floats, q: float, mu: float) -> Floats:
    """Return q H_g(N(mu) || N(0)) at gamma = e^size >= 1."""
    log_g = np.logaddexp(0.0, half_lines.log_expm1(size) - np.log(q))
    return np.asarray(q * privacy_profile(log_g, mu=mu))
