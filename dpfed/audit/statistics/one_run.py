"""Bounds from the canaries of one training run: by guesses of their coin flips, and by the values of scores.

Preconditions of both theorems, which the code cannot check:
- every canary is included by an INDEPENDENT fair coin flip: not exactly half of them, and no canary displaces another;
- guesses use the scores and nothing else that depends on the flips, and their number was fixed beforehand;
- the claim is about adding or removing (zeroing) one canary.
The bounds of one run are loose: with 1e5 ideal canaries, a Gaussian of epsilon 4.38 gives a bound of 2.8 (epsilon,
delta) or 3.5 (f-DP). The audits find gross faults of a whole training; they certify nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, ndtr, ndtri, stdtrit

from accounting.arrays import Floats
from accounting.roots import crossing_bracket
from dpfed.audit.statistics.epsilon_bounds import epsilon_of_shift
from dpfed.audit.statistics.rejection import PrivacyProfile

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
    level = alpha / _ROOM
    quantile = -float(stdtrit(min(absent.size, present.size) - 1, level))
    skewness = (thirds[0] - thirds[1]) / max(error**3, 1e-300)
    quantile += max(-skewness, 0.0) * (2 * quantile**2 + 1) / 6
    shown = float(present.mean() - absent.mean()) - quantile * math.sqrt(shared) * error
    return float(np.clip(shown, 0.0, _LARGEST))


_TOLERANCE = 1e-9
_GRID = 2001


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Numbers of canaries, of guesses made ("in" or "out", at most one for each canary), and of correct guesses."""

    canaries: int
    made: int
    correct: int


def guess(scores: Floats, included: NDArray[np.bool_], *, guesses: int, seed: int) -> Guesses:
    """Guess "in" for the highest scores and "out" for the lowest, half of `guesses` each (if odd, one more "in").

    scores [m], included [m]. `guesses`, at most m, must be fixed before the scores are known. Equal scores are ordered
    at random by `seed`, since the order of the canaries may reveal which were included.
    """
    order = np.lexsort((np.random.default_rng(seed).random(scores.size), scores))
    low, high = order[: guesses // 2], order[scores.size - (guesses - guesses // 2) :]
    return Guesses(canaries=scores.size, made=guesses, correct=int(included[high].sum() + (~included[low]).sum()))


def p_value(guesses: Guesses, *, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of this number of correct guesses under (epsilon, delta)-DP.

    With q = e^eps/(1 + e^eps) and B ~ Bin(r, q), beta = P(B >= v):
        beta + 2 m delta max_{i=1..v} (P(B >= v - i) - beta) / i        (Steinke, Nasr, Jagielski 2023, Thm 5.2)
    with m canaries, r guesses, v of them correct. Direction of error: upper bound on the p-value. The term in delta is
    proportional to m.
    """
    r, v = guesses.made, guesses.correct
    if v == 0:
        return 1.0
    q = 1 / (1 + math.exp(-min(epsilon, 700.0)))
    beta = float(betainc(v, r - v + 1, q))
    if delta == 0:
        return beta
    i = np.arange(1.0, v + 1)
    reached = np.append(betainc(v - i[:-1], r - v + i[:-1] + 1, q), 1.0)  # P(B >= v - i), the last P(B >= 0)
    return min(1.0, beta + 2 * guesses.canaries * delta * max(0.0, float(np.max((reached - beta) / i))))


def epsilon_lower_bound(guesses: Guesses, *, delta: float, alpha: float) -> float:
    """Return the largest epsilon for which the guesses reject (epsilon, delta)-DP (`p_value` at most alpha), or 0.

    Claim: above the true epsilon at `delta` with probability at most alpha. Direction of error: lower bound.
    """
    return _largest_rejected(lambda epsilon: p_value(guesses, epsilon=epsilon, delta=delta) <= alpha)


def rejects_f_dp(guesses: Guesses, inverse_blow_up: Callable[[float], float], *, alpha: float) -> bool:
    """Return True if this number of correct guesses rejects an f-DP claim (Mahloujifar, Melis, Chaudhuri 2024, Alg. 3).

    `inverse_blow_up`(y) is the least Q(S) that the claim allows for an event with P(S) >= y, in both orders of (P, Q).
    For mu-GDP it is Phi(Phi^-1(y) - mu). A value above the true one is not allowed: a true claim could be rejected.
    With c = alpha v/m, h = alpha (r-v)/m, for i = v-1..0: h' = max(h, inverse_blow_up(c)), c += i/(r-i) (h'-h), h = h';
    rejected iff c + h > r/m. A true claim is rejected with probability at most alpha.
    """
    m, r, v = guesses.canaries, guesses.made, guesses.correct
    c, h = alpha * v / m, alpha * (r - v) / m
    for i in range(v - 1, -1, -1):
        higher = max(h, inverse_blow_up(c))
        if higher == h:  # all later steps leave h and c unchanged
            break
        c = min(c + i / (r - i) * (higher - h), 1.0)
        h = higher
    return c + h > r / m * (1 + 1e-12)


def gdp_lower_bound(guesses: Guesses, *, alpha: float) -> float:
    """Return the largest mu for which `rejects_f_dp` rejects mu-GDP; 0 if it rejects none.

    The result is a lower bound on mu only if the run is mu-GDP for some mu. That mu0-GDP is rejected for every mu0
    below the result holds for any run.
    """
    return _largest_rejected(lambda mu: rejects_f_dp(guesses, lambda y: float(ndtr(ndtri(y) - mu)), alpha=alpha))


def gdp_epsilon_lower_bound(guesses: Guesses, *, delta: float, alpha: float) -> float:
    """Return the epsilon at `delta` of the mu of `gdp_lower_bound`: a lower bound only if the run is mu-GDP for some
    mu.
    """
    return epsilon_of_shift(gdp_lower_bound(guesses, alpha=alpha), delta=delta)


def rejects_profile(guesses: Guesses, profile: PrivacyProfile, *, alpha: float) -> bool:
    """Return True if the guesses reject a claimed privacy profile of both orders (`accounting.compose.profiles`).

    profile: delta at any real epsilon. The inverse blow-up at y is the largest e^-eps (y - delta(eps)) over eps; a grid
    of eps gives a value that is never larger.
    """
    ends = math.log(guesses.canaries / alpha) + 5  # the smallest y is about alpha/m
    epsilons = np.linspace(-5.0, ends, _GRID)
    scale, delta = np.exp(-epsilons), np.asarray(profile(epsilons), dtype=float)
    return rejects_f_dp(guesses, lambda y: max(0.0, float(np.max(scale * (y - delta)))), alpha=alpha)


def _largest_rejected(rejected: Callable[[float], bool]) -> float:
    """Return the largest rejected x, from below within a relative 1e-9; if x is rejected, so is every
    smaller x >= 0.
    """
    if not rejected(0.0):
        return 0.0
    return crossing_bracket(lambda x: not rejected(x), 1.0, rtol=_TOLERANCE, limit=1e6)[0]
