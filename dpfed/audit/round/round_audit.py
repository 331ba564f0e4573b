"""The audit of one round: does what is released about one client keep the privacy that the ledger would state?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from accounting import require
from accounting.mechanisms import FullParticipation
from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit.round.bound_checks import floor_check, norm_check, window_check
from dpfed.audit.round.claims import Claim, claim_of
from dpfed.audit.round.known_laws import Moved, shown, whole_scores
from dpfed.audit.round.neighbours import Neighbours, Score, pairs_of_coins, pairs_of_sums, pairs_of_uploads, with_counts
from dpfed.audit.round.noise_checks import coordinates_check, noise_of, seeds_check, size_check, tail_check
from dpfed.audit.round.one_round import OneRound, OneStream
from dpfed.audit.round.round_checks import (
    distance_check,
    empty_round_check,
    ledger_check,
    linear_check,
    public_map_check,
    state_check,
    sum_check,
)
from dpfed.audit.round.two_worlds import Trials, TwoWorlds
from dpfed.audit.statistics.epsilon_bounds import epsilon_lower_bound, gdp_lower_bound
from dpfed.audit.statistics.power import LIKELY, MOVES, MOVES_OF_COINS, NOISES, NOTHING, Power, Region, power_of
from dpfed.audit.statistics.rejection import ClaimTest, reject_claim
from dpfed.audit.statistics.thresholds import Cuts, Thresholds, coins
from dpfed.audit.statistics.whole_scores import WholeScores
from dpfed.audit.verdict import Check, in_full
from dpfed.compress.dense import Dense
from dpfed.errors import ConfigError
from dpfed.models.flat import Block
from dpfed.stages.clip import Clip
from dpfed.stages.encode import Encode

ENOUGH = 0.95
"""A pair reaches the claimed sensitivity if it has this part of it."""

TRIALS = 6_000
"""Enough for noise of multiplier 1 that is short by a fifth, over all pairs."""

PLENTY = 2_000
"""Trials of a pair beside the best one."""

_OF_MOVES = 0.1
"""Of a pair's error probability: the part of the test of whole scores, where their law is known."""

_ROUNDING = 1e-6
_FARTHER = 0.01

NOT_TESTED = (
    "several rounds together, but for shared noise",
    "clients, updates, states of the model and settings other than those that were tried",
    "metrics and times that are published beside the model",
    "noise cut off beyond 4 standard deviations, the last bits of floating-point noise",
    "one secret seed of 32 bits or more for a whole process",
    "masked sums with the same secret in every round: no trial shows it, the package's tests of dpfed.aggregation do",
)
"""What no part of this audit can show."""


@dataclass(frozen=True, kw_only=True)
class PairTest:
    """One pair of worlds under one score: the test of the claimed profile, and the bounds that these trials give.

    gap: of the noiseless releases over the claimed sensitivity. lower_bound holds for any mechanism; lower_bound_gdp,
    and the shift mu behind it, only if the mechanism is a Gaussian's. power: of this test, at these numbers of trials;
    None for other pairs than that with the largest gap, and where the law of the scores is not known. There also:
    moved, from whole scores, if all but the client's move is as claimed (`whole_scores`); too_far: it moves the release
    farther than claimed, which refutes the claim.
    """

    pair: str
    score: str
    gap: float
    trials: int
    lower_bound: float
    lower_bound_gdp: float
    mu: float
    test: ClaimTest
    power: Power | None = None
    moved: Moved | None = None
    too_far: bool = False

    @property
    def rejected(self) -> bool:
        """Whether either test refutes the claim."""
        return self.test.rejected or self.too_far

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
        return {**asdict(self), "power": None if self.power is None else self.power.to_dict()}


