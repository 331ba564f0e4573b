"""Exact loss distribution and exact privacy profile of Bernoulli uploads of small dimension.

The loss of a product of Bernoulli distributions is a sum of independent losses. Coordinates with equal pairs (p_i, q_i)
form a group, whose loss depends only on its number of ones.
"""

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from accounting.errors import InvalidParameter

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
