"""The audit of a function: two worlds of a client or a record, and what is seen of them, against a claim."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from accounting import require
from dpfed.audit.functions.claim import Claimed, DrawnGaussian, FunctionClaim, claim_of
from dpfed.audit.functions.events import Events, events_test
from dpfed.audit.functions.learnt_scores import LearntScore
from dpfed.audit.functions.outcome import FunctionAudit, FunctionTest
from dpfed.audit.functions.outputs import coded_table
from dpfed.audit.functions.pilots import CODES, Pilot, exact_distance, pairs_with_trials
from dpfed.audit.functions.process import Process
from dpfed.audit.functions.trials import Calls, Progress, Trials
from dpfed.audit.functions.worlds import Worlds, not_a_number, pairs_of_updates
from dpfed.audit.statistics.epsilon_bounds import epsilon_lower_bound, epsilon_of_shift, gdp_lower_bound
from dpfed.audit.statistics.error_counts import upper_limit
from dpfed.audit.statistics.power import LIKELY, NOISES, Region
from dpfed.audit.statistics.rejection import reject_claim
from dpfed.audit.statistics.score_law import HONEST, plain
from dpfed.audit.statistics.thresholds import Cuts, Thresholds, coins
from dpfed.audit.verdict import Check
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]

TRIALS = 6_000
"""Enough for noise of multiplier 1 that is short by a fifth, over all pairs."""

_OF_EXACT = 0.02
"""Of the error probability of a Gaussian claim, for the exact distance of two calls with the same seed."""

_OF_EVENTS = 0.25
"""Of the error probability, for the test of events where a pilot saw any."""

_CUT = 1e6
_ROUNDING = 1e-9
_FAR, _CHORDS = 15.0, 8001


def audit_function(
    f: Callable[..., Any],
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
) -> FunctionAudit:
    """Test a claim about `f(updates [clients, dimension], seed) -> what is seen` in two worlds that differ in a client.

    claim:     (epsilon, delta), a mechanism of `accounting`, an `accounting.Guarantee`, or a profile; the more it says,
               the more a trial shows. delta, adjacency: see `functions.claim.claim_of`.
    clip_norm: the bound on one client's update that f enforces: updates far beyond, at and inside it are tried
    layout:    sizes of the layers of the updates
    worlds:    pairs of inputs of one's own in place of updates, of any kind: records, a state and a batch
    trials:    calls that are counted, over both worlds and all pairs. A pilot takes more: of 6,000 trials 450
               a pair where noise follows the seed (11,940 calls in all at most), 2,650 where it does not (30,940)
    batched:   f(updates [t, clients, dimension], seeds [t]) gives t outputs
    arrays:    "torch" or "numpy": what f is given
    time_limit: seconds, for all calls, in a process of its own

    f must be random anew in every call, from its seed or otherwise. Where it follows the seed, fewer trials settle what
    is looked at. Claim: a sound function fails with probability at most 1 - confidence. A pass proves nothing: it
    states what would have been found. Errors: ConfigError for a claim or function that cannot work, RunError when the
    time is over.
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
    with Process(f, arrays=arrays, batched=batched, time_limit=time_limit) as process:
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
    calls: Calls,
    claim: FunctionClaim,
    pairs: Sequence[Worlds],
    *,
    trials: int = TRIALS,
    confidence: float = 0.95,
    seed: int = 0,
    name: str = "function",
    of_updates: bool = False,
    progress: Progress | None = None,
) -> FunctionAudit:
    """The same wherever the function runs, for pairs of inputs. of_updates: they are rows, of which one may be NaN."""
    began, number = time.monotonic(), require.count(at_least=20, trials=trials)
    alpha = 1 - require.open_probability(confidence=confidence)
    trial = Trials(calls=calls, seeds=np.random.default_rng([seed, 0xF]), say=progress or (lambda words: None))
    exact = _OF_EXACT if claim.gaussian else 0.0
    pairs, pilots, measured = pairs_with_trials(trial, pairs, number)
    moved = exact_distance(trial, claim, pairs, pilots, number, alpha * exact) if claim.gaussian else None
    alpha *= 1 - exact
    part = _OF_EVENTS if any(one.events for one in pilots) else 0.0
    tests: list[FunctionTest] = []
    tried, guessed = [], []
    shares = _shares(pairs, pilots, number, alpha * (1 - part), seed)
    for share in shares:
        found, guesses = share.tests(trial, claim)
        tests += found
        guessed.append(guesses)
        tried.append(share.pair.name)
    counted = sum(len(guesses) for both in guessed for guesses in both)
    if part:
        worlds = [np.concatenate([both[world] for both in guessed]) for world in (0, 1)]
        both_seen = math.prod(1 - 2.0 ** (1 - share.trials) for share in shares)  # of the coins of every pair
        tests.append(events_test(worlds[0], worlds[1], claim, alpha=alpha * part * both_seen))
    return FunctionAudit(
        name=name,
        claim=claim,
        confidence=confidence,
        trials=counted,
        seed=seed,
        tests=tuple(tests),
        checks=(*([moved] if moved else []), *_checks(trial, pilots, pairs[0] if of_updates else None)),
        not_tried=tuple(pair.name for pair in pairs if pair.name not in tried),
        only_measured=measured,
        seconds=time.monotonic() - began,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Share:
    """A pair's part of the trials and of the error probability."""

    pair: Worlds
    scores: list[LearntScore]
    events: Events | None
    trials: int
    alpha: float
    seed: int
    best: bool

    def tests(self, trial: Trials, claim: FunctionClaim) -> tuple[list[FunctionTest], tuple[Floats, Floats]]:
        """One of every score; and the events' guesses in the worlds 0 and 1."""
        alpha, counts = self.alpha / len(self.scores), coins(self.trials, self.seed)
        mu = claim.mu if claim.gaussian else None
        cuts = [
            score.cuts(claim.profile, mu=mu, trials=self.trials, alpha=alpha, delta=claim.delta, drawn=claim.drawn)
            for score in self.scores
        ]
        scored, guesses = np.zeros((len(self.scores), self.trials)), np.zeros(self.trials)
        for chunk, rows in trial.chunks(self.pair, (trial.drawn(counts[0]), trial.drawn(counts[1])), self.pair.name):
            table = coded_table(rows)
            scored[:, chunk] = [score.of(table[:, CODES:]) for score in self.scores]
            if self.events is not None:
                guesses[chunk] = self.events.guesses(table[:, :CODES])
        found = []
        for score, seen, (cut, guessing, middle) in zip(self.scores, scored, cuts, strict=True):
            worlds = seen[: counts[0]], seen[counts[0] :]
            found.append(self._test(score, worlds, claim, alpha, cut, guessing, middle))
        return found, (guesses[: counts[0]], guesses[counts[0] :])

    def _test(
        self,
        score: LearntScore,
        seen: tuple[Floats, Floats],
        claim: FunctionClaim,
        alpha: float,
        cut: Thresholds,
        guesses: Cuts,
        middle: float,
    ) -> FunctionTest:
        level, delta = alpha * (1 - 2.0 ** (1 - self.trials)), claim.delta
        # A shift without noise is from few calls: of a client that is drawn in few of them it says little.
        counted = replace(score, pilot=seen, shift=score.shift if claim.drawn is None else None)
        part = 0.5  # of two tests: the whole profile, and the bound that suits the claim
        gaussian = gdp_lower_bound(*seen, delta=delta, alpha=level * part, cut=middle)
        share = level if claim.gaussian else level * part
        plain_bound = epsilon_lower_bound(*seen, delta=delta, alpha=share, cuts=guesses).epsilon
        if claim.gaussian:
            beyond = (gaussian.mu or 0.0) > claim.mu * (1 + _ROUNDING)
        else:
            beyond = plain_bound > claim.epsilon * (1 + _ROUNDING)
        finds = math.inf
        if self.best:
            numbers = len(seen[0]), len(seen[1])
            if claim.drawn is None:
                finds = _finds(claim, numbers, alpha * part, _of_unit(score, cut))
            else:
                unit = claim.drawn.centre + _of_unit(score, cut) * claim.drawn.std
                finds = _finds_drawn(claim, claim.drawn, numbers, alpha * part / len(cut.values), unit)
            finds = min(finds, _finds_beyond(claim, self.trials, level * part)) if claim.gaussian else finds
        return FunctionTest(
            pair=self.pair.name,
            score=score.kind,
            gap=min(counted.separation / claim.separation, _CUT) if claim.separation > 0 else _CUT,
            trials=self.trials,
            lower_bound=plain_bound,
            lower_bound_gdp=gaussian.epsilon,
            finds=finds,
            test=reject_claim(*seen, claim.profile, alpha=alpha * part, thresholds=cut),
            beyond=beyond,
        )


def _shares(pairs: list[Worlds], pilots: list[Pilot], trials: int, alpha: float, seed: int) -> list[_Share]:
    """Half of the trials, and half of alpha, for the pair whose pilot shows the most; the rest over the others."""
    shown = [one.shown for one in pilots]
    best = next(k for k, one in enumerate(shown) if one >= 0.9 * max(shown))
    others = [k for k in range(len(pairs)) if k != best]
    part = trials // 2 // len(others) if others else 0
    first = trials - part * len(others)
    shares = [(best, first, alpha if not others or part < 2 else alpha / 2)]
    if part >= 2:
        shares += [(k, part, alpha / 2 / len(others)) for k in others]
    else:
        shares = [(best, trials, alpha)]
    return [
        _Share(
            pair=pairs[k],
            scores=pilots[k].scores,
            events=pilots[k].events,
            trials=count,
            alpha=level,
            seed=seed + k,
            best=k == best,
        )
        for k, count, level in shares
    ]


def _of_unit(score: LearntScore, cut: Thresholds) -> float:
    """The last threshold in standard deviations within a world, from the mean of world 0; signed towards world 1."""
    return score.towards_one * (cut.values[-1] - score.centre) / score.std if score.std > 0 else 0.0


def _finds(claim: FunctionClaim, trials: tuple[int, int], alpha: float, threshold: float) -> float:
    """The epsilon of the weakest Gaussian that this test, with its own threshold, rejects with probability 90%."""
    if not 0 < claim.mu < math.inf:
        return math.inf
    region = Region.of(
        claim.profile, plain(claim.mu), threshold=threshold, trials0=trials[0], trials1=trials[1], alpha=alpha
    )
    low, high = claim.mu, claim.mu
    while region.probability(plain(high), HONEST) < LIKELY:
        low, high = high, 1.3 * high
        if high > 40 * max(1.0, claim.mu):
            return math.inf
    while high - low > 0.005 * high:
        between = (low + high) / 2
        low, high = (low, between) if region.probability(plain(between), HONEST) >= LIKELY else (between, high)
    return epsilon_of_shift(high, delta=claim.delta)


def _finds_drawn(
    claim: FunctionClaim, drawn: DrawnGaussian, trials: tuple[int, int], alpha: float, threshold: float
) -> float:
    """The same of the claimed Gaussian on a drawn cohort: with the least less noise that is found."""
    at = np.linspace(-_FAR, _FAR, _CHORDS)
    claimed = np.asarray(claim.profile(at), dtype=float)

    def chords(epsilons: Floats) -> Floats:  # above the profile, which is convex in e^epsilon, and much faster
        return np.asarray(np.interp(np.exp(epsilons), np.exp(at), claimed, left=1.0), dtype=np.float64)

    region = Region.of(chords, drawn.law, threshold=threshold, trials0=trials[0], trials1=trials[1], alpha=alpha)
    found = math.inf
    for short in reversed(NOISES):
        less = drawn.with_noise_short(short)
        at_it = less.centre + (threshold - drawn.centre) * less.std / drawn.std  # where the cut would have been
        if replace(region, threshold=at_it).probability(less.law, HONEST) < LIKELY:
            break
        found = short
    return drawn.with_noise_short(found).epsilon if found < 1 else math.inf


def _finds_beyond(claim: FunctionClaim, trials: int, alpha: float) -> float:
    """The same of the errors in the middle: with k of them or fewer, their rate is at most below that of the claim."""
    claimed = float(ndtr(-claim.mu / 2))
    k = int(binom.ppf(alpha, trials, claimed))  # P(Bin(trials, claimed) <= k) >= alpha; one fewer is rejected
    while k >= 0 and float(upper_limit(k, trials, alpha=alpha)) >= claimed:
        k -= 1
    if k < 0:
        return math.inf
    rate = 1 - float(betaincinv(trials - k, k + 1, LIKELY))  # at which so few errors have this probability
    return epsilon_of_shift(max(-2 * float(ndtri(rate)), claim.mu), delta=claim.delta)


def _checks(trial: Trials, pilots: list[Pilot], updates: Worlds | None) -> tuple[Check, ...]:
    """What is no test of a score. updates: worlds of rows, of which one may be NaN."""
    found = []
    if any(one.shows_seed for one in pilots):
        words = "noise follows the seed, and the seed is in the output: whoever reads it takes the noise off."
        found.append(Check(name="the seed of the noise is in the output", passed=False, detail=words))
    if trial.raised:
        words = f"raised in {len(trial.raised):,} of {sum(trial.called):,} calls, for one: {trial.raised[0]}"
        detail = f"{words}. An exception counts as an output of which the type is visible."
        found.append(Check(name="exceptions", passed=None, detail=detail, decides=False))
    return (*found, _numbers_only(trial, updates)) if updates is not None else tuple(found)


def _numbers_only(trial: Trials, pair: Worlds) -> Check:
    """Whether a client that sends no numbers shows: it does in most code, and nothing of it is decided by that."""
    name = "not a number"
    rows = trial.calls.outputs((not_a_number(pair).one,), [0] * 20, trial.drawn(20))
    if all(row.raised for row in rows):
        return Check(name=name, passed=True, detail="an update that is not finite is refused.")
    if not any(np.isnan(row.numbers).any() for row in rows):
        return Check(name=name, passed=True, detail="an update that is not finite leaves no trace of that kind.")
    return Check(
        name=name,
        passed=None,
        detail="an update with NaN makes the output NaN: whoever can send one shows that it took part. Put zeros in "
        "its place before the clip.",
        decides=False,
    )
