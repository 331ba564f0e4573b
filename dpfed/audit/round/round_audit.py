"""Audit of one round: checks of the round's release against the claim that the ledger would state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from accounting import require
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.audit.round.bound_checks import floor_check, norm_check, samples_check, window_check
from dpfed.audit.round.neighbours import (
    Neighbours,
    gap_of_pair,
    pairs_of_samples,
    pairs_of_sums,
    pairs_of_uploads,
    with_count_pair,
)
from dpfed.audit.round.noise_checks import (
    ROUNDS,
    coordinates_check,
    count_check,
    draw_noise,
    seeds_check,
    single_rounds_check,
    size_check,
    tail_check,
)
from dpfed.audit.round.one_round import Claim, OneRound, RandomnessByCallOrder, claim_of
from dpfed.audit.round.round_checks import (
    distance_check,
    empty_round_check,
    ledger_check,
    linear_check,
    public_map_check,
    rows_check,
    state_check,
    sum_check,
)
from dpfed.audit.trials import Progress
from dpfed.audit.verdict import Check, PairRow, Verdict, verdict
from dpfed.errors import ConfigError
from dpfed.models.flat import Block

NEEDED_GAP = 0.95
"""Part of the claimed sensitivity that the gap of a pair must reach for a pass."""

NOT_TESTED = (
    "several rounds together, except for their noise and cohorts",
    "clients, updates, states of the model and settings that were not tried",
    "metrics and times that are published with the model",
    "noise cut off beyond 4 standard deviations, and the last bits of floating-point noise",
    "randomness of a whole process from one secret seed of 32 bits or more",
    "masked sums with equal secrets in every round: the tests of dpfed.aggregation find them",
)
"""Faults that this audit does not test for."""


def audit_round(
    one: OneRound,
    layout: tuple[Block, ...],
    *,
    method: str,
    seed: int = 0,
    delta: float = 1e-5,
    draws: int = 300_000,
    rounds: int = 1,
    checks: Sequence[Check] = (),
    progress: Progress | None = None,
) -> Verdict:
    """Audit whole rounds of `one` against the ledger line that its own stages would write.

    draws:      number of draws of noise for the checks of its distribution
    rounds:     number of rounds of a run, of which the first ten, the middle and the last are tested one by one
    checks:     further checks, made by the caller
    progress:   function that is called with a description of each step

    Claim: each check fails on a correct round with probability at most `verdict.FALSE_ALARM`. A "pass" is no proof."""
    began, say = time.monotonic(), progress or str
    count = require.count(at_least=2, draws=draws)
    claim = claim_of_round(one, delta)
    fresh = one.with_randomness(RandomnessByCallOrder(seed))
    say("checks of noise, bounds, seeds and samplers")
    made = round_checks(one, claim, seed, count, rounds)
    say("distances of neighbours without noise")
    gaps = tuple(gap_of_pair(fresh, claim, pair) for pair in pairs_for_claim(one, claim, layout))
    found = (
        *made,
        distance_check(one, claim, gaps),
        state_check(gaps),
        *([] if claim.sampled else [ledger_check(gaps)]),
        *checks,
    )
    reached = max(each.gap for each in gaps)
    outcome = verdict(found)
    return Verdict(
        audited=method,
        verdict="inconclusive" if outcome == "pass" and reached < NEEDED_GAP else outcome,
        text=_reasons(found, claim, count, reached),
        scope="on these rounds",
        claimed_epsilon=claim.epsilon,
        delta=claim.delta,
        adjacency=str(claim.adjacency),
        unit="client",
        checks=found,
        pairs=tuple(
            PairRow(
                cells={"pair of neighbours": each.name, "distance over the claim": f"{each.gap:.6f}"},
                fields={"pair": each.name, "gap": each.gap},
            )
            for each in gaps
        ),
        not_tested=NOT_TESTED,
        details={
            "method": method,
            "claim": claim.description,
            "score_gap": reached,
            "distance_reached": reached,
            "seen": claim.visible_output,
            "sampling": claim.sampling.name,
            "mechanism": claim.mechanism.to_dict(),
            "dimension": one.size,
            "seed": seed,
            "seconds": time.monotonic() - began,
        },
    )


def _reasons(checks: Sequence[Check], claim: Claim, draws: int, reached: float) -> str:
    """Return the reasons of a verdict in one to three sentences. reached: largest gap of a pair."""
    if failed := [one.name for one in checks if one.passed is False]:
        return f"Checks that failed: {', '.join(failed)}."
    found = (
        f"Epsilon {upwards(claim.epsilon)} at delta {upwards(claim.delta)} is claimed; {len(checks)} checks, with "
        f"{draws:,} draws of noise, found nothing against it. Distance reached: {min(reached, 1.0):.3f} of the bound"
    )
    if reached >= NEEDED_GAP:
        return f"{found}."
    return f"{found}, but {NEEDED_GAP:g} is needed: no pair of neighbours reaches it."


def claim_of_round(one: OneRound, delta: float) -> Claim:
    """Return the claim that the ledger would record for this round; ConfigError if there is none."""
    release = one.method.release(replace(one.announcement, uploads=one.clients))
    if release is None:
        raise ConfigError(
            "this round is not private: it would charge no release, so there is no claim to test. Set [privacy]."
        )
    rule = one.method.stages.adaptive_clip
    if rule is None:
        return claim_of(release, delta=delta)
    in_clips = release.mechanism.adjacency.sensitivity_in_clips
    return claim_of(release, delta=delta, count_separation=in_clips / rule.count_noise_multiplier)


def pairs_for_claim(one: OneRound, claim: Claim, layout: tuple[Block, ...]) -> list[Neighbours]:
    """Return the pairs of neighbours for the mechanism, adjacency and visible output of the claim."""
    stages = one.method.stages
    if claim.coins is not None:
        return pairs_of_samples(one, claim, layout)
    counted = claim.count_separation > 0 and not stages.noise_in_rows
    removed = claim.adjacency is Adjacency.ADD_REMOVE and not stages.noise_in_rows
    pairs = pairs_of_sums(one, claim, layout, absent=stages.decodes_before_the_clip or counted or removed)
    if claim.visible_output == "uploads":
        return pairs_of_uploads(pairs, one, claim)
    return with_count_pair(pairs, claim) if counted and not claim.sampled else pairs


def round_checks(one: OneRound, claim: Claim, seed: int, draws: int, rounds: int = 1) -> list[Check]:
    """Return the checks that apply to the claim."""
    fresh = one.with_randomness(RandomnessByCallOrder(seed + 1))
    # First, since later rounds would find what a custom stage keeps of its first rows.
    apart = linear_check(fresh, claim) or rows_check(fresh, claim)
    found: list[Check | None] = [norm_check(fresh, claim)]
    if claim.coins is None:
        noise = draw_noise(fresh, claim, draws)
        found += [size_check(noise), tail_check(noise), coordinates_check(noise), count_check(fresh, claim)]
    else:
        found += [floor_check(fresh, claim), window_check(fresh, claim), samples_check(fresh, claim)]
    numbers = tuple(sorted({*range(ROUNDS), rounds // 2, max(rounds - 1, 0)}))
    found += [seeds_check(one, claim), single_rounds_check(one, claim, numbers)]
    found += [apart, public_map_check(one)]
    if claim.visible_output == "sum":
        found += [sum_check(one), empty_round_check(one)]
    return [check for check in found if check is not None]
