"""The audit of one round: does what is released about one client keep the privacy that the ledger would state?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from accounting import require
from accounting.adjacency import Adjacency
from dpfed.audit.claims import Claim, claim_of
from dpfed.audit.epsilon_bounds import epsilon_lower_bound, gdp_lower_bound
from dpfed.audit.neighbours import Neighbours, pairs_of_coins, pairs_of_sums, pairs_of_uploads
from dpfed.audit.one_round import OneRound
from dpfed.audit.one_stream import OneStream
from dpfed.audit.rejection import ClaimTest, reject_claim
from dpfed.audit.round_checks import (
    Check,
    empty_round_check,
    floor_check,
    linear_check,
    noise_check,
    norm_check,
    seeds_check,
    sum_check,
)
from dpfed.audit.two_worlds import TwoWorlds
from dpfed.compress.dense import Dense
from dpfed.compress.upload import Upload
from dpfed.errors import ConfigError
from dpfed.models.flat import Block

ENOUGH = 0.95
"""A pair reaches the claimed sensitivity if it has this part of it."""


@dataclass(frozen=True, kw_only=True)
class PairTest:
    """One pair of worlds under one score: the test of the claimed profile, and the bounds that these trials give.

    gap: of the noiseless releases over the claimed sensitivity. lower_bound holds for any mechanism; lower_bound_gdp,
    and the shift mu behind it, only if the mechanism is a Gaussian's.
    """

    pair: str
    score: str
    gap: float
    trials: int
    lower_bound: float
    lower_bound_gdp: float
    mu: float
    test: ClaimTest


@dataclass(frozen=True, kw_only=True)
class UploadAudit:
    """What was claimed, what was seen, and what follows."""

    method: str
    claim: Claim
    confidence: float
    trials: int
    seed: int
    dimension: int
    tests: tuple[PairTest, ...]
    checks: tuple[Check, ...]
    seconds: float

    @property
    def score_gap(self) -> float:
        """The largest noiseless gap of a pair over the claimed sensitivity."""
        return max((one.gap for one in self.tests if one.score != "support"), default=0.0)

    @property
    def verdict(self) -> str:
        """fail: the claim or a check is refuted. inconclusive: no pair would have shown a claim that just fails."""
        if any(one.test.rejected for one in self.tests) or not all(check.passed for check in self.checks):
            return "fail"
        return "pass" if self.score_gap >= ENOUGH else "inconclusive"

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `dpfed audit upload --json`."""
        gaussian = max((one.lower_bound_gdp for one in self.tests), default=0.0) if self.claim.is_gaussian else None
        return {
            "method": self.method,
            "claimed_epsilon": self.claim.epsilon,
            "delta": self.claim.delta,
            "lower_bound": max((one.lower_bound for one in self.tests), default=0.0),
            "lower_bound_if_gaussian": gaussian,
            "confidence": self.confidence,
            "trials": self.trials,
            "score_gap": self.score_gap,
            "rejected": any(one.test.rejected for one in self.tests),
            "checks": [asdict(check) for check in self.checks],
            "verdict": self.verdict,
            "adjacency": str(self.claim.mechanism.adjacency),
            "seen": self.claim.seen,
            "mechanism": self.claim.to_dict(),
            "dimension": self.dimension,
            "pairs": [{**asdict(one), "test": asdict(one.test)} for one in self.tests],
            "seed": self.seed,
            "seconds": self.seconds,
        }


def audit_round(
    one: OneRound,
    layout: tuple[Block, ...],
    *,
    method: str,
    trials: int = 100_000,
    confidence: float = 0.95,
    seed: int = 0,
    delta: float = 1e-5,
    draws: int = 300_000,
    checks: Sequence[Check] = (),
) -> UploadAudit:
    """Audit the round `one` against what its own parts would write in the ledger.

    trials: in all, half of them for the pair with the largest noiseless gap, the rest over the other pairs; half of
    each in either world. confidence: of the test of the claim and of the lower bounds, each, over all pairs together
    (Bonferroni). draws: of noise, for its variance. checks: further ones that were made elsewhere. Checks have a
    false-alarm probability of `round_checks.FALSE_ALARM` each.

    Claim: a round that keeps what its ledger states is failed with probability at most 1 - confidence + 1e-5. A "pass"
    proves nothing: it says what so many trials of these pairs could have seen.
    """
    began = time.monotonic()
    number, alpha = require.count(trials=trials), 1 - require.open_probability(confidence=confidence)
    claim = claimed(one, delta)
    fresh = one.with_randomness(OneStream(seed))
    size = one.parts.local.course.size
    worlds = [TwoWorlds.of(fresh, claim, pair) for pair in pairs_of(one, claim, layout)]
    tests = tested(worlds, trials=number, alpha=alpha)
    return UploadAudit(
        method=method,
        claim=claim,
        confidence=confidence,
        trials=sum(one.trials for one in tests if one.score != "upload"),
        seed=seed,
        dimension=size,
        tests=tuple(tests),
        checks=(*round_checks(one, claim, size, seed, draws), *checks),
        seconds=time.monotonic() - began,
    )


