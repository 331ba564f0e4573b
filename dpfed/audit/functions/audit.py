"""Audit of a function: a claim is tested on its outputs in two worlds that differ in one client or one record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np

from accounting import require
from accounting.arrays import Floats
from dpfed.audit.functions.claim import Claimed, FunctionClaim, claim_of, largest_gap_ratio
from dpfed.audit.functions.learnt_scores import LearntScore
from dpfed.audit.functions.outcome import EpsilonFound, FunctionTrials, PairTest, epsilon_found
from dpfed.audit.functions.outputs import (
    CallTrials,
    FunctionCaller,
    Worlds,
    output_table_with_codes,
    pair_with_nan,
    pairs_of_updates,
)
from dpfed.audit.functions.pilots import CODES, Pilot, events_test, exact_distance, pairs_with_trials
from dpfed.audit.functions.process import FunctionProcess
from dpfed.audit.statistics.epsilon_bounds import epsilon_lower_bound, epsilon_of_shift, gdp_lower_bound
from dpfed.audit.statistics.rejection import ScoreCuts, reject_claim, trials_in_worlds
from dpfed.audit.trials import Progress
from dpfed.audit.verdict import Check, Verdict
from dpfed.errors import ConfigError

TRIALS = 6_000
"""Number of trials, over all pairs, that finds noise short by a fifth at a noise multiplier of 1."""

_OF_EXACT = 0.02
"""Part of the error probability for `exact_distance`, which is tested for Gaussian claims only."""

_OF_EVENTS = 0.25
"""Part of the error probability for the test of events, if a pilot found events."""

_NEARLY = 0.9
"""Part of the largest separation in a pilot; the first pair with a separation above this part is the best pair."""

_BEYOND_CHANCE = 1.5
_CUT = 1e6
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialShare:
    """Trials and error probability (alpha) that one pair of inputs has in an audit.

    best: True for the pair whose power is stated. seed: seed of the fair coin flips that choose each trial's input.
    """

    pair: Worlds
    pilot: Pilot
    trials: int
    alpha: float
    best: bool = False
    seed: int

    @property
    def probability_of_both_worlds(self) -> float:
        """Probability that both inputs of the pair get at least one trial."""
        return 1 - 2.0 ** (1 - self.trials)


def audit_function(
    f: Callable[..., object],
    *,
    claim: Claimed,
    delta: float | None = None,
    adjacency: str | None = None,
    clip_norm: float = 1.0,
    clients: int = 4,
    dimension: int = 32,
    layout: Sequence[int] | None = None,
    worlds: Sequence[Worlds] | None = None,
    trials: int = TRIALS,
    confidence: float = 0.95,
    seed: int = 0,
    batched: bool = False,
    arrays: str = "torch",
    time_limit: float = 600.0,
    name: str | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Test a claim about `f(updates [clients, dimension], seed) -> output` in two worlds that differ in a client.

    claim:     (epsilon, delta), a mechanism of `accounting`, an `accounting.Guarantee`, or a profile. A claim of a
               mechanism needs fewer trials than (epsilon, delta). delta, adjacency: see `functions.claim.claim_of`
    clip_norm: bound on the norm of one client's update that f enforces; updates far above, at and below it are tried
    layout:    sizes of the layers of the updates
    worlds:    custom pairs of inputs of any kind, in place of updates: records, or a state and a batch
    trials:    number of counted calls, over both worlds and all pairs. A pilot makes further calls: with 6,000 trials,
               450 for each pair if noise follows the seed (usually 12,380 calls in all), else 2,650 (32,180)
    batched:   True if f(updates [t, clients, dimension], seeds [t]) returns t outputs
    arrays:    "torch" or "numpy": type of the inputs of f
    time_limit: seconds for all calls together, which run in a separate process

    f must draw new randomness in every call, from its seed or otherwise; from its seed, fewer calls suffice.
    Claim: a sound function fails with probability at most 1 - confidence. A pass is no proof: it states which faults
    would have been found. Errors: ConfigError for a claim or function that cannot be audited (a claim that is none, a
    function that raises in every call), RunError if the time limit is exceeded.
    """
    stated = claim_of(claim, delta=delta, adjacency=adjacency)
    require.count(at_least=2, clients=clients)
    require.count(dimension=dimension)
    require.positive(clip_norm=clip_norm)
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise ConfigError(f"seed={seed!r}: must be a whole number, 0 or more.")
    if wrong := [one for one in worlds or () if not isinstance(one, Worlds)]:
        raise ConfigError(f"worlds: has {wrong[0]!r:.80}, must be dpfed.audit.Worlds(name=..., one=..., other=...).")
    pairs = (
        list(worlds)
        if worlds is not None
        else pairs_of_updates(
            stated.adjacency, clients=clients, dimension=dimension, clip_norm=clip_norm, layout=layout
        )
    )
    if not pairs:
        raise ConfigError("worlds=[]: must be at least one pair of inputs.")
    with FunctionProcess(f, arrays=arrays, batched=batched, time_limit=time_limit) as process:
        return audit_calls(
            process,
            stated,
            pairs,
            trials=trials,
            confidence=confidence,
            seed=seed,
            name=name or str(getattr(f, "__name__", type(f).__name__)),
            of_updates=worlds is None,
            progress=progress,
        )


