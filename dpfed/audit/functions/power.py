"""Power of a function's audit: the smallest epsilon of a Gaussian mechanism that its tests would have found."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from accounting.arrays import Floats
from accounting.rounding import upwards
from dpfed.audit.functions.claim import DrawnGaussian, FunctionClaim
from dpfed.audit.functions.learnt_scores import LearntScore
from dpfed.audit.statistics.epsilon_bounds import epsilon_of_shift
from dpfed.audit.statistics.error_counts import upper_limit
from dpfed.audit.statistics.power import A_FIFTH, LIKELY, NOISES, RejectionRegion
from dpfed.audit.statistics.score_distribution import HONEST, scores_of_all_clients
from dpfed.audit.statistics.thresholds import Thresholds

_FAR, _CHORDS = 15.0, 8001


@dataclass(frozen=True, kw_only=True)
class EpsilonFound:
    """Smallest epsilon of a Gaussian mechanism that the tests find with probability 90%; infinite if there is none.

    sampled: True if that mechanism has the claimed sampling. is_sufficient: True if the claimed mechanism with noise
    short by a fifth has this epsilon or a larger one, so that the tests find it.
    """

    epsilon: float
    sampled: bool
    is_sufficient: bool

    @classmethod
    def for_claim(cls, claim: FunctionClaim, epsilon: float) -> EpsilonFound:
        """Return the power of a test that finds this epsilon."""
        if claim.drawn_cohort is not None:
            limit = claim.drawn_cohort.with_noise_short(A_FIFTH).epsilon
        else:
            mu = claim.mu / (1 - A_FIFTH)
            limit = epsilon_of_shift(mu, delta=claim.delta) if math.isfinite(claim.mu) else math.inf
        return cls(epsilon=epsilon, sampled=claim.drawn_cohort is not None, is_sufficient=epsilon <= limit)

    def as_text(self) -> str:
        """Return text on the mechanism that the tests find, and its epsilon."""
        if not math.isfinite(self.epsilon):
            return "no mechanism, however large its epsilon"
        kind = "a Gaussian mechanism" + (" with this sampling" if self.sampled else "")
        return f"{kind} of epsilon {upwards(self.epsilon)} with probability {LIKELY:.0%}"

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the power."""
        epsilon = self.epsilon if math.isfinite(self.epsilon) else None
        return {"probability": LIKELY, "epsilon": epsilon, "enough": self.is_sufficient}


def epsilon_found(
    claim: FunctionClaim,
    score: LearntScore,
    cut: Thresholds,
    *,
    trials: tuple[int, int],
    of_profile: float,
    level: float,
) -> float:
    """Return the smallest epsilon of a Gaussian mechanism that the tests of this score find with probability 90%.

    of_profile: error probability of the test of the profile. level: error probability of the bound on mu.
    """
    unit = score.sign_of_world_1 * (cut.values[-1] - score.centre) / score.std if score.std > 0 else 0.0
    if claim.drawn_cohort is not None:
        at = claim.drawn_cohort.centre + unit * claim.drawn_cohort.std
        return _epsilon_found_for_drawn_cohort(claim, claim.drawn_cohort, trials, of_profile / len(cut.values), at)
    found = _epsilon_found_by_profile(claim, trials, of_profile, unit)
    return min(found, _epsilon_found_by_bound(claim, sum(trials), level)) if claim.is_gaussian else found


def _epsilon_found_by_profile(claim: FunctionClaim, trials: tuple[int, int], alpha: float, threshold: float) -> float:
    """Return the smallest epsilon of a Gaussian mechanism that the test of the profile rejects with probability 90%.

    threshold: threshold of the test, in standard deviations from the mean of world 0.
    """
    if not 0 < claim.mu < math.inf:
        return math.inf
    region = RejectionRegion.of_one_threshold(
        claim.profile,
        scores_of_all_clients(claim.mu),
        threshold=threshold,
        trials0=trials[0],
        trials1=trials[1],
        alpha=alpha,
    )
    low, high = claim.mu, claim.mu
    while region.probability(scores_of_all_clients(high), HONEST) < LIKELY:
        low, high = high, 1.3 * high
        if high > 40 * max(1.0, claim.mu):
            return math.inf
    while high - low > 0.005 * high:
        between = (low + high) / 2
        low, high = (
            (low, between) if region.probability(scores_of_all_clients(between), HONEST) >= LIKELY else (between, high)
        )
    return epsilon_of_shift(high, delta=claim.delta)


def _epsilon_found_for_drawn_cohort(
    claim: FunctionClaim, drawn: DrawnGaussian, trials: tuple[int, int], alpha: float, threshold: float
) -> float:
    """Return the epsilon of the claimed Gaussian on a drawn cohort with the smallest reduction of noise that the test
    of the profile rejects with probability 90%.
    """
    at = np.linspace(-_FAR, _FAR, _CHORDS)
    claimed = np.asarray(claim.profile(at), dtype=float)

    def chords(
        epsilons: Floats,
    ) -> Floats:  # chords are above the profile, which is convex in e^epsilon, and much faster
        return np.asarray(np.interp(np.exp(epsilons), np.exp(at), claimed, left=1.0), dtype=np.float64)

    region = RejectionRegion.of_one_threshold(
        chords, drawn.law, threshold=threshold, trials0=trials[0], trials1=trials[1], alpha=alpha
    )
    found = math.inf
    for short in reversed(NOISES):
        less = drawn.with_noise_short(short)
        at_it = (
            less.centre + (threshold - drawn.centre) * less.std / drawn.std
        )  # cut of the same score under this noise
        if replace(region, threshold=at_it).probability(less.law, HONEST) < LIKELY:
            break
        found = short
    return drawn.with_noise_short(found).epsilon if found < 1 else math.inf


def _epsilon_found_by_bound(claim: FunctionClaim, trials: int, alpha: float) -> float:
    """Return the smallest epsilon of a Gaussian whose bound on mu exceeds the claimed mu with probability 90%.

    The bound exceeds the claim if at most k guesses with a cut in the middle are wrong.
    """
    claimed = float(ndtr(-claim.mu / 2))
    k = int(binom.ppf(alpha, trials, claimed))  # P(Bin(trials, claimed) <= k) >= alpha; one fewer is rejected
    while k >= 0 and float(upper_limit(k, trials, alpha=alpha)) >= claimed:
        k -= 1
    if k < 0:
        return math.inf
    rate = 1 - float(betaincinv(trials - k, k + 1, LIKELY))  # error rate at which P(at most k errors) = 90%
    return epsilon_of_shift(max(-2 * float(ndtri(rate)), claim.mu), delta=claim.delta)
