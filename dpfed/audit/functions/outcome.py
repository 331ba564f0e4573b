"""What the audit of a function found, and its verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from accounting.rounding import downwards, upwards
from dpfed.audit.functions.claim import FunctionClaim
from dpfed.audit.statistics.epsilon_bounds import epsilon_of_shift
from dpfed.audit.statistics.power import LIKELY
from dpfed.audit.statistics.rejection import ClaimTest
from dpfed.audit.verdict import Check, in_full

ENOUGH = 0.9
"""A pair reaches the claimed separation if it shows this part of it; what is shown is an estimate."""

_A_FIFTH = 0.8
_BEYOND_CHANCE = 1.5


@dataclass(frozen=True, kw_only=True)
class FunctionTest:
    """One pair of worlds under one score.

    gap:         how far the worlds are apart, in noise stds, over the claimed shift; an estimate
    lower_bound: epsilon for any mechanism; lower_bound_gdp if it is a Gaussian
    beyond:      lower_bound (lower_bound_gdp where a Gaussian is claimed) is above the claim, which refutes it
    finds:       the epsilon of a Gaussian (of the claim's sampling) that this test finds with probability 90%;
                 infinite with few trials
    """

    pair: str
    score: str
    gap: float
    trials: int
    lower_bound: float
    lower_bound_gdp: float
    finds: float
    test: ClaimTest
    beyond: bool = False

    @property
    def rejected(self) -> bool:
        """Whether the whole profile or the bound refutes the claim; they share the error probability."""
        return self.test.rejected or self.beyond

    def to_dict(self) -> dict[str, Any]:
        return {
            "pair": self.pair,
            "score": self.score,
            "gap": self.gap,
            "trials": self.trials,
            "lower_bound": self.lower_bound,
            "lower_bound_gdp": self.lower_bound_gdp,
            "finds": None if math.isinf(self.finds) else self.finds,
            "rejected": self.rejected,
        }


@dataclass(frozen=True, kw_only=True)
class FunctionAudit:
    """What was claimed of a function, what was seen, and what follows.

    not_tried: pairs without trials, for there were too few. only_measured: pairs of uneven updates whose short pilot
    showed no more of the client than the pairs that were tried.
    """

    name: str
    claim: FunctionClaim
    confidence: float
    trials: int
    seed: int
    tests: tuple[FunctionTest, ...]
    checks: tuple[Check, ...]
    not_tried: tuple[str, ...]
    only_measured: tuple[str, ...]
    seconds: float

    @property
    def gap(self) -> float:
        """The largest of a pair."""
        return max(one.gap for one in self.tests)

    @property
    def finds(self) -> float:
        """The smallest epsilon that would have been found with probability 90%, whatever the trials showed."""
        return min(one.finds for one in self.tests)

    @property
    def found_kind(self) -> str:
        """What `finds` is about."""
        return "a Gaussian mechanism" if self.claim.drawn is None else "a Gaussian mechanism with this sampling"

    @property
    def lower_bound(self) -> float:
        return max(one.lower_bound for one in self.tests)

    @property
    def verdict(self) -> str:
        """fail: the claim is refuted. inconclusive: noise short by a fifth would not have been found, or no pair shows
        as much as is claimed, or one seems to show far more."""
        if any(one.rejected for one in self.tests) or any(one.passed is False for one in self.checks):
            return "fail"
        enough = self.finds <= _limit(self.claim)
        return "pass" if enough and self.gap >= ENOUGH and not self._too_far else "inconclusive"

    @property
    def _too_far(self) -> bool:
        """Whether what is estimated speaks against a Gaussian claim that the trials do not refute."""
        return self.claim.gaussian and self.gap > _BEYOND_CHANCE * farthest(self.claim.mu)

    def in_words(self) -> str:
        """The verdict in a sentence or two."""
        claim = f"epsilon {upwards(self.claim.epsilon)} at delta {upwards(self.claim.delta)}"
        refuted = [one for one in self.tests if one.rejected]
        if refuted:
            worst = max(refuted, key=self._shown)
            apart = f"inputs that differ in one client ({worst.pair}) can be told apart"
            if self._shown(worst) > self.claim.epsilon:
                return (
                    f"{claim} is claimed and does not hold: {apart} as if epsilon were at least "
                    f"{downwards(self._shown(worst))}."
                )
            return (
                f"{claim} is claimed and does not hold: {apart} so well that delta is at least "
                f"{downwards(worst.test.seen)} at epsilon {downwards(worst.test.epsilon)}, where "
                f"{upwards(worst.test.claimed)} is claimed."
            )
        broken = [one.name for one in self.checks if one.passed is False]
        if broken:
            return f"Checks that failed: {', '.join(broken)}."
        found = f"{claim} is claimed, and {self.trials:,} trials found nothing against it. They would have found "
        found += (
            f"{self.found_kind} of epsilon {upwards(self.finds)} with probability {LIKELY:.0%}."
            if math.isfinite(self.finds)
            else "no mechanism, however bad."
        )
        if self.verdict == "pass":
            return found
        if self.gap < ENOUGH:
            return (
                f"{found} But the pair that shows the most shows {downwards(self.gap, digits=2)} of what is claimed: "
                "is clip_norm that of the function, and does it see its input?"
            )
        if self._too_far:
            return (
                f"{found} But a pair seems to be {downwards(self.gap, digits=2)} times as far apart as is claimed, "
                "which they could not settle: give more trials."
            )
        known = self.claim.gaussian or self.claim.drawn is not None
        more = "Give more trials." if known else "Give more trials, or claim a mechanism."
        return f"{found} That is too little: noise short by a fifth must be found. {more}"

    def _shown(self, one: FunctionTest) -> float:
        return max(one.lower_bound, one.lower_bound_gdp if self.claim.gaussian else 0.0)

    @property
    def verdict_in_full(self) -> str:
        """The verdict with its scope."""
        return in_full(self.verdict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `dpfed audit upload --json`."""
        gaussian = max(one.lower_bound_gdp for one in self.tests)
        return {
            "method": self.name,
            "claimed_epsilon": self.claim.epsilon,
            "delta": self.claim.delta,
            "claim": self.claim.words,
            "lower_bound": self.lower_bound,
            "lower_bound_if_gaussian": gaussian if self.claim.gaussian else None,
            "confidence": self.confidence,
            "trials": self.trials,
            "score_gap": self.gap,
            "power": {
                "probability": LIKELY,
                "epsilon": None if math.isinf(self.finds) else self.finds,
                "enough": self.finds <= _limit(self.claim),
            },
            "checks": [check.to_dict() for check in self.checks],
            "verdict": self.verdict,
            "verdict_in_full": self.verdict_in_full,
            "words": self.in_words(),
            "adjacency": str(self.claim.adjacency),
            "pairs": [one.to_dict() for one in self.tests],
            "not_tried": list(self.not_tried),
            "only_measured": list(self.only_measured),
            "seed": self.seed,
            "seconds": self.seconds,
        }


def _limit(claim: FunctionClaim) -> float:
    """The epsilon of a Gaussian whose noise is short by a fifth of what gives the claimed one."""
    if claim.drawn is not None:
        return claim.drawn.with_noise_short(1 - _A_FIFTH).epsilon
    return epsilon_of_shift(claim.mu / _A_FIFTH, delta=claim.delta) if math.isfinite(claim.mu) else math.inf


def farthest(mu: float) -> float:
    """How far apart any score of a mu-GDP mechanism is at most, in stds within its worlds, over mu: a little more than
    1, or for large mu much more (of signs, say). With densities p, q and m = (p + q) / 2, the square of a score's gap
    over its variance under m (that within, and a quarter of the square) is at most the integral of (p - q)^2 / m
    (Cauchy-Schwarz), and no post-processing makes that larger."""
    if not 0 < mu < math.inf:
        return math.inf
    at = np.linspace(-10.0, mu + 10.0, 20_001)
    p, q = (np.exp(-((at - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in (0.0, mu))
    m = (p + q) / 2
    total = float(((p - q) ** 2 / np.maximum(m, 1e-300)).sum() * (at[1] - at[0]))
    return math.sqrt(total / max(1 - total / 4, 1e-12)) / mu
