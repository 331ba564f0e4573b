"""Bounds from scores of known distribution: on the distance that a client moves the release, and on its epsilon."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.stats import skellam

from accounting import require
from accounting.arrays import Floats
from accounting.compose import lower_bound
from accounting.errors import AccountingError
from accounting.mechanisms import (
    CappedPoissonSampling,
    DiscreteGaussian,
    Skellam,
    Subsampled,
    noise_of,
)
from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit.outcome import MoveBound
from dpfed.audit.round.bernoulli_ratios import BernoulliScores, epsilon_at_delta, least_epsilon, whole_scores_of_samples
from dpfed.audit.round.claims import Claim
from dpfed.audit.statistics.epsilon_bounds import epsilon_of_shift
from dpfed.audit.statistics.score_distribution import NormalMixture, ScoreDistribution
from dpfed.audit.statistics.whole_scores import WholeScores

_FARTHEST = 12.0
_WIDEST = 2_000_000


def whole_scores(claim: Claim, law: ScoreDistribution | None) -> WholeScores | None:
    """Return the moments of scores of this distribution, for bounds from whole scores; None if no means are known.

    Sums of whole numbers without sampling use the score itself, whose mean does not depend on the noise's distribution.
    """
    match law:
        case BernoulliScores():
            return whole_scores_of_samples(law)
        case NormalMixture() if any(np.any(own > 0) for own in law.own):
            if claim.integers is not None and not claim.sampled:
                return WholeScores.linear(float(law.means[1][0]))
            return WholeScores.from_mixture(law)
    return None


def move_bound(
    claim: Claim, law: ScoreDistribution, ready: WholeScores, gap: float, scores: tuple[Floats, Floats], *, alpha: float
) -> MoveBound:
    """Return the bound on the distance that the client moves the release, and its epsilon, from whole scores.

    ready: moments of the scores (`WholeScores`). gap: distance of the pair without noise, over the sensitivity.
    scores: those of world 0 and world 1.
    """
    reach = min(gap, 1.0)
    factor = ready.factor_bound(*scores, alpha=alpha)
    if factor == 0:
        return MoveBound(factor=0.0, epsilon=None)
    if isinstance(law, BernoulliScores):
        return MoveBound(factor=factor * reach, epsilon=least_epsilon(law.ratio_after_move(factor), delta=claim.delta))
    return MoveBound(factor=factor * reach, epsilon=_epsilon_of_move(claim, factor * reach))


def _epsilon_of_move(claim: Claim, factor: float) -> float | None:
    """Return a lower bound on epsilon if one client moves the sum `factor` times as far as claimed; None if unknown."""
    gaussian = noise_of(claim.mechanism)
    if gaussian is not None and not claim.sampled:
        return epsilon_of_shift(factor * (claim.mu or 0.0), delta=claim.delta)
    if gaussian is not None:
        noise = replace(gaussian, noise_multiplier=gaussian.noise_multiplier / factor)
        try:
            return lower_bound.epsilon(Subsampled(mechanism=noise, sampling=claim.sampling), delta=claim.delta)
        except AccountingError:
            return None
    noise_law = _integer_noise_distribution(claim)
    sampling = claim.sampling
    if noise_law is None or claim.integers is None or sampling.name not in ("all", "poisson", "capped-poisson"):
        return None
    if sampling.name != "all" and claim.adjacency is Adjacency.REPLACE_ONE:
        return None
    chance = sampling.probability
    if isinstance(sampling, CappedPoissonSampling):
        chance = sampling.participation_probability(claim.adjacency)
    steps = math.floor(factor * claim.integers.sensitivity)
    return integer_epsilon(noise_law, steps, delta=claim.delta, taking_part=chance)


def _integer_noise_distribution(claim: Claim) -> Floats | None:
    """Return the distribution of one coordinate's integer noise; None if it is not known.

    A sum of several discrete Gaussian shares is not a discrete Gaussian, so its distribution is not known.
    """
    noise = claim.integers
    if noise is None:
        return None
    far = math.ceil(_FARTHEST * math.sqrt(noise.variance)) + 20
    if 2 * far + 1 > _WIDEST:
        return None
    at = np.arange(-far, far + 1)
    match noise:
        case Skellam():
            return np.asarray(skellam.pmf(at, noise.variance / 2, noise.variance / 2))
        case DiscreteGaussian(shares=1):
            masses = np.exp(-(at.astype(float) ** 2) / (2 * noise.variance))
            return np.asarray(masses / masses.sum())
    return None


def integer_epsilon(noise: Floats, steps: int, *, delta: float, taking_part: float = 1.0) -> float:
    """Return the epsilon at `delta` of an entry that one client moves by `steps`, if drawn with probability q.

    The two distributions are p(x) and (1 - q) p(x) + q p(x - steps), with the noise p and q = `taking_part`.
    delta(eps) = sum max(0, P - e^eps Q), the larger of both orders, over the values in `noise` [n]; values outside are
    omitted, which makes delta smaller. Direction of error: lower bound (a relative 1e-9 is subtracted for rounding).
    """
    target = require.open_probability(delta=delta)
    without = np.concatenate([noise, np.zeros(steps)])
    given = (1 - taking_part) * without + taking_part * np.concatenate([np.zeros(steps), noise])
    known = (without > 0) & (given > 0)
    without, given = without[known], given[known]

    def delta_at(eps: float) -> float:
        orders = ((given, without), (without, given))
        return max(float(np.maximum(p - math.exp(min(eps, 700.0)) * q, 0.0).sum()) for p, q in orders)

    return epsilon_at_delta(delta_at, target) * (1 - 1e-9)
