"""Outcome of an audit by trials, of a method's round or of a user's function: tests, verdict, text and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Generic, Protocol, TypeVar

from accounting.arrays import Floats
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import downwards, upwards
from dpfed.audit.statistics.epsilon_bounds import epsilon_lower_bound, epsilon_of_shift, gdp_lower_bound
from dpfed.audit.statistics.rejection import ClaimTest, reject_claim
from dpfed.audit.statistics.thresholds import PrivacyProfile, ScoreCuts
from dpfed.audit.verdict import Check, Outcome, verdict_with_scope


class ClaimUnderTest(Protocol):
    """Claim under test: a privacy profile that holds for both orders of neighbours, and its epsilon at `delta`.

    is_gaussian: True if the claim is exactly mu-Gaussian DP, so that a shift larger than mu refutes it
    """

    @property
    def description(self) -> str:
        """Description of the claim."""

    @property
    def profile(self) -> PrivacyProfile: ...

    @property
    def epsilon(self) -> float: ...

    @property
    def delta(self) -> float: ...

    @property
    def is_gaussian(self) -> bool: ...

    @property
    def adjacency(self) -> Adjacency: ...


class DetectableFaults(Protocol):
    """Faults that a test would have found, computed without the outcome of its trials."""

    @property
    def is_sufficient(self) -> bool:
        """True if noise short by a fifth is among the faults."""

    def as_text(self) -> str:
        """Return the description of the faults, with the probability that the test finds them."""

    def to_dict(self) -> dict[str, object]: ...


ClaimT = TypeVar("ClaimT", bound=ClaimUnderTest, covariant=True)
PowerT = TypeVar("PowerT", bound=DetectableFaults, covariant=True)


@dataclass(frozen=True, kw_only=True)
class MoveBound:
    """Lower bound on the distance that a client moves the release, as a multiple (`factor`) of the claimed distance.

    epsilon: lower bound at the claim's delta if the noise is as claimed; None if no such bound is known
    """

    factor: float
    epsilon: float | None


@dataclass(frozen=True, kw_only=True)
class PairTest:
    """Test of the claim on one pair of neighbouring inputs under one score, with the bounds that the trials give.

    gap:         distance between the outputs of the two inputs as a multiple of the claimed distance: measured without
                 noise, or estimated
    lower_bound: lower bound on epsilon that holds for any mechanism
    lower_bound_gdp: lower bound on epsilon for a Gaussian mechanism; mu: the shift from which it is computed
    too_far:     True if a test other than the test of the profile refutes the claim
    power:       power of the test; None for all pairs but the best one, and if the scores' distribution is unknown
    moved:       bound on the distance from whole scores; None if the scores' distribution is unknown
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
    power: DetectableFaults | None = None
    moved: MoveBound | None = None

    @classmethod
    def from_scores(
        cls,
        seen: tuple[Floats, Floats],
        claim: ClaimUnderTest,
        cuts: ScoreCuts,
        *,
        pair: str,
        score: str,
        gap: float,
        of_profile: float,
        of_bound: float,
        of_gaussian: float,
    ) -> PairTest:
        """Return the test of `seen`, the scores of inputs 0 and 1.

        of_profile: error probability of the test of the profile. of_bound, of_gaussian: error probabilities of the two
        lower bounds, given that both inputs were called.
        """
        mu = gdp_lower_bound(*seen, alpha=of_gaussian, cut=cuts.gaussian_cut)
        return cls(
            pair=pair,
            score=score,
            gap=gap,
            trials=len(seen[0]) + len(seen[1]),
            lower_bound=epsilon_lower_bound(*seen, delta=claim.delta, alpha=of_bound, cuts=cuts.guess_cuts),
            lower_bound_gdp=epsilon_of_shift(mu, delta=claim.delta),
            mu=mu,
            test=reject_claim(*seen, claim.profile, alpha=of_profile, thresholds=cuts.profile_thresholds),
        )

    @property
    def rejected(self) -> bool:
        """True if the test of the profile or the second test refutes the claim; the tests share the
        error probability.
        """
        return self.test.rejected or self.too_far

    def largest_bound(self, claim: ClaimUnderTest) -> float:
        """Return the largest lower bound of epsilon that applies to the claim."""
        return max(self.lower_bound, self.lower_bound_gdp if claim.is_gaussian else 0.0)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the pair. Key `finds`: the epsilon that the test finds, if its power
        is an epsilon.
        """
        power = None if self.power is None else self.power.to_dict()
        fields = {name: value for name, value in vars(self).items() if name not in ("test", "power", "moved")}
        return fields | {
            "test": asdict(self.test),
            "power": power,
            "moved": None if self.moved is None else asdict(self.moved),
            "finds": (power or {}).get("epsilon"),
            "rejected": self.rejected,
        }


@dataclass(frozen=True, kw_only=True)
class Audit(Generic[ClaimT, PowerT]):
    """Claim, trials, and verdict of an audit of a method's round or of a user's function.

    trials:        number of counted trials: rounds, uploads if each upload is visible, or calls of a function
    power:         power of the pair that would have found the smallest faults, for any outcome of the trials
    needed_gap:    part of the claimed distance that a pair must reach for a pass
    largest_plausible_gap: estimated gap above which the verdict is inconclusive, even if the trials do not refute the
    claim
    advice:        remedy if the trials were too few
    not_tried:     names of pairs that got no trials, because there were too few trials for all pairs
    only_measured: names of pairs of uneven updates that were measured without trials, because they show no more of
                   the client than the pairs with trials
    details:       further keys of the JSON document
    """

    method: str
    claim: ClaimT
    confidence: float
    trials: int
    seed: int
    tests: tuple[PairTest, ...]
    checks: tuple[Check, ...]
    power: PowerT
    needed_gap: float
    largest_plausible_gap: float = math.inf
    advice: str = "Give more trials."
    not_tried: tuple[str, ...]
    only_measured: tuple[str, ...]
    seconds: float
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def score_gap(self) -> float:
        """Largest gap of a pair. Pairs scored by the support of the output have no distance and are left out."""
        return max((one.gap for one in self.tests if one.score != "support"), default=0.0)

    @property
    def lower_bound(self) -> float:
        """Largest lower bound of epsilon, for any mechanism."""
        return max((one.lower_bound for one in self.tests), default=0.0)

    @property
    def lower_bound_if_gaussian(self) -> float | None:
        """Largest lower bound of epsilon for a Gaussian mechanism; None if none is claimed."""
        return max((one.lower_bound_gdp for one in self.tests), default=0.0) if self.claim.is_gaussian else None

    @property
    def verdict(self) -> Outcome:
        """Verdict: "fail" if a test or a check refutes the claim, "pass" or "inconclusive".

        Inconclusive: noise short by a fifth would not have been found, no pair shows the claimed distance, or a pair
        seems to show far more than the claimed distance.
        """
        if any(one.rejected for one in self.tests) or any(one.passed is False for one in self.checks):
            return "fail"
        near = self.needed_gap <= self.score_gap <= self.largest_plausible_gap
        return "pass" if near and self.power.is_sufficient else "inconclusive"

    @property
    def verdict_in_full(self) -> str:
        """Verdict, and the inputs it is limited to."""
        return verdict_with_scope(self.verdict)

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
        if self.score_gap < self.needed_gap:
            return (
                f"{found} But the largest gap of a pair is {gap} of the claimed distance; at least {self.needed_gap:g} "
                "is needed. Check that the clip norm is that of the code, and that the code uses its input."
            )
        if self.score_gap > self.largest_plausible_gap:
            return (
                f"{found} But the outputs of a pair seem to be {gap} times as far apart as is claimed; the trials "
                "neither confirm nor exclude it. Give more trials."
            )
        return f"{found} That is too little: noise short by a fifth must be found. {self.advice}"

    in_words = as_text  # its name up to version 0.3

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

    def to_dict(self) -> dict[str, object]:
        """Return the JSON document of `dpfed audit upload --json`."""
        return {
            "method": self.method,
            "claimed_epsilon": self.claim.epsilon,
            "delta": self.claim.delta,
            "claim": self.claim.description,
            "lower_bound": self.lower_bound,
            "lower_bound_if_gaussian": self.lower_bound_if_gaussian,
            "confidence": self.confidence,
            "trials": self.trials,
            "score_gap": self.score_gap,
            "power": self.power.to_dict(),
            "rejected": any(one.rejected for one in self.tests),
            "checks": [one.to_dict() for one in self.checks],
            "verdict": self.verdict,
            "verdict_in_full": self.verdict_in_full,
            "words": self.as_text(),
            "adjacency": str(self.claim.adjacency),
            "pairs": [one.to_dict() for one in self.tests],
            "not_tried": list(self.not_tried),
            "only_measured": list(self.only_measured),
            "seed": self.seed,
            "seconds": self.seconds,
            **self.details,
        }


AnyAudit = Audit[ClaimUnderTest, DetectableFaults]