def claimed(one: OneRound, delta: float) -> Claim:
    """What the ledger would get for this round; ConfigError where that is nothing."""
    release = one.parts.privacy.release(one.state.clip_norm, one.state.round, one.map.sent, one.clients)
    if release is None:
        raise ConfigError("nothing is private here: no release would be charged, so there is no claim to test.")
    return claim_of(release, delta=delta)


def pairs_of(one: OneRound, claim: Claim, layout: tuple[Block, ...]) -> list[Neighbours]:
    """The pairs of neighbours that suit what is claimed."""
    adjacency, size = Adjacency.of(claim.mechanism.adjacency), one.parts.local.course.size
    if claim.coins is not None:
        return pairs_of_coins(one.map, adjacency, edge=claim.coins.floor, bound=claim.bound, size=size)
    absent = one.parts.decode_first
    pairs = pairs_of_sums(layout, one.map, adjacency, bound=claim.bound, size=size, absent=absent)
    if claim.seen == "sum":
        return pairs
    code = one.parts.code
    lossy = not (isinstance(code, Upload) and isinstance(code.scheme, Dense))
    return pairs_of_uploads(pairs, bound=claim.bound, size=size, lossy=lossy)


def tested(worlds: list[TwoWorlds], *, trials: int, alpha: float) -> list[PairTest]:
    """All pairs, each score at its share of alpha."""
    largest = max(one.gap for one in worlds)
    best = next(k for k, one in enumerate(worlds) if one.gap >= largest * (1 - 1e-3))
    share = alpha / sum(len(one.pair.scores) for one in worlds)
    tests = []
    for k, world in enumerate(worlds):
        part = trials if len(worlds) == 1 else trials // 2 if k == best else trials // 2 // (len(worlds) - 1)
        tests += _pair_tests(world, max(part // 2, 1), share)
    return tests


def _pair_tests(world: TwoWorlds, each: int, alpha: float) -> list[PairTest]:
    """Cuts are settled before the trials that are counted."""
    delta, claim = world.claim.delta, world.claim
    cuts = {kind: [world.cuts(kind, each, alpha, at) for at in (None, delta)] for kind in world.pair.scores}
    scores = [world.scores(side, each) for side in (0, 1)]
    tests = []
    for kind in world.pair.scores:
        one, other = scores[0][kind], scores[1][kind]
        by_shift, by_delta = cuts[kind]
        bound = epsilon_lower_bound(one, other, delta=delta, alpha=alpha, thresholds=by_delta)
        gaussian = gdp_lower_bound(one, other, delta=delta, alpha=alpha, thresholds=by_shift)
        tests.append(
            PairTest(
                pair=world.pair.name,
                score=kind,
                gap=world.gap,
                trials=2 * each,
                lower_bound=bound.epsilon,
                lower_bound_gdp=gaussian.epsilon,
                mu=gaussian.mu or 0.0,
                test=reject_claim(one, other, claim.profile, alpha=alpha, thresholds=by_shift),
            )
        )
    return tests


def round_checks(one: OneRound, claim: Claim, size: int, seed: int, draws: int) -> list[Check]:
    """The cheap checks that apply."""
    fresh = one.with_randomness(OneStream(seed + 1))
    found: list[Check | None] = [norm_check(fresh, claim, size)]
    found.append(noise_check(fresh, claim, size, draws) if claim.coins is None else floor_check(fresh, claim, size))
    found += [seeds_check(one, claim, size), linear_check(fresh, claim, size)]
    if claim.seen == "sum":
        found += [sum_check(one, size), empty_round_check(one, claim)]
    return [check for check in found if check is not None]
