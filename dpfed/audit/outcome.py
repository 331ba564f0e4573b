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
from dpfed.audit.verdict import Check, Verdict, in_full


class Claimed(Protocol):
    """Claim under test: a privacy profile of both orders of neighbours, and its epsilon at `delta`.

    gaussian: the claim is exactly mu-Gaussian DP, so that a larger shift refutes it
    """

    @property
    def words(self) -> str:
        """Description of the claim."""

    @property
    def profile(self) -> PrivacyProfile: ...

    @property
    def epsilon(self) -> float: ...

    @property
    def delta(self) -> float: ...

    @property
    def gaussian(self) -> bool: ...

    @property
    def adjacency(self) -> Adjacency: ...


class Detectable(Protocol):
    """Faults that a test would have found, for any outcome of its trials."""

    @property
    def enough(self) -> bool:
        """True if noise short by a fifth is among the faults."""

    def as_text(self) -> str:
        """Return the description of the faults, with their probability of being found."""

    def to_dict(self) -> dict[str, object]: ...


ClaimT = TypeVar("ClaimT", bound=Claimed, covariant=True)
PowerT = TypeVar("PowerT", bound=Detectable, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Distance that a client moves the release, at least, over the claimed distance.

    epsilon: lower bound at the claim's delta if all else is as claimed; None if no such bound is known
    """

    factor: float
    epsilon: float | None


@dataclass(frozen=True, kw_only=True)
class PairTest:
    """Test of the claim on one pair of neighbouring inputs under one score, with the bounds that the trials give.

    gap:         distance of the two inputs' outputs over the claimed one: measured without noise, or an estimate
    lower_bound: of epsilon for any mechanism; lower_bound_gdp, and the shift mu behind it, for a Gaussian one
    too_far:     another test than that of the profile refutes the claim
    power:       None for other pairs than the best one, and if the distribution of the scores is not known
    moved:       from whole scores, if their distribution is known
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
    power: Detectable | None = None
    moved: Moved | None = None

    @classmethod
    def of(
        cls,
        seen: tuple[Floats, Floats],
        claim: Claimed,
        cuts: ScoreCuts,
        *,
        pair: str,
        score: str,
        gap: float,
        of_profile: float,
        of_bound: float,
        of_gaussian: float,
    ) -> PairTest:
        """Return the test of the scores of the inputs 0 and 1.

        of_profile, of_bound, of_gaussian: error probabilities of the test of the profile and of the two bounds, the
        latter given that both inputs were called.
        """
        mu = gdp_lower_bound(*seen, alpha=of_gaussian, cut=cuts.of_gaussian)
        return cls(
            pair=pair,
            score=score,
            gap=gap,
            trials=len(seen[0]) + len(seen[1]),
            lower_bound=epsilon_lower_bound(*seen, delta=claim.delta, alpha=of_bound, cuts=cuts.of_guesses),
            lower_bound_gdp=epsilon_of_shift(mu, delta=claim.delta),
            mu=mu,
            test=reject_claim(*seen, claim.profile, alpha=of_profile, thresholds=cuts.of_profile),
        )

    @property
    def rejected(self) -> bool:
        """True if either test refutes the claim; they share the error probability."""
        return self.test.rejected or self.too_far

    def shown(self, claim: Claimed) -> float:
        """Return the largest lower bound of epsilon that applies to the claim."""
        return max(self.lower_bound, self.lower_bound_gdp if claim.gaussian else 0.0)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the pair. Its key `finds` is the epsilon that the test finds, if power is stated as
        one.
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

    trials:        counted ones: rounds, single uploads where each upload is seen, or calls of a function
    power:         of the pair that would have found the smallest faults, whatever the trials showed
    needed_gap:    part of the claimed distance that a pair has to reach for a pass
    farthest:      estimated gap from which on a pair speaks against the claim, though its trials do not refute it
    advice:        remedy where the trials were too few
    not_tried:     pairs without trials, as there were too few
    only_measured: pairs of uneven updates that show no more than the pairs with trials, measured without trials
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
    farthest: float = math.inf
    advice: str = "Give more trials."
    not_tried: tuple[str, ...]
    only_measured: tuple[str, ...]
    seconds: float
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def score_gap(self) -> float:
        """Largest gap of a pair. Pairs of supports have no distance."""
        return max((one.gap for one in self.tests if one.score != "support"), default=0.0)

    @property
    def lower_bound(self) -> float:
        """Largest lower bound of epsilon, for any mechanism."""
        return max((one.lower_bound for one in self.tests), default=0.0)

    @property
    def lower_bound_if_gaussian(self) -> float | None:
        """Largest lower bound of epsilon for a Gaussian mechanism; None if none is claimed."""
        return max((one.lower_bound_gdp for one in self.tests), default=0.0) if self.claim.gaussian else None

    @property
    def verdict(self) -> Verdict:
        """Verdict: "fail" if a test or a check refutes the claim, "pass" or "inconclusive".

        Inconclusive: noise short by a fifth would not have been found, no pair shows the claimed distance, or one seems
        to show far more.
        """
        if any(one.rejected for one in self.tests) or any(one.passed is False for one in self.checks):
            return "fail"
        near = self.needed_gap <= self.score_gap <= self.farthest
        return "pass" if near and self.power.enough else "inconclusive"

    @property
    def verdict_in_full(self) -> str:
        """Verdict with its scope."""
        return in_full(self.verdict)

    def as_text(self) -> str:
        """Return the verdict in a sentence or two."""
        broken = [one.name for one in self.checks if one.passed is False]
        failed = [f"Checks that failed: {', '.join(broken)}."] if broken else []
        refuted = [one for one in self.tests if one.rejected]
        if refuted:
            failed.insert(0, self._refuted(max(refuted, key=lambda one: one.shown(self.claim))))
        if failed:
            return " ".join(failed)
        checks = f" and {len(self.checks)} checks" if self.checks else ""
        found = (
            f"{self._claimed} is claimed; {self.trials:,} trials{checks} found nothing against it. The trials would "
            f"have found {self.power.as_text()}."
        )
        if self.verdict == "pass":
            return found
        gap = downwards(self.score_gap, digits=2)
        if self.score_gap < self.needed_gap:
            return (
                f"{found} But the pair that shows the most shows {gap} of what is claimed, at least "
                f"{self.needed_gap:g} is needed: is the clip norm that of the code, and does it see its input?"
            )
        if self.score_gap > self.farthest:
            return (
                f"{found} But a pair seems to be {gap} times as far apart as is claimed, which they could not settle: "
                "give more trials."
            )
        return f"{found} That is too little: noise short by a fifth must be found. {self.advice}"

    in_words = as_text  # its name up to version 0.3

    @property
    def _claimed(self) -> str:
        return f"Epsilon {upwards(self.claim.epsilon)} at delta {upwards(self.claim.delta)}"

    def _refuted(self, worst: PairTest) -> str:
        words = f"{self._claimed} is claimed and does not hold: inputs that differ in one client ({worst.pair}) "
        shown = worst.shown(self.claim)
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
            "claim": self.claim.words,
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


AnyAudit = Audit[Claimed, Detectable]
