"""Bound on the distance that a client moves the release, from whole scores of known distribution.

Guesses with a threshold use one bit of each score. If the distribution is known, the size of the score is evidence too,
since its mean moves with the client. The bound is on the distance by which present clients (canaries, or the client
under test in world 1) move the release, as a multiple of the claimed distance.

Proof of the bound. Let g be any function of a score that is fixed beforehand, and D(f) = E g(present) - E g(absent) if
present clients move f times as far as claimed. D rises with f. Let L be the difference of the two sample means minus
t_{1-alpha} standard errors. L is above D(true f) with probability alpha, as far as means are normally distributed. So
the largest f with D(f) below L is above the true f with probability at most alpha.

g is chosen for power. Mixtures of normal distributions use log-likelihood ratios of cells (`from_mixture`), and
Bernoulli samples the ratio itself (`bernoulli_ratios`). Sums of whole numbers use the score itself, for noise of any
distribution (`linear`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, stdtrit

from accounting import require
from accounting.arrays import Floats
from dpfed.audit.statistics.score_distribution import NormalMixture

LEAST = 10
"""Least number of scores in each world for which their mean is treated as normally distributed."""

FACTORS = np.concatenate([np.linspace(0.0, 2.0, 81), np.linspace(2.1, 4.0, 20)])
"""Factors f at which D(f) is computed. Linear interpolation between them errs by less than `_BETWEEN` in f."""

_CELLS = 240
_NEVER = 1e-7
_UNHEARD_OF = 1e-14
_BETWEEN = 1e-4
_ROOM = 1.2
"""Divisor of alpha, since means of scores are only nearly normal.

