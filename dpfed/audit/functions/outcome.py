"""Outcome of the audit of a function by trials: tests, verdict, text and JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from accounting.arrays import Floats
from accounting.rounding import downwards, upwards
from dpfed.audit.functions.claim import FunctionClaim
from dpfed.audit.functions.power import EpsilonFound
from dpfed.audit.statistics.epsilon_bounds import epsilon_lower_bound, epsilon_of_shift, gdp_lower_bound
from dpfed.audit.statistics.rejection import ClaimTest, reject_claim
from dpfed.audit.statistics.thresholds import ScoreCuts
from dpfed.audit.verdict import Check, Outcome, PairRow, Verdict

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

    @classmethod
    def from_scores(
        cls,
        seen: tuple[Floats, Floats],
        claim: FunctionClaim,
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
        fields = {name: value for name, value in vars(self).items() if name not in ("test", "power")}
        return fields | {
            "test": asdict(self.test),
            "power": power,
            "finds": (power or {}).get("epsilon"),
            "rejected": self.rejected,
        }


@dataclass(frozen=True, kw_only=True)
class FunctionAudit:
    """Claim, trials, and verdict of an audit of a user's function.

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
    largest_plausible_gap: float = math.inf
    advice: str = "Give more trials."
    not_tried: tuple[str, ...]
    only_measured: tuple[str, ...]
    seconds: float

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

    @property
    def verdict_in_full(self) -> str:
        """Verdict, and what it is limited to."""
        return self.as_verdict().verdict_in_full

    def to_dict(self) -> dict[str, object]:
        """Return the JSON document of the verdict."""
        return self.as_verdict().to_dict()

    def as_verdict(self) -> Verdict:
        """Return the record of this audit."""
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
                "not_tried": list(self.not_tried),
                "only_measured": list(self.only_measured),
                "seed": self.seed,
                "seconds": self.seconds,
            },
        )
