"""Closed-form profiles of one sampled round: fixed size, Poisson sampling, and Poisson sampling with a cap.

All follow from the optimal half-line for a weighted sum of three collinear Gaussians. Proofs: docs/theory.md.

Fixed size: a round draws r of n clients without replacement, sums their vectors of norm at most C, and adds N(0,
sigma^2 C^2). With q = r/n, s = 1/sigma, gamma = e^epsilon and g = 1 + (gamma - 1)/q, each profile here is the supremum
of the hockey-stick divergence over all neighbouring pairs in one order of the two neighbours, and it is attained. It is
the profile of one dominating pair, so T copies of that pair bound T adaptive rounds in that order.

Poisson: with q the sampling probability and s = 1/sigma, the sum is N(0) without the client, and with it N(s) with
probability q. Proofs: docs/theory.md; the add-remove pair is that of Zhu, Dong, Wang 2022.

Poisson with a cap: if more than K clients are drawn, a secret random K take part. Let R be the number of other clients
that are drawn. With zeta = Pr[R >= K] and p = E[q K / (R + 1) | R >= K], the hockey-stick divergence of a round is at
most (1 - zeta) h + zeta h' in each order of the neighbours (docs/theory.md, Theorem 9): h is the profile of plain
Poisson sampling; h', with the probability p to take part, is that of fixed-size sampling (zero-out, replace-one), or of
Poisson sampling with a shift of 2 clips (add-remove). Both are convex in gamma, so the sum is the profile of a
dominating pair, and rounds compose. The bound does not cover clients whose messages depend on earlier rounds, or that
learn that they were drawn and left out.
"""

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting.arrays import Floats
from accounting.gaussian.closed_form import privacy_profile
from accounting.mechanisms import Sampling
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.independent import full_round_multiplier


def half_line_supremum(log_near: Floats, log_middle: Floats, log_far: Floats, shift: float) -> Floats:
    """Return sup over t of far Phi(t + s) - middle Phi(t) - near Phi(t - s), s = shift. The weights are given as
    logarithms.

    Phi(t - s), Phi(t), Phi(t + s) are the masses that N(-s, 1), N(0, 1), N(s, 1) give to the half-line {x >= -t}. The
    derivative over phi(t) e^(-s^2/2) is far / x - middle e^(s^2/2) - near x with x = e^(ts). It decreases in x, so its
    only root is the maximum. Elementwise over arrays; never below 0 (t -> -infinity). Error: about 1e-15 of the largest
    term, because the error of the root enters only in second order.
    """
    log_b = log_middle + shift * shift / 2
    # near x^2 + b x = far  =>  x = 2 far / (b + sqrt(b^2 + 4 near far)), without cancellation or overflow.
    log_root = np.logaddexp(2 * log_b, np.log(4) + log_near + log_far) / 2
    t = (np.log(2) + log_far - np.logaddexp(log_b, log_root)) / shift
    gain = log_far + scipy.special.log_ndtr(t + shift)
    loss = np.logaddexp(log_middle + scipy.special.log_ndtr(t), log_near + scipy.special.log_ndtr(t - shift))
    return np.asarray(np.exp(gain) * -np.expm1(np.minimum(loss - gain, 0.0)))