def audit_calls(
    calls: FunctionCaller,
    claim: FunctionClaim,
    pairs: Sequence[Worlds],
    *,
    trials: int = TRIALS,
    confidence: float = 0.95,
    seed: int = 0,
    name: str = "function",
    of_updates: bool = False,
    progress: Progress | None = None,
) -> Verdict:
    """Test a claim about the outputs of `calls` for given pairs of inputs; `audit_function` describes the arguments.

    of_updates: True if inputs are rows of updates, so that the check with NaN in one row applies.
    """
    began, number = time.monotonic(), require.count(at_least=20, trials=trials)
    alpha = 1 - require.open_probability(confidence=confidence)
    trial = CallTrials(calls=calls, seeds=np.random.default_rng([seed, 0xF]), say=progress or (lambda words: None))
    exact = _OF_EXACT if claim.is_gaussian else 0.0
    pairs, pilots, measured = pairs_with_trials(trial, pairs, number)
    moved = exact_distance(trial, claim, pairs, pilots, number, alpha * exact) if claim.is_gaussian else None
    alpha *= 1 - exact
    part = _OF_EVENTS if any(one.events for one in pilots) else 0.0
    tests: list[PairTest] = []
    guessed = []
    shares = _split_trials(pairs, pilots, trials=number, alpha=alpha * (1 - part), seed=seed)
    for share in shares:
        found, guesses = _pair_tests(share, trial, claim)
        tests += found
        guessed.append(guesses)
    if part:
        worlds = [np.concatenate([both[world] for both in guessed]) for world in (0, 1)]
        both_seen = math.prod(share.probability_of_both_worlds for share in shares)
        tests.append(events_test(worlds[0], worlds[1], claim, alpha=alpha * part * both_seen))
    tried = {share.pair.name for share in shares}
    power = min((one.power for one in tests if one.power is not None), key=lambda one: one.epsilon)
    known = claim.is_gaussian or claim.drawn_cohort is not None
    return FunctionTrials(
        method=name,
        claim=claim,
        confidence=confidence,
        trials=sum(share.trials for share in shares),
        seed=seed,
        tests=tuple(tests),
        checks=(*([moved] if moved else []), *_checks_beside_scores(trial, pilots, pairs[0] if of_updates else None)),
        power=power,
        largest_plausible_gap=_BEYOND_CHANCE * largest_gap_ratio(claim.mu) if claim.is_gaussian else math.inf,
        advice="Give more trials." if known else "Give more trials, or claim a mechanism.",
        not_tried=tuple(pair.name for pair in pairs if pair.name not in tried),
        only_measured=measured,
        seconds=time.monotonic() - began,
    ).as_verdict()


def _split_trials(
    pairs: Sequence[Worlds], pilots: Sequence[Pilot], *, trials: int, alpha: float, seed: int
) -> list[TrialShare]:
    """Give the best pair half of the trials and of alpha, and divide the other half equally among the other pairs.

    The best pair gets all trials and all of alpha if the other pairs would have fewer than two trials each. Pilots are
    not counted as trials.
    """
    shown = [one.largest_separation for one in pilots]
    best = next(k for k, one in enumerate(shown) if one >= _NEARLY * max(shown))
    others = [k for k in range(len(pairs)) if k != best]
    part = trials // 2 // len(others) if others else 0
    if part < 2:
        others = []
    level, left = alpha / 2 if others else 0.0, trials - part * len(others)
    first = TrialShare(pair=pairs[best], pilot=pilots[best], trials=left, alpha=alpha - level, best=True, seed=seed)
    rest = [
        TrialShare(pair=pairs[k], pilot=pilots[k], trials=part, alpha=level / len(others), seed=seed + place)
        for place, k in enumerate(others, start=1)
    ]
    return [first, *rest]


