"""Audit of one round: a test of the round's release against the claim that the ledger would state."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from accounting import require
from accounting.arrays import Floats
from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit.outcome import Audit, PairTest
from dpfed.audit.round.bound_checks import floor_check, norm_check, window_check
from dpfed.audit.round.claims import Claim, claim_of
from dpfed.audit.round.known_distributions import move_bound, whole_scores
from dpfed.audit.round.neighbours import (
    Neighbours,
    Score,
    pairs_of_samples,
    pairs_of_sums,
    pairs_of_uploads,
    with_count_scores,
)
from dpfed.audit.round.noise_checks import coordinates_check, draw_noise, seeds_check, size_check, tail_check
from dpfed.audit.round.one_round import OneRound, RandomnessByCallOrder
from dpfed.audit.round.round_checks import (
    distance_check,
    empty_round_check,
    ledger_check,
    linear_check,
    public_map_check,
    state_check,
    sum_check,
)
from dpfed.audit.round.two_worlds import TrialOutcomes, TwoWorlds
from dpfed.audit.statistics.power import (
    LIKELY,
    MOVES,
    MOVES_OF_BERNOULLI,
    NO_POWER,
    NOISES,
    Power,
    RejectionRegion,
    power_of,
)
from dpfed.audit.statistics.thresholds import ScoreCuts, trials_in_worlds
from dpfed.audit.statistics.whole_scores import WholeScores
from dpfed.audit.trials import ENOUGH_TRIALS, Progress, TrialShare, split_trials
from dpfed.audit.verdict import Check
from dpfed.compress.levels import Dense
from dpfed.errors import ConfigError
from dpfed.models.flat import Block
from dpfed.stages.clip import Clip
from dpfed.stages.encode import Encode

NEEDED_GAP = 0.95
"""Part of the claimed sensitivity that the gap of a pair must reach for a pass."""

TRIALS = 6_000
"""Number of trials, over all pairs, that finds noise short by a fifth at a noise multiplier of 1."""

_OF_MOVES = 0.1
"""Part of a pair's error probability for the test of whole scores, if their distribution is known."""

_ROUNDING = 1e-6
_FARTHER = 0.01

NOT_TESTED = (
    "several rounds together, except for noise that they share",
    "clients, updates, states of the model and settings that were not tried",
    "metrics and times that are published with the model",
    "noise cut off beyond 4 standard deviations, and the last bits of floating-point noise",
    "randomness of a whole process from one secret seed of 32 bits or more",
    "masked sums with equal secrets in every round: trials cannot show them, the tests of dpfed.aggregation do",
)
"""Faults that this audit does not test for."""


UploadAudit = Audit[Claim, Power]


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
    progress: Progress | None = None,
) -> UploadAudit:
    """Audit whole rounds of `one` against the ledger line that its own stages would write.

    trials:     number in both worlds and all pairs together. The pair with the largest noiseless gap gets half of them,
                all other pairs share the rest; they get none if fewer than two were left for each
    confidence: confidence of the test of the claim over all pairs, and of the lower bounds (Bonferroni; the pair with
                the largest gap has half of the error probability)
    draws:      number of draws of noise for the checks of its distribution
    checks:     further checks, made by the caller. Each check has a false-alarm probability of `verdict.FALSE_ALARM`
    progress:   function that is called with a description of each step

    Claim: a round that satisfies its ledger's claim is failed with probability at most 1 - confidence + 2e-5. A "pass"
    is no proof: its `power` states which faults these trials would have found."""
    began = time.monotonic()
    number, alpha = require.count(at_least=2, trials=trials), 1 - require.open_probability(confidence=confidence)
    claim = claim_of_round(one, delta)
    fresh = one.with_randomness(RandomnessByCallOrder(seed))
    size = one.method.clients.course.size
    say = progress or str
    say("preparing pairs of neighbours")
    worlds = [TwoWorlds.prepare(fresh, claim, pair) for pair in pairs_for_claim(one, claim, layout)]
    shares = shares_of_trials(worlds, trials=number, alpha=alpha, seed=seed)
    tests: list[PairTest] = []
    seen = []
    for k, share in enumerate(shares, 1):
        where = f"pair {k} of {len(shares)}, {share.pair.pair.name}"
        outcomes, trials_of = pair_tests(share, lambda words, where=where: say(f"{where}: {words}"))  # type: ignore[misc]
        tests += outcomes
        seen.append(trials_of)
    say("checks of noise, bounds, seeds and samplers")
    known = [one.moved.epsilon for one in tests if one.moved is not None and one.moved.epsilon is not None]
    untried = [one.pair for one in worlds if all(one is not share.pair for share in shares)]
    return Audit(
        method=method,
        claim=claim,
        confidence=confidence,
        trials=sum(share.trials for share in shares),
        seed=seed,
        tests=tuple(tests),
        checks=(
            *round_checks(one, claim, size, seed, draws),
            distance_check(one, claim, worlds),
            state_check(seen),
            *_ledger_checks(claim, seen),
            *checks,
        ),
        power=_best_power(tests),
        needed_gap=NEEDED_GAP,
        not_tried=tuple(pair.name for pair in untried if not pair.needs_pilot),
        only_measured=tuple(pair.name for pair in untried if pair.needs_pilot),
        seconds=time.monotonic() - began,
        details={
            "lower_bound_known_law": max(known, default=None),
            "seen": claim.visible_output,
            "sampling": claim.sampling.name,
            "mechanism": claim.mechanism.to_dict(),
            "dimension": size,
            "not_tested": list(NOT_TESTED),
        },
    )