def log_expm1(size: Floats) -> Floats:
    """Return log(e^size - 1) for size >= 0, without overflow; -infinity at 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(size + np.log(-np.expm1(-size)))


def log_complement(probability: float) -> float:
    """Return log(1 - probability); -infinity at 1."""
    return math.log1p(-probability) if probability < 1 else -math.inf


def fixed_size_replacement_profile(
    epsilon: ArrayLike, *, sampling_probability: float, noise_multiplier: float
) -> Floats:
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
    log_near = log_complement(q) + log_expm1(size)
    zeroing = half_line_supremum(log_near, np.log(q) + size, np.full(size.shape, np.log(q)), s)
    return zeroing, _amplified_profile(size, q, s)


def _amplified_profile(size: Floats, q: float, mu: float) -> Floats:
    """Return q H_g(N(mu) || N(0)) at gamma = e^size >= 1."""
    log_g = np.logaddexp(0.0, log_expm1(size) - np.log(q))
    return np.asarray(q * privacy_profile(log_g, mu=mu))


def removal_profile(epsilon: ArrayLike, *, sampling_probability: float, noise_multiplier: float) -> Floats:
    """Return H_gamma((1-q) N(0) + q N(s) || N(0)), gamma = e^epsilon, exact up to rounding.

    It is q H_g(N(s) || N(0)), g = (gamma - 1 + q)/q, for gamma > 1 - q; else 1 - gamma.
    """
    q, eps = sampling_probability, np.asarray(epsilon, dtype=float)
    fallen = np.expm1(np.minimum(eps, 0.0))
    with np.errstate(divide="ignore"):  # log 0 = -infinity if gamma <= 1 - q
        below_one = np.log1p(np.maximum(fallen / q, -1.0))
    above_one = np.logaddexp(0.0, log_expm1(np.maximum(eps, 0.0)) - np.log(q))
    inside = q * privacy_profile(np.where(eps > 0, above_one, below_one), mu=1 / noise_multiplier)
    return np.asarray(np.maximum(inside, -fallen))


def addition_profile(epsilon: ArrayLike, *, sampling_probability: float, noise_multiplier: float) -> Floats:
    """Return H_gamma(N(0) || (1-q) N(0) + q N(s)), gamma = e^epsilon, exact up to rounding.

    It is a H_(gamma q / a)(N(0) || N(s)) with a = 1 - gamma (1-q), for a > 0; else 0.
    """
    q, eps = sampling_probability, np.asarray(epsilon, dtype=float)
    a = -np.expm1(np.minimum(eps + log_complement(q), 0.0))
    safe = np.where(a > 0, a, 1.0)
    value = safe * privacy_profile(eps + np.log(q) - np.log(safe), mu=1 / noise_multiplier)
    return np.asarray(np.where(a > 0, value, 0.0))


def poisson_replacement_profile(epsilon: ArrayLike, *, sampling_probability: float, noise_multiplier: float) -> Floats:
    """Return H_gamma((1-q) N(0) + q N(s) || (1-q) N(0) + q N(-s)), gamma = e^epsilon, exact up to rounding.

    For gamma >= 1 it is the supremum over t of -gamma q Phi(t-s) + (1-q)(1-gamma) Phi(t) + q Phi(t+s); below 1 it
    follows by symmetry. This is the worst pair under replace-one (docs/theory.md, Theorem 3).
    """
    q, eps = sampling_probability, np.asarray(epsilon, dtype=float)
    size = np.abs(eps)
    log_middle = log_complement(q) + log_expm1(size)
    log_far = np.full(eps.shape, np.log(q))
    above_one = half_line_supremum(np.log(q) + size, log_middle, log_far, 1 / noise_multiplier)
    return symmetric_profile(eps, above_one)


Orders = tuple[Floats, Floats]
"""Profiles in both orders of the neighbours, at losses >= 0."""


def capped_profiles(losses: Floats, *, sampling: Sampling, adjacency: Adjacency, noise_multiplier: float) -> Orders:
    """Return upper bounds on the profiles of one round, in both orders of the neighbours.

    Domain: losses >= 0.
    Direction of error: upper bound. Each of the two parts is attained by a pair, their mean is not. Under add-remove
    the result is the maximum over n - 1 and n other clients.
    """

    def mean_profiles(zeta: float, p: float) -> Orders:
        """Return the mean of the profiles of rounds that are not full, and of full rounds, weighted by zeta."""
        plain = {"sampling_probability": sampling.probability, "noise_multiplier": noise_multiplier}
        restoring = {"sampling_probability": p, "noise_multiplier": noise_multiplier}
        displacing, zeroing = dict(restoring), zeroing_profile
        if full_round_multiplier(sampling) < math.inf:  # only pairs are dominated: joint convexity, p H_g(2 clips)
            displacing["noise_multiplier"], zeroing = full_round_multiplier(sampling), fixed_size_replacement_profile
        if adjacency is Adjacency.REPLACE_ONE:
            free = poisson_replacement_profile(losses, **plain)
            both = (1 - zeta) * free + zeta * fixed_size_replacement_profile(losses, **displacing)
            return both, both
        if adjacency is Adjacency.ADD_REMOVE:
            displacing["noise_multiplier"] /= 2
            forth, back = removal_profile(losses, **displacing), addition_profile(losses, **displacing)
        else:
            forth, back = zeroing(losses, **displacing), restoring_profile(losses, **restoring)
        return (
            (1 - zeta) * removal_profile(losses, **plain) + zeta * forth,
            (1 - zeta) * addition_profile(losses, **plain) + zeta * back,
        )

    forth, back = zip(*(mean_profiles(zeta, p) for zeta, p in sampling.full_rounds(adjacency)), strict=True)
    return np.maximum.reduce(forth), np.maximum.reduce(back)