def _pair_tests(
    share: TrialShare, trial: CallTrials, claim: FunctionClaim
) -> tuple[list[PairTest], tuple[Floats, Floats]]:
    """Return one test for every score of a pair, and its guesses from events in worlds 0 and 1."""
    pair, pilot = share.pair, share.pilot
    alpha, counts = share.alpha / len(pilot.scores), trials_in_worlds(share.trials, share.seed)
    cuts = [score.cuts(claim, trials=share.trials, alpha=alpha) for score in pilot.scores]
    scored, guesses = np.zeros((len(cuts), share.trials)), np.zeros(share.trials)
    for chunk, rows in trial.chunks(pair, (trial.draw_seeds(counts[0]), trial.draw_seeds(counts[1])), pair.name):
        table = output_table_with_codes(rows)
        scored[:, chunk] = [score.score_rows(table[:, CODES:]) for score in pilot.scores]
        if pilot.events is not None:
            guesses[chunk] = pilot.events.guesses(table[:, :CODES])
    found = [
        _score_test(share, score, (seen[: counts[0]], seen[counts[0] :]), claim, alpha, cut)
        for score, seen, cut in zip(pilot.scores, scored, cuts, strict=True)
    ]
    return found, (guesses[: counts[0]], guesses[counts[0] :])


def _score_test(
    share: TrialShare,
    score: LearntScore,
    seen: tuple[Floats, Floats],
    claim: FunctionClaim,
    alpha: float,
    cuts: ScoreCuts,
) -> PairTest:
    """Return the test of one score: half of alpha for the whole profile, half for the lower bound.

    The lower bound is on mu for a Gaussian claim, else on epsilon.
    """
    # The shift without noise is measured in few calls: a client that is drawn rarely may be in none of them.
    counted = replace(score, pilot=seen, shift=score.shift if claim.drawn_cohort is None else None)
    half, level = alpha / 2, alpha * share.probability_of_both_worlds
    of_bound = level if claim.is_gaussian else level / 2
    mu = gdp_lower_bound(*seen, alpha=level / 2, cut=cuts.gaussian_cut)
    test = PairTest(
        pair=share.pair.name,
        score=score.kind,
        gap=min(counted.separation / claim.separation, _CUT) if claim.separation > 0 else _CUT,
        trials=share.trials,
        lower_bound=epsilon_lower_bound(*seen, delta=claim.delta, alpha=of_bound, cuts=cuts.guess_cuts),
        lower_bound_gdp=epsilon_of_shift(mu, delta=claim.delta),
        mu=mu,
        test=reject_claim(*seen, claim.profile, alpha=half, thresholds=cuts.profile_thresholds),
    )
    shown, claimed = (test.mu, claim.mu) if claim.is_gaussian else (test.lower_bound, claim.epsilon)
    power = None
    if share.best:
        numbers = len(seen[0]), len(seen[1])
        finds = epsilon_found(claim, score, cuts.profile_thresholds, trials=numbers, of_profile=half, level=level / 2)
        power = EpsilonFound.for_claim(claim, finds)
    return replace(test, too_far=shown > claimed * (1 + _ROUNDING), power=power)


def _checks_beside_scores(trial: CallTrials, pilots: list[Pilot], updates: Worlds | None) -> tuple[Check, ...]:
    """Return the checks that are not tests of scores. updates: worlds of rows for the check with NaN;
    None to skip it.
    """
    found = []
    if any(one.shows_seed for one in pilots):
        words = "the noise follows the seed, and the seed is in the output, so that a reader can subtract the noise."
        name = "the seed of the noise is in the output"
        found.append(Check(name=name, passed=False, detail=words, would_find="the seed, among the outputs"))
    if trial.raised:
        words = (
            f"raised in {len(trial.raised):,} of {sum(trial.calls_per_chunk):,} calls, for example: {trial.raised[0]}"
        )
        detail = f"{words}. An exception counts as an output whose type is visible."
        found.append(Check(name="exceptions", passed=None, detail=detail, decides=False))
    return (*found, _not_a_number_check(trial, updates)) if updates is not None else tuple(found)


def _not_a_number_check(trial: CallTrials, pair: Worlds) -> Check:
    """Check if a client that sends NaN is visible in the output.

    In most code it is visible; the verdict does not depend on this check.
    """
    rows = trial.calls.outputs((pair_with_nan(pair).one,), [0] * 20, trial.draw_seeds(20))
    detail = "an update with NaN leaves no NaN in the output."
    if all(row.raised for row in rows):
        detail = "an update that is not finite is refused."
    elif any(np.isnan(row.numbers).any() for row in rows):
        detail = (
            "an update with NaN makes the output NaN: a client that sends NaN reveals that it took part. Replace NaN "
            "by zero before the clip."
        )
    return Check(name="not a number", passed=None, detail=detail, decides=False)
