"""Optimal half-line for a weighted sum of three collinear Gaussians, from which sampled profiles follow."""

import math

import numpy as np
import scipy

from accounting.arrays import Floats


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
