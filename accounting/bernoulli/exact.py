"""Exact distributions and epsilons of Bernoulli uploads with few coordinates.

The loss of a product of Bernoulli distributions is a sum of independent losses. Coordinates with equal pairs (p_i, q_i)
form a group, whose loss depends only on its number of ones.

Accountant `exact`, for individually visible uploads: the probability of a coordinate's sample is in [v, 1 - v] and
moves by at most t; u = v + t.

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
import scipy
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.bernoulli import debias
from accounting.errors import InvalidParameter
from accounting.mechanisms.bernoulli import BernoulliChannel

LARGEST_LAW = 5_000_000
"""Largest number of outcomes (products of counts of ones) of a distribution. More would need too much memory and
time.
"""


def channel_profile(epsilon: ArrayLike, *, p: ArrayLike, q: ArrayLike) -> Floats:
    """Return the smallest delta at `epsilon` for one Bernoulli upload with probabilities p [d] against q [d].

    delta(epsilon) is the sum over outcomes of max(P - e^epsilon Q, 0), or that with P and Q exchanged if it is larger.
    Domain: epsilon real, p and q probabilities in [0, 1].
    Shape: as `epsilon`; a scalar gives a scalar.
    Direction of error: either, by rounding (1e-12 relative, from sums in logarithms).
    Errors: InvalidParameter for distributions of more than LARGEST_LAW outcomes.
    """
    eps = np.asarray(epsilon, dtype=float)
    if np.isnan(eps).any():
        raise InvalidParameter("epsilon=nan: must be real numbers, infinities included.")
    log_p, log_q = _log_masses(p, q)
    values = [max(_hockey_stick(e, log_p, log_q), _hockey_stick(e, log_q, log_p)) for e in eps.ravel().tolist()]
    return np.array(values).reshape(eps.shape)[()]


def channel_epsilon(delta: float, *, p: ArrayLike, q: ArrayLike) -> float:
    """Return the smallest epsilon >= 0 at which `channel_profile` is at most delta, in [0, 1]; infinite if no epsilon
    is.

    In each direction the profile is linear in e^epsilon between losses, so the solution is exact up to rounding.
    """
    target = require.probability(delta=delta)
    log_p, log_q = _log_masses(p, q)
    return max(_smallest_epsilon(target, log_p, log_q), _smallest_epsilon(target, log_q, log_p))


def _hockey_stick(epsilon: float, log_p: Floats, log_q: Floats) -> float:
    """Return sum max(P - e^epsilon Q, 0), which equals the sum over losses above epsilon of P (1 - e^(epsilon -
    loss)).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        gap = epsilon + log_q - log_p
    gap = np.where(np.isneginf(log_q), -np.inf, gap)
    has_gain = ~np.isneginf(log_p) & (gap < 0)
    return float(np.sum(np.exp(log_p[has_gain]) * -np.expm1(gap[has_gain])))


def _smallest_epsilon(target: float, log_p: Floats, log_q: Floats) -> float:
    """Return the smallest epsilon >= 0 with `_hockey_stick` at most target.

    Between two losses it is the sum of P minus e^epsilon times the sum of Q over outcomes of at least the larger loss.
    For a target above 1/2, 1 - target is compared with the sum of P over the remaining outcomes, which avoids
    cancellation.
    """
    near_one = target > 0.5
    if not near_one and _hockey_stick(0.0, log_p, log_q) <= target:
        return 0.0
    with np.errstate(invalid="ignore"):
        loss = np.where(np.isneginf(log_p), -np.inf, log_p - log_q)
    order = np.argsort(-loss, kind="stable")
    order = order[loss[order] > 0]
    if not len(order):
        return 0.0
    other = np.cumsum(np.exp(log_q[order]))
    if near_one:
        least = float(np.exp(log_p[loss <= 0]).sum())
        after = np.append(np.cumsum(np.exp(log_p[order][:0:-1]))[::-1], 0.0)
        excess = (1 - target) - (least + after)
    else:
        excess = np.cumsum(np.exp(log_p[order])) - target  # the sum of P minus the target
    if np.any(np.isposinf(loss)) and excess[np.isposinf(loss[order])][-1] > 0:
        return math.inf
    # `last`: the smallest loss at which the divergence is at most the target; the root is not above this loss. At the
    # largest finite loss the divergence is always at most the target.
    ends = loss[order]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        subtracted = np.where(np.isposinf(ends) | (other <= 0), 0.0, np.exp(ends + np.log(other)))
    last = int(max(np.flatnonzero(excess <= subtracted).max(initial=0), np.isposinf(ends).sum()))
    if last == len(excess):
        return 0.0
    # At the smallest positive loss delta(0) meets the target; at a larger loss only rounding makes this negative.
    if excess[last] <= 0:
        return float(ends[last]) if last + 1 < len(excess) else 0.0
    return max(0.0, float(np.log(excess[last] / other[last])))