A bound at alpha uses the quantile at alpha / `_ROOM` of Student's distribution, with the degrees of freedom of the
smaller world (fewer than Welch's). For differences skewed to the left, the quantile is increased by the second term of
Cornish and Fisher's expansion for Student's statistic (Johnson 1978).
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeScores:
    """Moments of g(score) for a known distribution of scores, prepared for repeated bounds.

    weigh:       the function g, elementwise
    differences: D(f) for every f of `factors` [factors], rising
    variances:   variances of g in world 0 and in world 1 [2, factors]
    third_moments:    third central moments of g in world 0 and in world 1 [2, factors]; None if g is taken as symmetric
    """

    weigh: Callable[[Floats], Floats]
    factors: Floats
    differences: Floats
    variances: Floats
    third_moments: Floats | None = None

    @classmethod
    def from_mixture(cls, law: NormalMixture) -> WholeScores:
        """Return the moments for Gaussian noise and any sampling: g is the log-likelihood ratio of a score's cell."""
        edges = _cell_edges(law)
        absent, present = _cell_probabilities(law, edges, 1.0)
        weights = np.log((present + _NEVER) / (absent + _NEVER))
        laws = [_cell_probabilities(law, edges, float(factor)) for factor in FACTORS]
        means = np.array([[cells @ weights for cells in pair] for pair in laws])
        squares = np.array([[cells @ weights**2 for cells in pair] for pair in laws])
        cubes = np.array([[cells @ weights**3 for cells in pair] for pair in laws])
        return cls(
            weigh=lambda scores: np.asarray(weights[np.searchsorted(edges, scores)]),
            factors=FACTORS,
            differences=np.maximum.accumulate(means[:, 1] - means[:, 0]),
            variances=(squares - means**2).T,
            third_moments=(cubes - 3 * means * squares + 2 * means**3).T,
        )

    @classmethod
    def linear(cls, shift: float) -> WholeScores:
        """Return the moments for scores that are inner products with a sum: present clients raise their mean by f
        `shift`.

        This holds for noise of any distribution.
        Units: the claimed noise's standard deviation. Only the power, not the bound, assumes noise of that size."""
        moved = require.positive(shift=shift)
        return cls(
            weigh=lambda scores: scores,
            factors=FACTORS,
            differences=FACTORS * moved,
            variances=np.ones((2, FACTORS.size)),
        )

    def factor_bound(self, absent: Floats, present: Floats, *, alpha: float, shared: float = 1.0) -> float:
        """Return a lower bound, at most 4, on the factor f: present clients move the release f times as far as claimed.

        absent, present: scores of world 0 and world 1, in the units of the distribution. Returns 0 without evidence,
        and with fewer than `LEAST` scores in a world.
        shared: upper bound on the variance of a mean as a multiple of that of independent scores.

        Preconditions: scores are independent, with the given distribution for some f, and fair coin flips chose the
        worlds.
        Claim: the bound exceeds the true factor with probability at most alpha, as far as means are normally
        distributed. Measured for the most skewed distributions tried (fixed size, 95 of 100 drawn, moves of 4 to 5
        stds): with 100 scores or more, at most alpha if alpha is 0.005 or more, and 1.6 alpha at alpha = 0.0005 (1.3
        alpha from 200 scores on). With 40 scores: alpha at 0.05, and 1.4 alpha at 0.005.
        Direction of error: lower bound, under the known distribution, about the clients that were tried.
        """
        if min(absent.size, present.size) < LEAST:
            return 0.0
        without, given = self.weigh(absent), self.weigh(present)
        error = math.sqrt(given.var(ddof=1) / given.size + without.var(ddof=1) / without.size)
        thirds = [float(((one - one.mean()) ** 3).mean()) / one.size**2 for one in (given, without)]
        quantile = _quantile(absent.size, present.size, alpha)
        quantile += float(_skewness_correction(quantile, thirds[0] - thirds[1], error))
        quantile *= math.sqrt(shared)
        shown = float(given.mean() - without.mean()) - quantile * error
        if not shown > self.differences[0]:
            return 0.0
        rising = np.diff(self.differences, prepend=-math.inf) > 0
        return max(0.0, float(np.interp(shown, self.differences[rising], self.factors[rising])) - _BETWEEN)

    def smallest_excess_found(self, trials0: int, trials1: int, *, alpha: float, probability: float) -> float | None:
        """Return the smallest excess e that is found with this probability: the client moves 1 + e times as far as
        claimed.

        The result does not depend on the outcome of the trials; None if 1 + e would be above 4.
        """
        if min(trials0, trials1) < LEAST:
            return None
        quantile: float | Floats = _quantile(trials0, trials1, alpha)
        honest = float(np.interp(1.0, self.factors, self.differences))
        errors = np.sqrt(self.variances[0] / trials0 + self.variances[1] / trials1)
        if self.third_moments is not None:
            thirds = self.third_moments[1] / trials1**2 - self.third_moments[0] / trials0**2
            quantile = quantile + _skewness_correction(float(quantile), thirds, errors)
        likely = ndtr((self.differences - honest) / np.maximum(errors, 1e-300) - quantile) >= probability
        found = np.flatnonzero(~likely)
        first = int(found[-1]) + 1 if found.size else 0
        return float(self.factors[first] - 1) if first < self.factors.size else None


def _quantile(first: int, second: int, alpha: float) -> float:
    return -float(stdtrit(min(first, second) - 1, require.open_probability(alpha=alpha) / _ROOM))


def _skewness_correction(quantile: float, third: ArrayLike, error: ArrayLike) -> Floats:
    """Return the addition to the quantile for a difference of means that is skewed to the left.

    third: third central moment of that difference. error: its standard error.
    """
    skewness = np.asarray(third) / np.maximum(np.asarray(error) ** 3, 1e-300)
    return np.asarray(np.maximum(-skewness, 0.0) * (2 * quantile**2 + 1) / 6)


def _cell_edges(law: NormalMixture) -> Floats:
    """Return edges of cells such that nearly all scores of both worlds are between the first and the last edge."""
    low, high = -1.0, 1.0
    while law.error_rates(low)[1] > _NEVER or 1 - law.error_rates(low)[0] > _NEVER:
        low *= 1.5
    while law.error_rates(high)[0] > _NEVER or 1 - law.error_rates(high)[1] > _NEVER:
        high *= 1.5
    return np.linspace(low, high, _CELLS)


def _cell_probabilities(law: NormalMixture, edges: Floats, factor: float) -> tuple[Floats, Floats]:
    """Return the probabilities of the cells in world 0 and world 1; the first and the last cell are unbounded."""
    worlds = []
    for weights, means, own in zip(law.weights, law.means, law.own, strict=True):
        likely = weights > _UNHEARD_OF
        centres = (means + (factor - 1) * own)[likely]
        below = np.minimum(ndtr(edges[:, None] - centres) @ weights[likely], 1.0)
        worlds.append(np.maximum(np.diff(below, prepend=0.0, append=1.0), 0.0))
    return worlds[0], worlds[1]
