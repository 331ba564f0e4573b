"""Closed-form profiles of the dominating pairs of one Poisson-sampled Gaussian round.

With q the sampling probability and s = 1/sigma, the sum is N(0) without the client, and with it N(s) with probability
q. Proofs: docs/theory.md; the add-remove pair is that of Zhu, Dong, Wang 2022.
"""

import numpy as np
from numpy.typing import ArrayLike

from accounting.arrays import Floats
from accounting.gaussian import half_lines
from accounting.gaussian.closed_form import privacy_profile
from accounting.gaussian.fixed_size import symmetric_profile


def removal_profile(epsilon: ArrayLike, *, sampling_probability: float, noise_multiplier: float) -> Floats:
    """Return H_gamma((1-q) N(0) + q N(s) || N(0)), gamma = e^epsilon, exact up to rounding.

    It is q H_g(N(s) || N(0)), g = (gamma - 1 + q)/q, for gamma > 1 - q; else 1 - gamma.
    """
    q, eps = sampling_probability, np.asarray(epsilon, dtype=float)
    fallen = np.expm1(np.minimum(eps, 0.0))
    with np.errstate(divide="ignore"):  # log 0 = -infinity if gamma <= 1 - q
        below_one = np.log1p(np.maximum(fallen / q, -1.0))
    above_one = np.logaddexp(0.0, half_lines.log_expm1(np.maximum(eps, 0.0)) - np.log(q))
    inside = q * privacy_profile(np.where(eps > 0, above_one, below_one), mu=1 / noise_multiplier)
    return np.asarray(np.maximum(inside, -fallen))


def addition_profile(epsilon: ArrayLike, *, sampling_probability: float, noise_multiplier: float) -> Floats:
    """Return H_gamma(N(0) || (1-q) N(0) + q N(s)), gamma = e^epsilon, exact up to rounding.

    It is a H_(gamma q / a)(N(0) || N(s)) with a = 1 - gamma (1-q), for a > 0; else 0.
    """
    q, eps = sampling_probability, np.asarray(epsilon, dtype=float)
    a = -np.expm1(np.minimum(eps + half_lines.log_complement(q), 0.0))
    safe = np.where(a > 0, a, 1.0)
    value = safe * privacy_profile(eps + np.log(q) - np.log(safe), mu=1 / noise_multiplier)
    return np.asarray(np.where(a > 0, value, 0.0))


def replacement_profile(epsilon: ArrayLike, *, sampling_probability: float, noise_multiplier: float) -> Floats:
    """Return H_gamma((1-q) N(0) + q N(s) || (1-q) N(0) + q N(-s)), gamma = e^epsilon, exact up to rounding.

    For gamma >= 1 it is the supremum over t of -gamma q Phi(t-s) + (1-q)(1-gamma) Phi(t) + q Phi(t+s); below 1 it
    follows by symmetry. This is the worst pair under replace-one (docs/theory.md, Theorem 3).
    """
    q, eps = sampling_probability, np.asarray(epsilon, dtype=float)
    size = np.abs(eps)
    log_middle = half_lines.log_complement(q) + half_lines.log_expm1(size)
    log_far = np.full(eps.shape, np.log(q))
    above_one = half_lines.half_line_supremum(np.log(q) + size, log_middle, log_far, 1 / noise_multiplier)
    return symmetric_profile(eps, above_one)