def _log_masses(p: ArrayLike, q: ArrayLike) -> tuple[Floats, Floats]:
    """Return the logarithms of the probabilities of all outcomes, under p and under q."""
    first, second = np.atleast_1d(np.asarray(p, dtype=float)), np.atleast_1d(np.asarray(q, dtype=float))
    if first.shape != second.shape or first.ndim != 1:
        raise InvalidParameter(f"p of shape {first.shape}, q of shape {second.shape}: must be vectors of one length.")
    for name, values in (("p", first), ("q", second)):
        if not np.all((values >= 0) & (values <= 1)):
            raise InvalidParameter(f"{name}: must be probabilities in [0, 1].")
    pairs, counts = np.unique(np.stack([first, second], axis=1), axis=0, return_counts=True)
    counts = counts[pairs[:, 0] != pairs[:, 1]]
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]  # samples of equal probability have no privacy loss
    outcomes = math.prod(int(n) + 1 for n in counts)
    if outcomes > LARGEST_LAW:
        raise InvalidParameter(
            f"{len(first)} coordinates with {len(pairs)} different pairs (p, q) have {outcomes:.1e} outcomes, more "
            f"than {LARGEST_LAW:.0e}. Use channel_bound, or fewer different pairs."
        )
    log_p, log_q = np.zeros(1), np.zeros(1)
    for (one, other), n in zip(pairs, counts, strict=True):
        log_p = np.add.outer(log_p, _log_binomial(int(n), one)).ravel()
        log_q = np.add.outer(log_q, _log_binomial(int(n), other)).ravel()
    return log_p, log_q


def _log_binomial(n: int, p: float) -> Floats:
    """Return the logarithms of the binomial probabilities of 0..n ones."""
    k = np.arange(n + 1.0)
    choices = scipy.special.gammaln(n + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(n - k + 1)
    return np.asarray(choices + scipy.special.xlogy(k, p) + scipy.special.xlog1py(n - k, -p))


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
        # The corners: `high` against `low` in j of the coordinates, and the reverse in the others.
        corners = np.arange(release.dimension) < np.arange(release.dimension // 2, release.dimension + 1)[:, None]
        pairs = ((np.where(corner, high, low), np.where(corner, low, high)) for corner in corners)
        return max(channel_epsilon(delta, p=p, q=q) for p, q in pairs)
    return walk_epsilon(release.dimension * rounds, high, low, delta)


def walk_epsilon(steps: int, u: float, v: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 with sum over k of P(k) (1 - e^(epsilon - k log(u/v)))_+ <= delta, P the
    distribution of the walk.
    """
    loss = math.log(u / v)
    if loss <= 0:
        return 0.0
    # An upper bound on the mass that rounding errors of the convolution misplace.
    target = delta - (1e-10 if steps > _DIRECT else 1e-15 * (steps + 1))
    if target <= 0:
        return steps * loss
    # Probabilities of the positive losses, in decreasing order of the loss.
    distribution = _walk_distribution(np.array([v, 1 - u - v, u]), steps)[: -steps - 1 : -1]
    losses = loss * np.arange(steps, 0, -1)
    # other[k]: e^loss[k] times the mass up to k of the second distribution, which itself would underflow; the sum over
    # j <= k of distribution[j] (v / u)^(k-j).
    mass, other = np.cumsum(distribution), scipy.signal.lfilter([1.0], [1.0, -v / u], distribution)
    if mass[-1] - other[-1] * v / u <= target:  # at epsilon = 0
        return 0.0
    # mass - other: divergence at epsilon equal to each loss; at the largest loss it is 0.
    last = int(np.flatnonzero(mass - other <= target)[-1])
    if mass[last] <= target:  # by rounding the divergence is at most the target at this loss and slightly below it
        return float(losses[last])
    return float(min(steps * loss, losses[last] + math.log((mass[last] - target) / other[last])))


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
    if max(len(a), len(b)) <= 2 * _DIRECT:
        return np.convolve(a, b)
    return np.asarray(np.maximum(scipy.signal.fftconvolve(a, b), 0.0))