@dataclass(frozen=True, kw_only=True)
class UploadAudit:
    """What was claimed, what was seen, and what follows.

    trials: whole rounds in all, or single uploads where each is seen. not_tried: pairs that got none of them.
    only_measured: pairs of uneven updates whose releases, without noise, are no farther apart than those of the pairs
    that were tried.
    """

    method: str
    claim: Claim
    confidence: float
    trials: int
    seed: int
    dimension: int
    tests: tuple[PairTest, ...]
    checks: tuple[Check, ...]
    not_tried: tuple[str, ...]
    only_measured: tuple[str, ...]
    seconds: float

    @property
    def score_gap(self) -> float:
        """The largest noiseless gap of a pair over the claimed sensitivity."""
        return max((one.gap for one in self.tests if one.score != "support"), default=0.0)

    @property
    def lower_bound_known_law(self) -> float | None:
        """Epsilon at delta if all but the client's move is as claimed; None where it is not known."""
        known = [one.moved.epsilon for one in self.tests if one.moved is not None and one.moved.epsilon is not None]
        return max(known, default=None)

    @property
    def power(self) -> Power:
        """Of the pair that would have found the smallest faults. It does not depend on what the trials showed."""
        known = [one.power for one in self.tests if one.power is not None and one.gap >= ENOUGH]
        return min(known, key=_least, default=NOTHING)

    @property
    def verdict(self) -> str:
        """fail: the claim or a check is refuted. inconclusive: the trials would not have shown noise short by a fifth,
        or no pair reaches the claimed sensitivity."""
        if any(one.rejected for one in self.tests) or not all(check.passed for check in self.checks):
            return "fail"
        return "pass" if self.score_gap >= ENOUGH and self.power.enough else "inconclusive"

    @property
    def verdict_in_full(self) -> str:
        """The verdict with its scope."""
        return in_full(self.verdict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `dpfed audit upload --json`."""
        gaussian = max((one.lower_bound_gdp for one in self.tests), default=0.0) if self.claim.is_gaussian else None
        return {
            "method": self.method,
            "claimed_epsilon": self.claim.epsilon,
            "delta": self.claim.delta,
            "lower_bound": max((one.lower_bound for one in self.tests), default=0.0),
            "lower_bound_if_gaussian": gaussian,
            "lower_bound_known_law": self.lower_bound_known_law,
            "confidence": self.confidence,
            "trials": self.trials,
            "score_gap": self.score_gap,
            "power": self.power.to_dict(),
            "rejected": any(one.rejected for one in self.tests),
            "checks": [check.to_dict() for check in self.checks],
            "verdict": self.verdict,
            "verdict_in_full": self.verdict_in_full,
            "adjacency": str(self.claim.mechanism.adjacency),
            "seen": self.claim.seen,
            "sampling": self.claim.sampling.name,
            "mechanism": self.claim.to_dict(),
            "dimension": self.dimension,
            "pairs": [one.to_dict() for one in self.tests],
            "not_tried": list(self.not_tried),
            "only_measured": list(self.only_measured),
            "not_tested": list(NOT_TESTED),
            "seed": self.seed,
            "seconds": self.seconds,
        }


def _least(power: Power) -> tuple[float, float]:
    """Smallest faults first."""
    return tuple(math.inf if fault is None else fault for fault in (power.noise_short, power.too_far))  # type: ignore[return-value]


def audit_round(
    one: OneRound,
    layout: tuple[Block, ...],
    *,
    method: str,
    trials: int = TRIALS,
    confidence: float = 0.95,
    seed: int = 0,
    delta: float = 1e-5,
    draws: int = 300_000,
    checks: Sequence[Check] = (),
    progress: Callable[[str], None] | None = None,
) -> UploadAudit:
    """Audit whole rounds of `one` against what its own stages would write in the ledger.

    trials: in all, both worlds and all pairs together: half of them for the pair with the largest noiseless gap, the
    rest over the other pairs, in which a pair of neighbours that would get fewer than two gets none. confidence: of the
    test of the claim and of the lower bounds, each, over all pairs together (Bonferroni; half of the error probability
    for the pair with the largest gap). draws: of noise, for its law. checks: further ones that were made elsewhere.
    Checks have a false-alarm probability of `verdict.FALSE_ALARM` each. progress: is told what is being done.

    Claim: a round that keeps what its ledger states is failed with probability at most 1 - confidence + 2e-5. A "pass"
    proves nothing: its `power` says which faults these trials would have seen.
    """
    began = time.monotonic()
    number, alpha = require.count(at_least=2, trials=trials), 1 - require.open_probability(confidence=confidence)
    claim = claimed(one, delta)
    fresh = one.with_randomness(OneStream(seed))
    size = one.method.clients.course.size
    say = progress or (lambda words: None)
    say("preparing pairs of neighbours")
    worlds = [TwoWorlds.of(fresh, claim, pair) for pair in pairs_of(one, claim, layout)]
    shares = shares_of(worlds, trials=number, alpha=alpha, seed=seed)
    tests, seen = [], []
    for k, share in enumerate(shares, 1):
        where = f"pair {k} of {len(shares)}, {share.world.pair.name}"
        outcomes, trials_of = share.tested(lambda words, where=where: say(f"{where}: {words}"))  # type: ignore[misc]
        tests += outcomes
        seen += trials_of
    say("checks of noise, bounds, seeds and samplers")
    return UploadAudit(
        method=method,
        claim=claim,
        confidence=confidence,
        trials=sum(share.trials for share in shares),
        seed=seed,
        dimension=size,
        tests=tuple(tests),
        checks=(
            *round_checks(one, claim, size, seed, draws),
            distance_check(one, claim, worlds),
            state_check(seen),
            *_ledger(claim, seen),
            *checks,
        ),
        not_tried=tuple(
            one.pair.name for one in worlds if not one.pair.screened and all(one is not share.world for share in shares)
        ),
        only_measured=tuple(
            one.pair.name for one in worlds if one.pair.screened and all(one is not share.world for share in shares)
        ),
        seconds=time.monotonic() - began,
    )


def claimed(one: OneRound, delta: float) -> Claim:
    """What the ledger would get for this round; ConfigError where that is nothing."""
    release = one.method.release(replace(one.announced, uploads=one.clients))
    if release is None:
        raise ConfigError("nothing is private here: no release would be charged, so there is no claim to test.")
    clip = one.method.stages.find(Clip)
    if clip is None or clip.adaptive is None:
        return claim_of(release, delta=delta)
    in_clips = release.mechanism.adjacency.sensitivity_in_clips
    return claim_of(release, delta=delta, count_mu=in_clips / clip.adaptive.count_noise_multiplier)


def pairs_of(one: OneRound, claim: Claim, layout: tuple[Block, ...]) -> list[Neighbours]:
    """The pairs of neighbours that suit what is claimed."""
    adjacency, size = claim.adjacency, one.method.clients.course.size
    if claim.coins is not None:
        return pairs_of_coins(layout, one.projection, adjacency, edge=claim.coins.floor, bound=claim.bound, size=size)
    stages = one.method.stages
    shares = stages.noise_in_rows
    counted = claim.count_mu > 0 and not shares
    absent = stages.decodes_before_the_clip or counted or (adjacency is Adjacency.ADD_REMOVE and not shares)
    pairs = pairs_of_sums(layout, one.projection, adjacency, bound=claim.bound, size=size, absent=absent)
    if claim.seen == "sum":
        if one.sampled:  # all others opposite is the worst pair of a drawn cohort
            pairs.sort(key=lambda pair: "others" not in pair.name)
        return with_counts(pairs, adjacency, bound=claim.bound) if counted and not one.sampled else pairs
    encode = stages.find(Encode)
    lossy = encode is None or not isinstance(encode.scheme, Dense)
    return pairs_of_uploads(pairs, bound=claim.bound, size=size, lossy=lossy)


@dataclass(frozen=True, kw_only=True, eq=False)
class Share:
    """A pair's part of the trials and of the error probability. best: the pair whose power is stated. seed: of the
    coins that choose each trial's world."""

    world: TwoWorlds
    trials: int
    alpha: float
    best: bool = False
    seed: int = 0

    def tested(self, say: Callable[[str], None] = lambda words: None) -> tuple[list[PairTest], list[Trials]]:
        """Its tests, one a score; and what its trials showed. Cuts are settled before the trials that are counted."""
        say("where scores are cut")
        world, (n0, n1) = self.world, coins(self.trials, self.seed)
        alpha, kinds = self.alpha / len(world.pair.scores), world.pair.scores
        known = {kind: whole_scores(world.claim, world.laws.get(kind)) if self.best else None for kind in kinds}
        levels = {kind: alpha * (1 if known[kind] is None else 1 - _OF_MOVES) for kind in kinds}
        cuts = {kind: world.cuts(kind, self.trials, levels[kind]) for kind in kinds}
        total = f"{self.trials:,} trials"
        first = world.trials(0, n0, lambda done: say(f"{done:,} of {total}"))
        seen = [first, world.trials(1, n1, lambda done: say(f"{n0 + done:,} of {total}"))]
        say(f"what {total} would have found")
        return [self._test(kind, *cuts[kind], seen, alpha, levels[kind], known[kind]) for kind in kinds], seen

    def _test(
        self,
        kind: Score,
        by_shift: Thresholds,
        guesses: Cuts,
        seen: list[Trials],
        alpha: float,
        of_test: float,
        known: WholeScores | None,
    ) -> PairTest:
        claim, (one, other) = self.world.claim, (side.scores[kind] for side in seen)
        level = alpha * (1 - 2.0 ** (1 - self.trials))  # the coins did not all fall alike
        bound = epsilon_lower_bound(one, other, delta=claim.delta, alpha=level, cuts=guesses)
        gaussian = gdp_lower_bound(one, other, delta=claim.delta, alpha=level, cut=by_shift.values[0])
        moved, too_far, power = None, False, self._power(kind, by_shift.values[0], (len(one), len(other)), of_test)
        if known is not None:
            law, gap = self.world.laws[kind], self.world.gap
            moved = shown(claim, law, known, gap, (one, other), alpha=level)
            too_far = known.moved(one, other, alpha=alpha - of_test) * min(gap, 1.0) > 1 + _ROUNDING
            power = _with_moves(power, known.finds(len(one), len(other), alpha=alpha - of_test, probability=LIKELY))
        return PairTest(
            pair=self.world.pair.name,
            score=kind,
            gap=self.world.gap,
            trials=self.trials,
            lower_bound=bound.epsilon,
            lower_bound_gdp=gaussian.epsilon,
            mu=gaussian.mu or 0.0,
            test=reject_claim(one, other, claim.profile, alpha=of_test, thresholds=by_shift),
            power=power,
            moved=moved,
            too_far=too_far,
        )

    def _power(self, kind: Score, threshold: float, trials: tuple[int, int], alpha: float) -> Power | None:
        law, claim = self.world.laws.get(kind), self.world.claim
        if law is None or not self.best:
            return None
        region = Region.of(claim.profile, law, threshold=threshold, trials0=trials[0], trials1=trials[1], alpha=alpha)
        if claim.coins is not None:
            return power_of(region, law, noises=(), moves=MOVES_OF_COINS)
        return power_of(region, law, noises=NOISES, moves=MOVES)


def _with_moves(power: Power | None, too_far: float | None) -> Power | None:
    """What either test finds."""
    if power is None or too_far is None:
        return power
    return replace(power, too_far=too_far if power.too_far is None else min(power.too_far, too_far))


def shares_of(worlds: list[TwoWorlds], *, trials: int, alpha: float, seed: int) -> list[Share]:
    """Half of the trials, and half of alpha, for the pair with the largest gap; all of both where the others would get
    fewer than two trials each, and what the others do not need: with more than `PLENTY` each they would find no more of
    the faults that are theirs. Screened pairs get trials only if their gap, which is measured without noise, is larger
    than that of all other pairs; so they take nothing from the error probability of the others."""
    plain = max(one.gap for one in worlds if not one.pair.screened)
    tried = [one for one in worlds if not one.pair.screened or one.gap > plain * (1 + _FARTHER)]
    largest = max(one.gap for one in tried)
    best = next(one for one in tried if one.gap >= largest * (1 - 1e-3))
    others = [one for one in tried if one is not best]
    part = min(trials // 2 // len(others), PLENTY) if others else 0
    if part < 2:
        return [Share(world=best, trials=trials, alpha=alpha, best=True, seed=seed)]
    level = alpha / 2 if part < PLENTY else alpha / 10  # of all others: they look for gross faults
    first = Share(world=best, trials=trials - part * len(others), alpha=alpha - level, best=True, seed=seed)
    rest = [Share(world=one, trials=part, alpha=level / len(others), seed=seed + k) for k, one in enumerate(others, 1)]
    return [first, *rest]


def round_checks(one: OneRound, claim: Claim, size: int, seed: int, draws: int) -> list[Check]:
    """The cheap checks that apply."""
    fresh = one.with_randomness(OneStream(seed + 1))
    found: list[Check | None] = [norm_check(fresh, claim, size)]
    if claim.coins is None:
        noise = noise_of(fresh, claim, size, draws)
        found += [size_check(noise), tail_check(noise), coordinates_check(noise)]
    else:
        found += [floor_check(fresh, claim, size), window_check(fresh, claim, size)]
    found += [seeds_check(one, claim, size), linear_check(fresh, claim, size), public_map_check(one)]
    if claim.seen == "sum":
        found += [sum_check(one, size), empty_round_check(one, claim)]
    return [check for check in found if check is not None]


def _ledger(claim: Claim, seen: list[Trials]) -> list[Check]:
    """Where a cohort is drawn, lines may differ with it by the account's own rules, not with what clients send."""
    return [ledger_check(seen)] if isinstance(claim.sampling, FullParticipation) else []