def _best_power(tests: list[PairTest]) -> Power:
    """Return the power of the pair that would have found the least shortfall of noise; for ties, the smallest move."""
    known = [one.power for one in tests if isinstance(one.power, Power) and one.gap >= NEEDED_GAP]
    sizes = [[math.inf if fault is None else fault for fault in (one.noise_short, one.too_far)] for one in known]
    return known[sizes.index(min(sizes))] if known else NO_POWER


def claim_of_round(one: OneRound, delta: float) -> Claim:
    """Return the claim that the ledger would record for this round; ConfigError if there is none."""
    release = one.method.release(replace(one.announcement, uploads=one.clients))
    if release is None:
        raise ConfigError(
            "this round is not private: it would charge no release, so there is no claim to test. Set [privacy]."
        )
    clip = one.method.stages.find(Clip)
    if clip is None or clip.adaptive is None:
        return claim_of(release, delta=delta)
    in_clips = release.mechanism.adjacency.sensitivity_in_clips
    return claim_of(release, delta=delta, count_separation=in_clips / clip.adaptive.count_noise_multiplier)


def pairs_for_claim(one: OneRound, claim: Claim, layout: tuple[Block, ...]) -> list[Neighbours]:
    """Return the pairs of neighbours for the mechanism, adjacency and visible output of the claim."""
    adjacency, size = claim.adjacency, one.method.clients.course.size
    if claim.coins is not None:
        return pairs_of_samples(layout, one.projection, adjacency, edge=claim.coins.floor, bound=claim.bound, size=size)
    stages = one.method.stages
    shares = stages.noise_in_rows
    counted = claim.count_separation > 0 and not shares
    absent = stages.decodes_before_the_clip or counted or (adjacency is Adjacency.ADD_REMOVE and not shares)
    pairs = pairs_of_sums(layout, one.projection, adjacency, bound=claim.bound, size=size, absent=absent)
    if claim.visible_output == "sum":
        if one.sampled:  # with a drawn cohort, "all others opposite" is the worst pair
            pairs.sort(key=lambda pair: "others" not in pair.name)
        return with_count_scores(pairs, adjacency, bound=claim.bound) if counted and not one.sampled else pairs
    encode = stages.find(Encode)
    lossy = encode is None or not isinstance(encode.scheme, Dense)
    return pairs_of_uploads(pairs, bound=claim.bound, size=size, lossy=lossy)


def pair_tests(share: TrialShare[TwoWorlds], say: Progress = str) -> tuple[list[PairTest], TrialOutcomes]:
    """Return the tests of a pair, one for each score, and its trials. Cuts are fixed before the counted trials."""
    say("choosing the cuts of scores")
    world, kinds = share.pair, share.pair.pair.scores
    alpha = share.alpha / len(kinds)
    known = {kind: whole_scores(world.claim, world.distributions.get(kind)) if share.best else None for kind in kinds}
    of_profile = {kind: alpha * (1 if known[kind] is None else 1 - _OF_MOVES) for kind in kinds}
    cuts = {kind: world.cuts(kind, share.trials, of_profile[kind]) for kind in kinds}
    total = f"{share.trials:,} trials"
    counts = trials_in_worlds(share.trials, share.seed)
    trials = world.trials(counts, seed=share.seed, say=lambda done: say(f"{done:,} of {total}"))
    say(f"computing the faults that {total} would have found")
    tests = [
        _score_test(share, kind, trials.scores[kind], cuts[kind], alpha, of_profile[kind], known[kind])
        for kind in kinds
    ]
    return tests, trials


