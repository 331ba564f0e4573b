"""Outcome of the audit of a function by trials: tests, their power, verdict, text and JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from accounting.arrays import Floats
from accounting.rounding import downwards, upwards
from dpfed.audit.functions.claim import DrawnGaussian, FunctionClaim
from dpfed.audit.functions.learnt_scores import LearntScore
from dpfed.audit.statistics.epsilon_bounds import epsilon_of_shift
from dpfed.audit.statistics.power import (
    A_FIFTH,
    LIKELY,
    NOISES,
    RejectionRegion,
    scores_of_all_clients,
    smallest_of_found,
)
from dpfed.audit.statistics.rejection import ClaimTest, upper_limit
from dpfed.audit.verdict import Check, Outcome, PairRow, Verdict

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
        return {"probability": LIKELY, "epsilon": self.epsilon, "enough": self.is_sufficient}


def epsilon_found(
    claim: FunctionClaim,
    score: LearntScore,
    thresholds: tuple[float, ...],
    *,
    trials: tuple[int, int],
    of_profile: float,
    level: float,
) -> float:
    """Return the smallest epsilon of a Gaussian mechanism that the tests of this score find with probability 90%.

    of_profile: error probability of the test of the profile. level: error probability of the bound on mu.
    """
    unit = score.sign_of_world_1 * (thresholds[-1] - score.centre) / score.std if score.std > 0 else 0.0
    if claim.drawn_cohort is not None:
        at = claim.drawn_cohort.centre + unit * claim.drawn_cohort.std
        return _epsilon_found_for_drawn_cohort(claim, claim.drawn_cohort, trials, of_profile / len(thresholds), at)
    found = _epsilon_found_by_profile(claim, trials, of_profile, unit)
    return min(found, _epsilon_found_by_bound(claim, sum(trials), level)) if claim.is_gaussian else found


def _epsilon_found_by_profile(claim: FunctionClaim, trials: tuple[int, int], alpha: float, threshold: float) -> float:
    """Return the smallest epsilon of a Gaussian mechanism that the test of the profile rejects with probability 90%.

    threshold: threshold of the test, in standard deviations from the mean of world 0.
    """
    if not 0 < claim.mu < math.inf:
        return math.inf
    law = scores_of_all_clients(claim.mu)
    region = RejectionRegion.of_one_threshold(claim.profile, law, threshold=threshold, trials=trials, alpha=alpha)
    low, high = claim.mu, claim.mu
    while region.probability(scores_of_all_clients(high)) < LIKELY:
        low, high = high, 1.3 * high
        if high > 40 * max(1.0, claim.mu):
            return math.inf
    while high - low > 0.005 * high:
        between = (low + high) / 2
        low, high = (low, between) if region.probability(scores_of_all_clients(between)) >= LIKELY else (between, high)
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

    region = RejectionRegion.of_one_threshold(chords, drawn.law, threshold=threshold, trials=trials, alpha=alpha)

    def probability(short: float) -> float:
        less = drawn.with_noise_short(short)
        same = less.centre + (threshold - drawn.centre) * less.std / drawn.std  # cut of the score under this noise
        return replace(region, threshold=same).probability(less.law)

    found = smallest_of_found(NOISES, probability)
    return math.inf if found is None else drawn.with_noise_short(found).epsilon


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


NEEDED_SEPARATION = 0.9
"""Part of the claimed separation that the estimated separation of a pair must reach for a pass."""

NOT_TESTED = (
    "other inputs, settings, and several calls together",
    "the composition over rounds, and the accountant",
    "side effects of the code: only what the function returns is tested",
    "the last bits of floating-point noise",
)
"""Faults that this audit does not test for."""


@dataclass(frozen=True, kw_only=True)
class PairTest:
    """Test of the claim on one pair of neighbouring inputs under one score, with the bounds that the trials give.

    gap:         distance between the outputs of the two inputs as a multiple of the claimed distance: measured without
                 noise, or estimated
    lower_bound: lower bound on epsilon that holds for any mechanism
    lower_bound_gdp: lower bound on epsilon for a Gaussian mechanism; mu: the shift from which it is computed
    too_far:     True if a test other than the test of the profile refutes the claim
    power:       power of the test; None for all pairs but the best one
    """

    pair: str
    score: str
    gap: float
    trials: int
    lower_bound: float
    lower_bound_gdp: float
    mu: float
    test: ClaimTest
    too_far: bool = False
    power: EpsilonFound | None = None

    @property
    def rejected(self) -> bool:
        """True if the test of the profile or the second test refutes the claim; the tests share the
        error probability.
        """
        return self.test.rejected or self.too_far

    def largest_bound(self, claim: FunctionClaim) -> float:
        """Return the largest lower bound of epsilon that applies to the claim."""
        return max(self.lower_bound, self.lower_bound_gdp if claim.is_gaussian else 0.0)

    def cells(self, claim: FunctionClaim) -> dict[str, str]:
        """Return the row of the pair in a table."""
        return {
            "pair of neighbours": self.pair,
            "score": self.score,
            "distance over the claim": f"{self.gap:.4g}",
            "trials": f"{self.trials:,}",
            "epsilon at least": downwards(self.lower_bound),
            "if Gaussian": downwards(self.lower_bound_gdp) if claim.is_gaussian else "–",
            "claim": "refuted" if self.rejected else "stands",
        }

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the pair. Key `finds`: the epsilon that the test finds, if its power
        is an epsilon.
        """
        power = None if self.power is None else self.power.to_dict()
        return vars(self) | {
            "test": asdict(self.test),
            "power": power,
            "finds": (power or {}).get("epsilon"),
            "rejected": self.rejected,
        }


