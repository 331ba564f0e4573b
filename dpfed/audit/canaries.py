"""Federated canaries: artificial clients that send a random direction, found again in what is published.

A canary's update is a random unit vector, scaled far above the clip so that it is clipped; it takes part like any
client, each canary in a round of its own where participation is known (a simulation). Given the canary was absent, its
inner product with the published g is that of an independent direction: mean 0, standard deviation |g| / sqrt(d), and
Gaussian but for terms in 1/d.

What this does not give: the worst case (a random dense direction under-excites top-k and per-layer paths), and with
`published_estimate` not even a confidence. Use far fewer canaries in one round than coordinates.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, stdtrit

from accounting import require
from accounting.compose.loss_law import smallest_epsilon
from dpfed.audit.epsilon_bounds import epsilon_of_shift
from dpfed.audit.scores import checked_scores
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]

SMALLEST_DIMENSION = 1000
"""Below it the inner product of random directions is not Gaussian enough."""


def unit_canary(dimension: int, *, seed: int, index: int) -> Floats:
    """Canary number `index` of a seed: uniform on the unit sphere, [dimension]; every one a stream of its own."""
    size, number = require.count(dimension=dimension), require.count(at_least=0, index=index)
    drawn = np.random.default_rng([require.count(at_least=0, seed=seed), number]).standard_normal(size)
    return np.asarray(drawn / np.linalg.norm(drawn))


def null_std(published_norm: ArrayLike, *, dimension: int) -> Floats:
    """Standard deviation of <c, g> for a canary c that took no part: |g| / sqrt(d), exact. Shape: that of the norm."""
    size = _large_enough(dimension)
    norm = np.asarray(published_norm, dtype=float)
    if not np.all((norm > 0) & np.isfinite(norm)):
        raise ConfigError("published_norm: must be finite numbers above 0, the L2 norm of what each round published.")
    return np.asarray(norm / math.sqrt(size))


@dataclass(frozen=True, kw_only=True)
class CanaryBound:
    """A shift mu and its epsilon at `delta` that canaries show with confidence 1 - alpha, if scores are Gaussian."""

    mu: float
    epsilon: float
    delta: float
    alpha: float
    canaries: int
    mean: float
    std: float


def shift_lower_bound(dots: ArrayLike, *, null_std: ArrayLike, delta: float, alpha: float) -> CanaryBound:
    """mu >= mean - t_{1-alpha, k-1} s / sqrt(k) of the k scores <c_i, g_i> / null_std_i, and its epsilon at `delta`.

    dots [k]: inner products of each canary with what its round published; null_std: of `null_std`, one for each or one
    for all. Claim, for independent Gaussian scores of one mean: above the true mean shift (over the null's standard
    deviation, other clients' part included) with probability alpha; the epsilon is that of a Gaussian mechanism with
    this shift, whose null an adversary that knows the other updates would find narrower. Direction of error: lower
    bound under these assumptions; no statement about other canaries. delta in (0, 1).
    """
    target, level = require.open_probability(delta=delta), require.open_probability(alpha=alpha)
    given, spread = checked_scores(dots, "dots"), np.asarray(null_std, dtype=float)
    if given.size < 2 or spread.shape not in ((), given.shape) or not np.all((spread > 0) & np.isfinite(spread)):
        raise ConfigError(
            f"{given.size} canaries, null_std of shape {spread.shape}: at least two canaries, and a finite standard "
            "deviation above 0 for all or for each."
        )
    scores = given / spread
    if not np.isfinite(scores).all():
        raise ConfigError("dots: must be finite.")
    mean, std, k = float(scores.mean()), float(scores.std(ddof=1)), scores.size
    mu = max(0.0, mean - float(stdtrit(k - 1, 1 - level)) * std / math.sqrt(k))
    return CanaryBound(
        mu=mu,
        epsilon=epsilon_of_shift(mu, delta=target),
        delta=target,
        alpha=level,
        canaries=k,
        mean=mean,
        std=std,
    )


def published_estimate(cosines: ArrayLike, *, dimension: int, delta: float) -> float:
    """The estimator of Andrew et al. 2023 ("One-shot empirical privacy estimation"): NOT a bound.

    Fits N(m, s^2) to the canaries' cosines with the published g, takes N(0, 1/d) for absent ones, and returns the
    epsilon at `delta` between the two, the worse order. It overestimates: at epsilon 4.38 and 200 canaries by about 1
    with a spread of 1, as an error in s d^(1/2) is blown up in the tail. For comparison with others only.
    """
    target, size = require.open_probability(delta=delta), _large_enough(dimension)
    given = checked_scores(cosines, "cosines")
    if given.size < 2 or not np.all(np.abs(given) <= 1):
        raise ConfigError(f"{given.size} cosines: at least two, all in [-1, 1].")
    scaled = given * math.sqrt(size)
    mean, std = float(scaled.mean()), float(scaled.std(ddof=1))
    if std == 0:
        raise ConfigError("cosines: all alike, so that no law can be fitted.")
    return smallest_epsilon(lambda eps: gaussian_pair_delta(eps, mean=mean, std=std), target)


def gaussian_pair_delta(epsilon: float, *, mean: float, std: float) -> float:
    """The larger hockey-stick divergence, of the two orders, between N(mean, std^2) and N(0, 1). Exact to rounding.

    With unequal variances the log-ratio is quadratic: the event lies outside its roots for the wider law, inside for
    the narrower one.
    """
    return max(_one_order(epsilon, (mean, std), (0.0, 1.0)), _one_order(epsilon, (0.0, 1.0), (mean, std)))


def _one_order(epsilon: float, p: tuple[float, float], q: tuple[float, float]) -> float:
    """P(A) - e^eps Q(A) on A = {log p/q > eps}, log p/q - eps = a x^2 + b x + c."""
    (m1, s1), (m0, s0) = p, q
    a = (1 / s0**2 - 1 / s1**2) / 2
    b = m1 / s1**2 - m0 / s0**2
    c = math.log(s0 / s1) + (m0 / s0) ** 2 / 2 - (m1 / s1) ** 2 / 2 - epsilon
    pieces = _where_positive(a, b, c)
    gain = float(np.logaddexp.reduce([_log_mass(piece, m1, s1) for piece in pieces], initial=-math.inf))
    loss = float(np.logaddexp.reduce([_log_mass(piece, m0, s0) for piece in pieces], initial=-math.inf)) + epsilon
    return 0.0 if gain <= loss or math.isinf(gain) else math.exp(gain) * -math.expm1(loss - gain)


def _where_positive(a: float, b: float, c: float) -> list[tuple[float, float]]:
    """The intervals on which a x^2 + b x + c > 0."""
    if abs(a) < 1e-12:
        if b == 0:
            return [(-math.inf, math.inf)] if c > 0 else []
        return [(-c / b, math.inf)] if b > 0 else [(-math.inf, -c / b)]
    square = b * b - 4 * a * c
    if square <= 0:
        return [(-math.inf, math.inf)] if a > 0 else []
    q = -(b + math.copysign(math.sqrt(square), b)) / 2
    low, high = sorted((q / a, c / q))
    return [(-math.inf, low), (high, math.inf)] if a > 0 else [(low, high)]


def _log_mass(interval: tuple[float, float], mean: float, std: float) -> float:
    """log of the mass of an interval, from the tail that does not cancel."""
    low, high = ((end - mean) / std for end in interval)
    if low > 0:
        low, high = -high, -low
    top, bottom = float(log_ndtr(high)), float(log_ndtr(low))
    return top if math.isinf(bottom) else top + math.log(max(-math.expm1(bottom - top), 1e-300))


def _large_enough(dimension: int) -> int:
    size = require.count(dimension=dimension)
    if size < SMALLEST_DIMENSION:
        raise ConfigError(
            f"dimension={size}: must be at least {SMALLEST_DIMENSION}, below it the score of an absent canary is not "
            "Gaussian. Audit a single upload in two worlds (dpfed.audit.rejection)."
        )
    return size
