"""Account of sums of discrete Gaussians, by their closeness to a continuous Gaussian (docs/theory.md, section 7).

The Poisson summation formula bounds the effect of the lattice: for real c, sum over n of exp(-(n + c)^2 / 2 s^2) lies
in s sqrt(2 pi) [1 - e(s^2), 1 + e(s^2)], e(s^2) = 2 sum_{k>=1} exp(-2 pi^2 s^2 k^2), which is 5e-9 at s = 1 and 1e-34
at s = 2. All bounds of this module follow from that; all variances are in squared steps.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.errors import UnsupportedMechanism
from accounting.gaussian.account import closeness_penalty
from accounting.mechanisms.gaussian import Gaussian
from accounting.mechanisms.integers import DiscreteGaussian
from accounting.mechanisms.kinds import Account
from accounting.rounding import upwards

_TERMS = 12
_EXACT_SHARES = 10_000
_ROUNDING = 1 + 1e-12


def lattice_distortion(variance: ArrayLike) -> Floats:
    """Return 2 artanh(e(variance)), the largest log-ratio between the sums above for two shifts c.

    It equals log((1 + e)/(1 - e)), elementwise; infinite for e >= 1 (variances below 0.04).
    Direction of error: upper bound.
    """
    v = np.asarray(variance, dtype=float)
    k = np.arange(1, _TERMS + 1)
    # If e is below 1, the omitted terms are below exp(-2 pi^2 0.035 13^2) < 1e-50.
    e = 2 * np.exp(-2 * math.pi**2 * np.multiply.outer(np.maximum(v, 0.0), k**2)).sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where((e < 1) & (v > 0.035), 2 * np.arctanh(np.minimum(e, 1.0)) * _ROUNDING, np.inf))


def shares_distortion(share_variance: float, shares: int) -> float:
    """Return tau such that the sum of `shares` draws of N_Z(0, share_variance) is within e^±tau of N_Z(0, shares
    share_variance).

    tau = sum_{k=1}^{shares-1} lattice_distortion(share_variance k / (k+1)).
    Claim: for every integer, the ratio of its two probabilities is in [e^-tau, e^tau].
    Direction of error: upper bound; infinite for tiny noise.
    """
    variance, count = require.positive(share_variance=share_variance), require.count(shares=shares)
    k = np.arange(1, min(count, _EXACT_SHARES), dtype=float)
    if not len(k):
        return 0.0
    steps = lattice_distortion(variance * k / (k + 1))
    rest = count - 1 - len(k)
    return float(steps.sum() + (rest * steps[-1] if rest else 0.0)) * _ROUNDING  # steps decrease in k


def renyi(orders: ArrayLike, mechanism: DiscreteGaussian) -> Floats:
    """Return the Renyi divergence of neighbouring sums, unsampled, at real orders above 1.

    With D the sensitivity, V the variance, tau of `shares_distortion`, and n = min(dimension, D^2) the largest number
    of coordinates in which neighbours differ:

        min{ a/2 (D / sqrt V + 2 tau sqrt n)^2,  a D^2 / 2V + n tau (2a - 1)/(a - 1) }

    Adjacency: the mechanism's, both orders of the neighbours.
    Source for one share (tau = 0): Canonne, Kamath, Steinke 2020.
    Direction of error: upper bound.
    Errors: UnsupportedMechanism for infinite tau.
    """
    a = np.asarray(orders, dtype=float)
    tau = _require_finite(shares_distortion(mechanism.share_variance, mechanism.shares), mechanism)
    shift = mechanism.sensitivity / math.sqrt(mechanism.variance)
    differing_coordinates = min(mechanism.dimension, math.floor(mechanism.sensitivity**2 * _ROUNDING))
    return np.minimum(
        a / 2 * (shift + 2 * tau * math.sqrt(differing_coordinates)) ** 2,
        a / 2 * shift**2 + closeness_penalty(a, differing_coordinates * tau),
    )


def twin(noise: DiscreteGaussian, count: int) -> tuple[Gaussian, float]:
    """Return a Gaussian and eta, the log-ratio within which the noise is a post-processing of that Gaussian.

    A sum of discrete Gaussians of variance V is within e^±eta of a post-processing of a Gaussian of variance V - t^2,
    eta = dimension (tau + lattice_distortion(t^2)), for each t. t is chosen near the best for `count` releases.
    Direction of error: upper bound.
    Errors: UnsupportedMechanism if eta is infinite for every t, as for noise below 0.2 steps.
    """
    smoothing, eta = _best_smoothing(noise, count)
    strength = math.sqrt(noise.variance - smoothing) / noise.l2_bound
    return Gaussian(noise_multiplier=strength / _ROUNDING, adjacency=noise.adjacency), eta


def twin_remark(noise: DiscreteGaussian, closeness: float) -> str:
    """Return a note on the closeness of the sums to discrete and to continuous Gaussians."""
    tau = shares_distortion(noise.share_variance, noise.shares)
    size = f"= {upwards(tau)}" if tau > 1e-300 else "below 1e-300"
    return (
        f"tau {size}: a coordinate's sum of shares is within e^±tau of a discrete Gaussian; the whole run is within "
        f"e^±{upwards(closeness)} of a run with continuous noise"
    )


def _best_smoothing(noise: DiscreteGaussian, count: int) -> tuple[float, float]:
    """Return t^2, and the eta of one release at this t^2.

    Any t^2 below the variance is valid; the chosen t^2 minimises the sum of two errors of an epsilon near 1: 2 eta for
    each release, and relative t^2 / 2 (V - t^2) from less noise.
    """
    tau = _require_finite(shares_distortion(noise.share_variance, noise.shares), noise)
    candidates = np.linspace(0.04, min(0.99 * noise.variance, 10.0), 500)
    left = noise.variance - candidates
    etas = np.where(left > 0, noise.dimension * (tau + lattice_distortion(candidates)), np.inf)
    best = int(np.argmin(2 * count * etas + candidates / (2 * np.where(left > 0, left, 1.0))))
    return float(candidates[best]), _require_finite(float(etas[best]), noise)


def _require_finite(distortion: float, noise: DiscreteGaussian) -> float:
    if math.isinf(distortion):
        raise UnsupportedMechanism(
            f"share_variance={noise.share_variance} with shares={noise.shares}: the noise is far below one integer "
            "step, and no bound holds. Raise the scale, which is the number of steps per clip norm (shares with a "
            "standard deviation of at least 2 steps do not increase epsilon)."
        )
    return distortion


ACCOUNT = Account(renyi=renyi, twin=twin, note=twin_remark)
