"""Bias of a clipped, noised probability, and its correction.

A client holds theta in [c, 1-c], adds N(0, sigma^2), clips to [c, 1-c] and draws a Bernoulli sample of that
probability. Its mean is g(theta), not theta. This file has g, its derivative and its inverse. (The last line of the
FedPM paper's appendix C has a wrong exponential; the tests show it.)
"""

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.bernoulli.divergence import floor_of
from accounting.errors import InvalidParameter

_ROOT2 = np.sqrt(2)


def _inside(theta: ArrayLike, c: float) -> Floats:
    values = np.asarray(theta, dtype=float)
    if not np.all((values >= c) & (values <= 1 - c)):
        raise InvalidParameter(f"theta: must be in [c, 1-c] = [{c:g}, {1 - c:g}] everywhere; clip it first.")
    return values


def clipped_mean(theta: ArrayLike, *, c: float, noise_std: float) -> Floats:
    """Return g(theta) = E clip(theta + N(0, sigma^2), c, 1-c), elementwise.

    With a = (c - theta)/sigma, b = (1 - c - theta)/sigma:
        g = c Phi(a) + theta (Phi(b) - Phi(a)) - sigma (phi(b) - phi(a)) + (1-c) (1 - Phi(b))
    Domain: theta in [c, 1-c], 0 < c < 1/2, noise_std >= 0 (0: the identity). A scalar gives a scalar. Exact to
    1e-15 absolute at every sigma. g(1 - theta) = 1 - g(theta); g rises.

    >>> from accounting import debias
    >>> float(debias.clipped_mean(0.2, c=0.2, noise_std=0.5)).__round__(4)
    0.3714
    """
    floor, sigma = floor_of(c), require.nonnegative(noise_std=noise_std)
    values = _inside(theta, floor)
    if sigma == 0:
        return values if values.ndim else values[()]
    near, far = _to_the_ends(values, floor, sigma)
    # Folded at 1/2 and measured from there, nothing cancels. exp(-near^2/2) - exp(-far^2/2) by expm1; with
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

    In (0, 1]; largest at theta = 1/2, falls from there to both sides. Exact to rounding, relatively.
    """
    floor, sigma = floor_of(c), require.nonnegative(noise_std=noise_std)
    values = _inside(theta, floor)
    if sigma == 0:
        return np.ones(values.shape)[()]
    near, far = _to_the_ends(values, floor, sigma)
    return np.asarray((scipy.special.erf(near / _ROOT2) + scipy.special.erf(far / _ROOT2)) / 2)[()]


def _to_the_ends(values: Floats, c: float, sigma: float) -> tuple[Floats, Floats]:
    """Return distances of theta to the nearer and the farther end of [c, 1-c], in standard deviations."""
    middle = np.abs(values - 0.5)
    with np.errstate(over="ignore"):
        return np.maximum(0.5 - c - middle, 0.0) / sigma, (0.5 - c + middle) / sigma


def reachable(*, c: float, noise_std: float) -> tuple[float, float]:
    """Return [g(c), g(1-c)], the range of the mean of honest samples. At sigma = 1/2, c = .2 only [.371, .629].

    >>> from accounting import debias
    >>> [round(end, 3) for end in debias.reachable(c=0.2, noise_std=0.5)]
    [0.371, 0.629]
    """
    low = float(clipped_mean(c, c=c, noise_std=noise_std))
    return low, 1 - low


def invert(mean: ArrayLike, *, c: float, noise_std: float) -> Floats:
    """Return g^-1(mean), elementwise: the estimator of theta from a mean of Bernoulli samples.

    A mean outside the reachable range is clamped to it first, so the result is in [c, 1-c]. Bisection to 2^-52; exact
    if all clients hold the same theta. If they differ it inverts a nonlinear map on an average, which is biased. For n
    clients at theta the variance is about g (1 - g) / (n g'^2): large near the ends.

    >>> from accounting import debias
    >>> round(float(debias.invert(0.55, c=0.2, noise_std=0.5)), 4)
    0.6116
    """
    floor, sigma = floor_of(c), require.nonnegative(noise_std=noise_std)
    given = np.asarray(mean, dtype=float)
    if np.any(np.isnan(given)):
        raise InvalidParameter("mean: holds NaN; must be numbers in [0, 1].")
    low_mean, high_mean = reachable(c=floor, noise_std=sigma)
    wanted = np.clip(given, low_mean, high_mean)
    if sigma == 0:
        return np.asarray(wanted)[()]
    low, high = np.full(wanted.shape, floor), np.full(wanted.shape, 1 - floor)
    for _ in range(54):
        middle = (low + high) / 2
        below = np.asarray(clipped_mean(middle, c=floor, noise_std=sigma)) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return ((low + high) / 2)[()]
