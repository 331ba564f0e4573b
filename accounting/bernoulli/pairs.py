"""Exact account of individually visible Bernoulli uploads with few coordinates: accountant `exact`.

The probability of a coordinate's sample is in [v, 1 - v] and moves by at most t; u = v + t.

One upload: the joint divergence of all coordinates is convex in each coordinate's pair, so its maximum is at a corner.
A corner has u against v in j of the coordinates and v against u in the others (up to exchanging the two outcomes). All
j are enumerated.

Many uploads: for gamma >= 1 the largest divergence of one coordinate is max(0, u - gamma v). That is the profile of one
pair on three outcomes,

    P = (u, 1 - u - v, v),   Q = (v, 1 - u - v, u),   losses log(u/v), 0, -log(u/v),

which dominates every coordinate in every round, for any clients (docs/theory.md, Lemma 2). The loss of n such pairs is
log(u/v) times a random walk of n steps, whose distribution is a convolution. If t = 1 - 2v the pair is that of
randomised response, and the bound is attained. The largest loss n log(u/v) is then the pure differential privacy bound
n log((1-c)/c).
"""

import math

import numpy as np

from accounting.arrays import Floats
from accounting.bernoulli import debias
from accounting.bernoulli.exact import channel_epsilon
from accounting.mechanisms.bernoulli import BernoulliChannel

MOST_COINS = 200_000
"""Largest number of coordinates times rounds. Above it the Renyi account is equally tight and faster."""

LARGEST_ENUMERATED = 64
"""Largest number of coordinates of one upload for which all corners are enumerated."""

_DIRECT = 4096
"""Half of the largest length of distributions that are convolved directly; longer ones use a Fourier transform."""


def fits_exact_account(release: BernoulliChannel, rounds: int) -> bool:
    """Return True if coordinates times rounds are few enough for an exact account."""
    return release.dimension * rounds <= MOST_COINS


def exact_epsilon(release: BernoulliChannel, rounds: int, delta: float) -> float:
    """Return the smallest epsilon at `delta` of the composition of the dominating pair, which is symmetric.

    Domain: that of `fits_exact_account`, delta in (0, 1).
    Direction of error: upper bound. It is exact for one upload of up to LARGEST_ENUMERATED coordinates with an
    L-infinity bound, and if each coordinate may move over the whole range. Otherwise it is the epsilon of the
    dominating pair, up to 2(1-c) times too large for small moves, and loose if only an L2 bound limits many
    coordinates. With noise it uses range and move of the samples' means: [g(c), g(1-c)], and t times the largest slope
    of g.
    """
    low, high = debias.reachable(c=release.floor, noise_std=release.noise_std)
    bounds = [release.euclidean_sensitivity(clip) for clip in (release.l2_clip, release.linf_clip)]
    slope = float(debias.clipped_mean_slope(0.5, c=release.floor, noise_std=release.noise_std))
    low *= 1 - 1e-12  # covers rounding of g
    move = min(high - low, slope * min(bound for bound in bounds if bound is not None)) * (1 + 1e-12)
    high = min(low + move, 1 - low)
    if rounds == 1 and release.dimension <= LARGEST_ENUMERATED:
        return corner_epsilon(release.dimension, high, low, delta)
    return walk_epsilon(release.dimension * rounds, high, low, delta)


def corner_epsilon(dimension: int, u: float, v: float, delta: float) -> float:
    """Return the largest exact epsilon over all corners: j coordinates at (u, v) and the remaining ones at (v, u)."""
    has_u_first = np.arange(dimension)[None] < np.arange(dimension // 2, dimension + 1)[:, None]
    return max(channel_epsilon(delta, p=np.where(row, u, v), q=np.where(row, v, u)) for row in has_u_first)


def walk_epsilon(steps: int, u: float, v: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 with sum over k of P(k) (1 - e^(epsilon - k log(u/v)))_+ <= delta, P the
    distribution of the walk.
    """
    loss = math.log(u / v)
    if loss <= 0:
        return 0.0
    target = delta - _misplaced_mass(steps)
    if target <= 0:
        return steps * loss
    distribution = _walk_distribution(np.array([v, 1 - u - v, u]), steps)[::-1][
        :steps
    ]  # probabilities of the positive losses, in decreasing order of the loss
    losses = loss * np.arange(steps, 0, -1)
    mass, other = np.cumsum(distribution), _decayed_sums(distribution, v / u)
    if mass[-1] - other[-1] * v / u <= target:  # at epsilon = 0
        return 0.0
    last = int(
        np.flatnonzero(mass - other <= target)[-1]
    )  # divergence at epsilon equal to each loss; at the largest loss it is 0
    if mass[last] <= target:  # by rounding the divergence is at most the target at this loss and slightly below it
        return float(losses[last])
    return float(min(steps * loss, losses[last] + math.log((mass[last] - target) / other[last])))


def _decayed_sums(distribution: Floats, factor: float) -> Floats:
    """Return sum over j <= k of distribution[j] factor^(k-j), for every k.

    It is e^loss[k] times the mass up to k of the second distribution, which would underflow.
    """
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -factor], distribution))


def _misplaced_mass(steps: int) -> float:
    """Return an upper bound on the mass that rounding errors of the convolution misplace; it is subtracted from
    delta.
    """
    return 1e-10 if steps > _DIRECT else 1e-15 * (steps + 1)


def _walk_distribution(step: Floats, count: int) -> Floats:
    """Return the distribution of the sum of `count` independent steps, by repeated squaring."""
    total, power = np.ones(1), step
    while count:
        if count & 1:
            total = _convolution(total, power)
        count >>= 1
        if count:
            power = _convolution(power, power)
    return total


def _convolution(a: Floats, b: Floats) -> Floats:
    from scipy.signal import fftconvolve

    if max(len(a), len(b)) <= 2 * _DIRECT:
        return np.convolve(a, b)
    return np.asarray(np.maximum(fftconvolve(a, b), 0.0))
