"""Whole scores of coins: how far the client's probabilities move, and what a pair that far apart shows at the least."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from dpfed.audit.round.coin_ratios import CoinLaw, CoinRatio
from dpfed.audit.statistics.whole_scores import WholeScores

Floats = NDArray[np.float64]

_FACTORS = np.concatenate([np.linspace(0.0, 2.0, 41), np.linspace(2.25, 4.0, 8)])
_GRID = 2e-4
_LARGEST = 1 << 22
_ROUNDING = 1e-15
"""Times the number of entries: what the transforms may misplace of a probability."""


def whole_scores_of_coins(law: CoinLaw) -> WholeScores | None:
    """The score is the log-likelihood ratio l of the claimed coins, a sum over entries, so that its mean is exact:

        D(f) = sum over entries j and counts s of (P_f,1(j, s) - P_f,0(j, s)) l(j, s)

    with P_f,w the law of entry j's count in world w where the client moves f times as far, up to the edges. None where
    one world rules out what the other sends, or the cohort is drawn: then the ratio is no sum over entries.
    """
    ratio = law.ratio
    if ratio.rules_out or ratio.taking_part < 1:
        return None
    weights = ratio.table()
    differences, variances = [], []
    for factor in _FACTORS:
        moved = law.moved(float(factor))
        laws = np.exp(moved.log_other), np.exp(moved.log_one)
        means = [(one * weights).sum(axis=1) for one in laws]
        spread = [(one * weights**2).sum(axis=1) - mean**2 for one, mean in zip(laws, means, strict=True)]
        differences.append(float((means[1] - means[0]).sum()))
        variances.append([float(one.sum()) for one in spread])
    return WholeScores(
        weigh=lambda scores: scores,
        factors=_FACTORS,
        differences=np.maximum.accumulate(np.array(differences)),
        variances=np.array(variances).T,
    )


def least_epsilon(ratio: CoinRatio, *, delta: float) -> float | None:
    """What the two worlds of `ratio` show of epsilon at `delta`, the larger of both orders; None where it takes too
    much memory, or the cohort is drawn.

    delta(eps) = E_P max(0, 1 - e^(eps - L)) rises with L, the sum of the entries' losses; each of them is rounded down
    to a grid here. What transforms misplace is taken off. Direction of error: lower bound.
    """
    if ratio.rules_out or ratio.taking_part < 1:
        return None
    orders = ((ratio.log_one, ratio.table()), (ratio.log_other, -ratio.table()))
    found = [_one_order(*order, delta) for order in orders]
    return None if any(one is None for one in found) else max(one for one in found if one is not None)


def _one_order(log_p: Floats, losses_of: Floats, delta: float) -> float | None:
    steps = np.floor(losses_of / _GRID).astype(np.int64)
    low, high = steps.min(axis=1), steps.max(axis=1)
    size = next_fast_len(int((high - low).sum()) + 1, real=True)
    if size > _LARGEST:
        return None
    rows = np.concatenate([log_p, steps], axis=1)
    _, firsts, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    product: Floats = np.ones(size // 2 + 1)
    for first, count in zip(firsts, counts, strict=True):
        law = np.bincount(steps[first] - low[first], weights=np.exp(log_p[first]), minlength=size)
        product = product * rfft(law) ** int(count)
    masses = np.maximum(irfft(product, size) - _ROUNDING * len(log_p), 0.0)
    losses = _GRID * (int(low.sum()) + np.arange(size))
    return _smallest(lambda eps: float(masses @ np.maximum(-np.expm1(eps - losses), 0.0)), delta)


def _smallest(delta_at: Callable[[float], float], target: float) -> float:
    """The epsilon >= 0 at which a falling function comes down to the target, from below; 0 if it starts there."""
    low, high = 0.0, 1.0
    if delta_at(0.0) <= target:
        return 0.0
    while delta_at(high) > target and high < 1e4:
        low, high = high, 2 * high
    while high - low > 1e-6 * high and math.isfinite(high):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > target else (low, middle)
    return low
