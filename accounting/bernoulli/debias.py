"""Bias of a clipped, noised probability, and its correction.

A client holds theta in [c, 1-c], adds N(0, sigma^2), clips to [c, 1-c] and draws a coin of that probability. The coin
is Bernoulli with mean g(theta), not theta. This file has g, its derivative and inverse, and what correcting costs.
(The last line of the FedPM paper's appendix C has a wrong exponential; the tests show it.)
"""

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from accounting import require
from accounting.errors import InvalidParameter

Floats = NDArray[np.float64]

_ROOT2 = np.sqrt(2)


def _floor(c: float) -> float:
    value = require.real("a number in (0, 1/2)", c=c)
    if not 0 < value < 0.5:
        raise InvalidParameter(f"c={c!r}: must be in (0, 1/2), the floor of the probabilities.")
    return value


def _inside(theta: ArrayLike, c: float) -> Floats:
    values = np.asarray(theta, dtype=float)
    if not np.all((values >= c) & (values <= 1 - c)):
        raise InvalidParameter(f"theta: must be in [c, 1-c] = [{c:g}, {1 - c:g}] everywhere; clip it first.")
    return values


def clipped_mean(theta: ArrayLike, *, c: float, noise_std: float) -> Floats:
    """g(theta) = E clip(theta + N(0, sigma^2), c, 1-c), elementwise.

    With a = (c - theta)/sigma, b = (1 - c - theta)/sigma:
        g = c Phi(a) + theta (Phi(b) - Phi(a)) - sigma (phi(b) - phi(a)) + (1-c) (1 - Phi(b))
    Domain: theta in [c, 1-c], 0 < c < 1/2, noise_std >= 0 (0: the identity). A scalar gives a scalar. Exact to
    1e-15 absolute at every sigma. g(1 - theta) = 1 - g(theta); g rises.
    """
    floor, sigma = _floor(c), require.nonnegative(noise_std=noise_std)
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
    """g'(theta) = Phi(b) - Phi(a), the chance that the clip does not bind. In (0, 1]; largest at theta = 1/2, falls
    from there to both sides. Exact to rounding, relatively."""
    floor, sigma = _floor(c), require.nonnegative(noise_std=noise_std)
    values = _inside(theta, floor)
    if sigma == 0:
        return np.ones(values.shape)[()]
    near, far = _to_the_ends(values, floor, sigma)
    return np.asarray((scipy.special.erf(near / _ROOT2) + scipy.special.erf(far / _ROOT2)) / 2)[()]


def _to_the_ends(values: Floats, c: float, sigma: float) -> tuple[Floats, Floats]:
    """Distances of theta to the nearer and the farther end of [c, 1-c], in standard deviations."""
    middle = np.abs(values - 0.5)
    with np.errstate(over="ignore"):
        return np.maximum(0.5 - c - middle, 0.0) / sigma, (0.5 - c + middle) / sigma


def reachable(*, c: float, noise_std: float) -> tuple[float, float]:
    """[g(c), g(1-c)]: what the mean of honest coins can be. At sigma = 1/2, c = .2 only [.371, .629]."""
    low = float(clipped_mean(c, c=c, noise_std=noise_std))
    return low, 1 - low


def invert(mean: ArrayLike, *, c: float, noise_std: float) -> Floats:
    """g^-1(mean), elementwise: the estimator of theta from a mean of coins. A mean outside the reachable range is
    clamped to it first, so the result is in [c, 1-c].

    Bisection to 2^-52; exact when all clients hold the same theta. When they differ it inverts a nonlinear map on an
    average: see `inversion_bias`. Near the ends its slope 1/g' is large, and so is its variance: `inversion_variance`.
    """
    floor, sigma = _floor(c), require.nonnegative(noise_std=noise_std)
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


def inversion_bias(thetas: ArrayLike, *, c: float, noise_std: float) -> float:
    """g^-1(mean of g(theta_i)) - mean of theta_i: what inverting the mean gets wrong for clients `thetas` [n].

    0 when all agree; of either sign when they differ, since g is not linear.
    """
    values = np.asarray(thetas, dtype=float)
    mean = float(np.mean(np.asarray(clipped_mean(values, c=c, noise_std=noise_std))))
    return float(invert(mean, c=c, noise_std=noise_std)) - float(values.mean())


def inversion_variance(theta: ArrayLike, *, clients: int, c: float, noise_std: float) -> Floats:
    """Variance of the inverted mean of `clients` coins, all at theta, by the delta method: g(1-g) / (n g'^2).

    An estimate for large n away from the ends; without correction the variance is g(1-g)/n.
    """
    n = require.count(clients=clients)
    mean = np.asarray(clipped_mean(theta, c=c, noise_std=noise_std))
    slope = np.asarray(clipped_mean_slope(theta, c=c, noise_std=noise_std))
    return np.asarray(mean * (1 - mean) / (n * slope**2))[()]


@dataclass(frozen=True, kw_only=True)
class UnbiasedEncoding:
    """Coins with E m = theta for every client: noise is added to g^-1(theta) instead of theta.

    Possible for theta in [low, high] = [g(c), g(1-c)] only. The map theta -> g^-1(theta) stretches: a move of theta by
    `delta` becomes up to `stretch` delta, which is the sensitivity that the noise must cover (stretch >= 1).
    """

    c: float
    noise_std: float
    low: float
    high: float
    stretch: float

    def pre_noise(self, theta: ArrayLike) -> Floats:
        """What to add N(0, sigma^2) to and clip: g^-1(theta), with theta clamped to [low, high]."""
        return invert(theta, c=self.c, noise_std=self.noise_std)


def unbiased_encoding(*, c: float, noise_std: float, room: float = 0.0) -> UnbiasedEncoding:
    """The per-client correction. `room` in [0, 1) keeps theta that fraction of the half-width away from the reachable
    ends, where g is flattest. The stretch is 1 / min g' over the inner range, which g' has at its ends."""
    margin = require.probability(room=room)
    low, high = reachable(c=c, noise_std=noise_std)
    low, high = low + margin * (0.5 - low), high - margin * (high - 0.5)
    slope = float(clipped_mean_slope(float(invert(low, c=c, noise_std=noise_std)), c=c, noise_std=noise_std))
    return UnbiasedEncoding(c=c, noise_std=noise_std, low=low, high=high, stretch=1 / slope)
