"""Bias of a clipped, noised probability, and the bias correction.

A client holds theta in [c, 1-c], adds N(0, sigma^2), clips to [c, 1-c] and draws a Bernoulli sample of that
probability. The mean of the sample is g(theta), not theta. This module has g, its derivative and its inverse. (The last
line of appendix C of the FedPM paper has a wrong exponential, as the tests show.)
"""

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.bernoulli.divergence import floor_of
from accounting.errors import InvalidParameter

_ROOT2 = np.sqrt(2)


def _checked(theta: ArrayLike, c: float, noise_std: float) -> tuple[Floats, float, float]:
    floor, sigma = floor_of(c), require.nonnegative(noise_std=noise_std)
    values = np.asarray(theta, dtype=float)
    if not np.all((values >= floor) & (values <= 1 - floor)):
        raise InvalidParameter(f"theta: must be in [c, 1-c] = [{floor:g}, {1 - floor:g}] everywhere; clip it first.")
    return values, floor, sigma


def clipped_mean(theta: ArrayLike, *, c: float, noise_std: float) -> Floats:
    """Return g(theta) = E clip(theta + N(0, sigma^2), c, 1-c), elementwise.

    With a = (c - theta)/sigma, b = (1 - c - theta)/sigma: g = c Phi(a) + theta (Phi(b) - Phi(a)) - sigma (phi(b) -
    phi(a)) + (1-c) (1 - Phi(b))
    Domain: theta in [c, 1-c], 0 < c < 1/2, noise_std >= 0 (0: g is the identity). A scalar gives a scalar. The error is
    at most 1e-15 for every sigma. g(1 - theta) = 1 - g(theta), and g is increasing.

    >>> from accounting import debias
    >>> float(debias.clipped_mean(0.2, c=0.2, noise_std=0.5)).__round__(4)
    0.3714
    """
    values, floor, sigma = _checked(theta, c, noise_std)
    if sigma == 0:
        return values[()]
    near, far = _distances_to_ends(values, floor, sigma)
    # Measured from the centre 1/2 and folded there, no terms cancel. expm1 gives exp(-near^2/2) - exp(-far^2/2): with
    # w = 1/2 - c and m = |theta - 1/2|, far^2 - near^2 = 4 w m / sigma^2.
    width, middle = 0.5 - floor, np.abs(values - 0.5)
    with np.errstate(over="ignore", under="ignore"):
        clipped = width * (scipy.special.erfc(near / _ROOT2) - scipy.special.erfc(far / _ROOT2)) / 2
        free = middle * (scipy.special.erf(near / _ROOT2) + scipy.special.erf(far / _ROOT2)) / 2
        density = np.exp(-near * near / 2) / np.sqrt(2 * np.pi)
        bent = -sigma * density * np.expm1(-2 * (width / sigma) * (middle / sigma))
    result = 0.5 + np.sign(values - 0.5) * (clipped + free - bent)
    return np.asarray(np.clip(result, floor, 1 - floor))[()]


def clipped_mean_slope(theta: ArrayLike, *, c: float, noise_std: float) -> Floats:
    """Return g'(theta) = Phi(b) - Phi(a), the probability that the clip does not bind.

    It is in (0, 1], largest at theta = 1/2, and decreases to both sides. The relative error is rounding only.
    """
    values, floor, sigma = _checked(theta, c, noise_std)
    if sigma == 0:
        return np.ones(values.shape)[()]
    near, far = _distances_to_ends(values, floor, sigma)
    return np.asarray((scipy.special.erf(near / _ROOT2) + scipy.special.erf(far / _ROOT2)) / 2)[()]


def _distances_to_ends(values: Floats, c: float, sigma: float) -> tuple[Floats, Floats]:
    """Return the distances of theta from the nearer and the farther end of [c, 1-c], in standard deviations."""
    middle = np.abs(values - 0.5)
    with np.errstate(over="ignore"):
        return np.maximum(0.5 - c - middle, 0.0) / sigma, (0.5 - c + middle) / sigma


def reachable(*, c: float, noise_std: float) -> tuple[float, float]:
    """Return [g(c), g(1-c)], the range of the mean of samples of clients that follow the protocol.

    >>> from accounting import debias
    >>> [round(end, 3) for end in debias.reachable(c=0.2, noise_std=0.5)]
    [0.371, 0.629]
    """
    low = float(clipped_mean(c, c=c, noise_std=noise_std))
    return low, 1 - low


def invert(mean: ArrayLike, *, c: float, noise_std: float) -> Floats:
    """Return g^-1(mean), elementwise: an estimate of theta from the mean of Bernoulli samples.

    A mean outside the range of `reachable` is first clamped to it, so the result is in [c, 1-c]. Bisection is exact to
    2^-52. The inverse is exact if all clients hold equal theta; otherwise the estimate is biased, because g is
    nonlinear. For n clients at theta the variance is about g (1 - g) / (n g'^2), which is large near the ends of [c,
    1-c].

    >>> from accounting import debias
    >>> round(float(debias.invert(0.55, c=0.2, noise_std=0.5)), 4)
    0.6116
    """
    floor, sigma = floor_of(c), require.nonnegative(noise_std=noise_std)
    given = np.asarray(mean, dtype=float)
    if np.any(np.isnan(given)):
        raise InvalidParameter("mean: contains NaN; must be numbers in [0, 1].")
    low_mean, high_mean = reachable(c=floor, noise_std=sigma)
    clamped_mean_values = np.clip(given, low_mean, high_mean)
    if sigma == 0:
        return np.asarray(clamped_mean_values)[()]
    low, high = np.full(clamped_mean_values.shape, floor), np.full(clamped_mean_values.shape, 1 - floor)
    for _ in range(54):
        middle = (low + high) / 2
        below = np.asarray(clipped_mean(middle, c=floor, noise_std=sigma)) < clamped_mean_values
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return ((low + high) / 2)[()]