@dataclass(frozen=True, kw_only=True)
class FunctionTrials:
    """Claim and trials of an audit of a user's function, which its verdict rests on.

    trials:        number of counted calls
    power:         power of the pair that would have found the smallest faults, for any outcome of the trials
    largest_plausible_gap: estimated gap above which the verdict is inconclusive, even if the trials do not refute the
    claim
    advice:        remedy if the trials were too few
    not_tried:     names of pairs that got no trials, because there were too few trials for all pairs
    only_measured: names of pairs of uneven updates that were measured without trials, because they show no more of
                   the client than the pairs with trials
    """

    method: str
    claim: FunctionClaim
    confidence: float
    trials: int
    seed: int
    tests: tuple[PairTest, ...]
    checks: tuple[Check, ...]
    power: EpsilonFound
    largest_plausible_gap: float
    advice: str
    not_tried: tuple[str, ...]
    only_measured: tuple[str, ...]
    seconds: float

    @property
    def score_gap(self) -> float:
        """Largest gap of a pair."""
        return max(one.gap for one in self.tests)

    @property
    def lower_bound(self) -> float:
        """Largest lower bound of epsilon, for any mechanism."""
        return max(one.lower_bound for one in self.tests)

    @property
    def lower_bound_if_gaussian(self) -> float | None:
        """Largest lower bound of epsilon for a Gaussian mechanism; None if none is claimed."""
        return max(one.lower_bound_gdp for one in self.tests) if self.claim.is_gaussian else None

    @property
    def verdict(self) -> Outcome:
        """Verdict: "fail" if a test or a check refutes the claim, "pass" or "inconclusive".

        Inconclusive: noise short by a fifth would not have been found, no pair shows the claimed distance, or a pair
        seems to show far more than the claimed distance.
        """
        if any(one.rejected for one in self.tests) or any(one.passed is False for one in self.checks):
            return "fail"
        near = NEEDED_SEPARATION <= self.score_gap <= self.largest_plausible_gap
        return "pass" if near and self.power.is_sufficient else "inconclusive"

    def as_text(self) -> str:
        """Return the verdict and its reasons in one to three sentences."""
        broken = [one.name for one in self.checks if one.passed is False]
        failed = [f"Checks that failed: {', '.join(broken)}."] if broken else []
        refuted = [one for one in self.tests if one.rejected]
        if refuted:
            failed.insert(0, self._refutation_text(max(refuted, key=lambda one: one.largest_bound(self.claim))))
        if failed:
            return " ".join(failed)
        checks = f" and {len(self.checks)} checks" if self.checks else ""
        found = (
            f"{self._claim_text} is claimed; {self.trials:,} trials{checks} found nothing against it. The trials would "
            f"have found {self.power.as_text()}."
        )
        if self.verdict == "pass":
            return found
        gap = downwards(self.score_gap, digits=2)
        if self.score_gap < NEEDED_SEPARATION:
            return (
                f"{found} But the largest gap of a pair is {gap} of the claimed; {NEEDED_SEPARATION:g} is needed. "
                "Check that the clip norm is that of the code, and that the code uses its input."
            )
        if self.score_gap > self.largest_plausible_gap:
            return (
                f"{found} But the outputs of a pair seem to be {gap} times as far apart as is claimed; the trials "
                "neither confirm nor exclude it. Give more trials."
            )
        return f"{found} That is too little: noise short by a fifth must be found. {self.advice}"

    @property
    def _claim_text(self) -> str:
        return f"Epsilon {upwards(self.claim.epsilon)} at delta {upwards(self.claim.delta)}"

    def _refutation_text(self, worst: PairTest) -> str:
        words = f"{self._claim_text} is claimed and does not hold: inputs that differ in one client ({worst.pair}) "
        shown = worst.largest_bound(self.claim)
        if shown > self.claim.epsilon:
            return f"{words}can be distinguished as if epsilon were at least {downwards(shown)}."
        if not worst.test.rejected:
            return f"{words}are farther apart than is claimed."
        return (
            f"{words}can be distinguished so well that delta is at least {downwards(worst.test.seen)} at epsilon "
            f"{downwards(worst.test.epsilon)}, where {upwards(worst.test.claimed)} is claimed."
        )

    def as_verdict(self) -> Verdict:
        """Return the verdict, with these trials as its evidence."""
        claim, finds = self.claim, self.power.as_text()
        trials = Check(
            name="trials",
            passed=False if any(one.rejected for one in self.tests) else True if self.power.is_sufficient else None,
            detail=f"{self.trials:,} calls on {len({one.pair for one in self.tests})} pairs of neighbours",
            would_find=finds if math.isfinite(self.power.epsilon) else None,
        )
        return Verdict(
            audited=self.method,
            verdict=self.verdict,
            text=self.as_text(),
            claimed_epsilon=claim.epsilon,
            delta=claim.delta,
            adjacency=str(claim.adjacency),
            unit="client",
            lower_bound=self.lower_bound,
            checks=(trials, *self.checks),
            pairs=tuple(PairRow(cells=one.cells(claim), fields=one.to_dict()) for one in self.tests),
            not_tested=NOT_TESTED,
            details={
                "method": self.method,
                "claim": claim.description,
                "lower_bound_if_gaussian": self.lower_bound_if_gaussian,
                "confidence": self.confidence,
                "trials": self.trials,
                "score_gap": self.score_gap,
                "power": self.power.to_dict(),
                "rejected": any(one.rejected for one in self.tests),
                "not_tried": self.not_tried,
                "only_measured": self.only_measured,
                "seed": self.seed,
                "seconds": self.seconds,
            },
            evidence=self,
        )
