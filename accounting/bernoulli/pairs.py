"""Exact distribution of Bernoulli uploads with few coordinates, seen individually: accountant `exact`.

The sample of a coordinate has its probability in [v, 1 - v], which moves by at most t, u = v + t.

One upload: the divergence of all coordinates together is convex in each coordinate's pair, so its largest is at
corners: u against v in j of the coordinates and v against u in the others (up to exchanging heads and tails). All j are
enumerated.

Many uploads: for gamma >= 1 the largest divergence of one coordinate is max(0, u - gamma v). That is the profile of one
pair on three outcomes,

    P = (u, 1 - u - v, v),   Q = (v, 1 - u - v, u),   losses log(u/v), 0, -log(u/v),

which dominates every coordinate in every round, for any clients (docs/theory.md, Lemma 2). n of them have the loss
log(u/v) times a walk of n steps, whose distribution is a convolution. If t = 1 - 2v it is randomised response and
attained; the largest loss, n log(u/v), is then the cap n log((1-c)/c) of pure differential privacy.
"""

import math

import numpy as np

from accounting.arrays import Floats
from accounting.bernoulli import debias
from accounting.bernoulli.exact import channel_epsilon
from accounting.mechanisms.bernoulli import BernoulliChannel

MOST_COINS = 200_000
"""Coordinates times rounds above which the Renyi account is as good and faster."""

LARGEST_ENUMERATED = 64
"""Coordinates of one upload up to which all corners are enumerated."""

_DIRECT = 4096
"""Length above which distributions are convolved by Fourier transform."""


def fits(coins: BernoulliChannel, rounds: int) -> bool:
    """Return True if the uploads are few enough for an exact account."""
    return coins.dimension * rounds <= MOST_COINS


def epsilon_of(coins: BernoulliChannel, rounds: int, delta: float) -> float:
    """Return the smallest epsilon at `delta` of the dominating pair's composition, both directions (it is symmetric).

    Domain: that of `fits`, delta in (0, 1). Direction of error: upper bound. Exact for one upload of up to
    LARGEST_ENUMERATED coordinates limited by an L-infinity bound, and if each coordinate may move over the whole range;
    otherwise the dominating pair, up to 2(1-c) too large for small moves; loose if only an L2 bound limits many
    coordinates. With noise it uses range and move of the samples' means: [g(c), g(1-c)], and t times the largest slope
    of g.
    """
    low, high = debias.reachable(c=coins.floor, noise_std=coins.noise_std)
    bounds = [coins.euclidean_sensitivity(clip) for clip in (coins.l2_clip, coins.linf_clip)]
    slope = float(debias.clipped_mean_slope(0.5, c=coins.floor, noise_std=coins.noise_std))
    low *= 1 - 1e-12  # rounding of g, to the safe side
    move = min(high - low, slope * min(bound for bound in bounds if bound is not None)) * (1 + 1e-12)
    high = min(low + move, 1 - low)
    if rounds == 1 and coins.dimension <= LARGEST_ENUMERATED:
        return corner_epsilon(coins.dimension, high, low, delta)
    return walk_epsilon(coins.dimension * rounds, high, low, delta)


def corner_epsilon(dimension: int, u: float, v: float, delta: float) -> float:
    """Return the largest exact epsilon over j coordinates at (u, v) and the others at (v, u)."""
    up = np.arange(dimension)[None] < np.arange(dimension // 2, dimension + 1)[:, None]
    return max(channel_epsilon(delta, p=np.where(row, u, v), q=np.where(row, v, u)) for row in up)


def walk_epsilon(steps: int, u: float, v: float, delta: float) -> float:
    """Return the least epsilon >= 0 with sum over k of P(k) (1 - e^(epsilon - k log(u/v)))_+ <= delta, P that of the
    walk.
    """
    loss = math.log(u / v)
    if loss <= 0:
        return 0.0
    target = delta - _rounding(steps)
    if target <= 0:
        return steps * loss
    law = _walk(np.array([v, 1 - u - v, u]), steps)[::-1][:steps]  # of the positive losses, falling
    losses = loss * np.arange(steps, 0, -1)
    mass, other = np.cumsum(law), _decayed(law, v / u)
    if mass[-1] - other[-1] * v / u <= target:  # at epsilon = 0
        return 0.0
    last = int(np.flatnonzero(mass - other <= target)[-1])  # at epsilon = each loss; the largest gains nothing
    if mass[last] <= target:  # rounding: nothing is gained at this loss nor a little below it
        return float(losses[last])
    return float(min(steps * loss, losses[last] + math.log((mass[last] - target) / other[last])))


def _decayed(law: Floats, factor: float) -> Floats:
    """Return sum over j <= k of distribution[j] factor^(k-j), for every k.

    It is e^loss[k] times the second distribution's mass up to k, which itself would underflow.
    """
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -factor], law))


def _rounding(steps: int) -> float:
    """Return more than the mass that rounding of the convolution can misplace: it is subtracted from delta."""
    return 1e-10 if steps > _DIRECT else 1e-15 * (steps + 1)


def _walk(step: Floats, count: int) -> Floats:
    """Return the distribution of a sum of `count` independent steps, by repeated squaring."""
    total, power = np.ones(1), step
    while count:
        if count & 1:
            total = _convolved(total, power)
        count >>= 1
        if count:
            power = _convolved(power, power)
    return total


def _convolved(a: Floats, b: Floats) -> Floats:
    from scipy.signal import fftconvolve

    if max(len(a), len(b)) <= 2 * _DIRECT:
        return np.convolve(a, b)
    return np.asarray(np.maximum(fftconvolve(a, b), 0.0))