def _score_test(
    share: TrialShare[TwoWorlds],
    kind: Score,
    seen: tuple[Floats, Floats],
    cuts: ScoreCuts,
    alpha: float,
    of_profile: float,
    known: WholeScores | None,
) -> PairTest:
    """Return the test of one score.

    known: moments of the score for the bound from whole scores, which uses a part of alpha; None if not known.
    """
    world, claim, gap = share.pair, share.pair.claim, share.pair.gap
    level, numbers = alpha * share.probability_of_both_worlds, (len(seen[0]), len(seen[1]))
    test = PairTest.from_scores(
        seen,
        claim,
        cuts,
        pair=world.pair.name,
        score=kind,
        gap=gap,
        of_profile=of_profile,
        of_bound=level,
        of_gaussian=level,
    )
    power = _score_power(world, kind, cuts.gaussian_cut, numbers, of_profile) if share.best else None
    if known is None:
        return replace(test, power=power)
    of_moves = alpha - of_profile
    finds = known.smallest_excess_found(*numbers, alpha=of_moves, probability=LIKELY)
    return replace(
        test,
        moved=move_bound(claim, world.distributions[kind], known, gap, seen, alpha=level),
        too_far=known.factor_bound(*seen, alpha=of_moves) * min(gap, 1.0) > 1 + _ROUNDING,
        power=None if power is None else power.with_move_test(finds),
    )


def _score_power(
    world: TwoWorlds, kind: Score, threshold: float, trials: tuple[int, int], alpha: float
) -> Power | None:
    law, claim = world.distributions.get(kind), world.claim
    if law is None:
        return None
    region = RejectionRegion.of_one_threshold(
        claim.profile, law, threshold=threshold, trials0=trials[0], trials1=trials[1], alpha=alpha
    )
    if claim.coins is not None:
        return power_of(region, law, noises=(), moves=MOVES_OF_BERNOULLI)
    return power_of(region, law, noises=NOISES, moves=MOVES)


def shares_of_trials(worlds: list[TwoWorlds], *, trials: int, alpha: float, seed: int) -> list[TrialShare[TwoWorlds]]:
    """Return each pair's share of trials and alpha.

    A screened pair gets a share only if its gap, which is measured without noise, is above that of all pairs that are
    not screened. Otherwise it uses nothing of the error probability.
    """
    plain = max(one.gap for one in worlds if not one.pair.needs_pilot)
    tried = [one for one in worlds if not one.pair.needs_pilot or one.gap > plain * (1 + _FARTHER)]
    gaps = [one.gap for one in tried]
    return split_trials(tried, gaps, trials=trials, alpha=alpha, seed=seed, nearly=1 - 1e-3, plenty=ENOUGH_TRIALS)


def round_checks(one: OneRound, claim: Claim, size: int, seed: int, draws: int) -> list[Check]:
    """Return the checks that apply to the claim and need no trials."""
    fresh = one.with_randomness(RandomnessByCallOrder(seed + 1))
    found: list[Check | None] = [norm_check(fresh, claim, size)]
    if claim.coins is None:
        noise = draw_noise(fresh, claim, size, draws)
        found += [size_check(noise), tail_check(noise), coordinates_check(noise)]
    else:
        found += [floor_check(fresh, claim, size), window_check(fresh, claim, size)]
    found += [seeds_check(one, claim, size), linear_check(fresh, claim, size), public_map_check(one)]
    if claim.visible_output == "sum":
        found += [sum_check(one, size), empty_round_check(one, claim)]
    return [check for check in found if check is not None]


def _ledger_checks(claim: Claim, seen: list[TrialOutcomes]) -> list[Check]:
    """Check that all rounds write equal ledger lines; if a cohort is drawn, lines may differ and are not checked."""
    return [] if claim.sampled else [ledger_check(seen)]
