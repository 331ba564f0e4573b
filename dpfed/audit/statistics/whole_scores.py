"""Lower bound, from the values of scores, on how far present canaries move a sum; for noise of any distribution."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import stdtrit

from accounting import require
from accounting.arrays import Floats

LEAST = 10
"""Fewest scores in a world for a bound."""
_LARGEST = 4.0
_ROOM = 1.2
"""Divisor of alpha, since means of scores are only nearly normal.

A bound at alpha uses the quantile at alpha / `_ROOM` of Student's distribution, with the degrees of freedom of the
smaller world (fewer than Welch's). For differences skewed to the left, the quantile is increased by the second term of
Cornish and Fisher's expansion for Student's statistic (Johnson 1978).
"""


def factor_bound(absent: Floats, present: Floats, *, alpha: float, shared: float = 1.0) -> float:
    """Return a lower bound, at most 4, on the difference of the means of scores of present and of absent clients.

    Scores are inner products with a sum, in units of the length of a client's row, so that the difference is the factor
    by which present clients move the sum farther than their rows are long. Returns 0 without evidence, and with fewer
    than `LEAST` scores in a world.
    shared: upper bound on the variance of a mean as a multiple of that of independent scores.

    Preconditions: scores are independent, and fair coin flips chose the worlds.
    Claim: the bound exceeds the true factor with probability at most alpha, as far as means are normally distributed.
    Direction of error: lower bound, about the clients that were tried.
    """
    if min(absent.size, present.size) < LEAST:
        return 0.0
    error = math.sqrt(present.var(ddof=1) / present.size + absent.var(ddof=1) / absent.size)
    thirds = [float(((one - one.mean()) ** 3).mean()) / one.size**2 for one in (present, absent)]
    level = require.open_probability(alpha=alpha) / _ROOM
    quantile = -float(stdtrit(min(absent.size, present.size) - 1, level))
    skewness = (thirds[0] - thirds[1]) / max(error**3, 1e-300)
    quantile += max(-skewness, 0.0) * (2 * quantile**2 + 1) / 6
    shown = float(present.mean() - absent.mean()) - quantile * math.sqrt(shared) * error
    return float(np.clip(shown, 0.0, _LARGEST))
