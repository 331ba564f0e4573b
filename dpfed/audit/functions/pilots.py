"""Pilots of a function's audit: scores and events that separate the worlds, and exact distances between two calls.

Events are kinds of outputs (keys, types, shapes, exceptions) and whole outputs that occur more than once, as they do if
noise repeats or is left out. An event that is more frequent in one world of the pilot is a guess of that world.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from accounting.arrays import Floats
from accounting.rounding import downwards, upwards
from dpfed.audit.functions.claim import FunctionClaim, largest_gap_ratio
from dpfed.audit.functions.learnt_scores import LearntScore, learn_scores, noise_follows_seed
from dpfed.audit.functions.outcome import PairTest
from dpfed.audit.functions.outputs import CallTrials, Worlds
from dpfed.audit.statistics.epsilon_bounds import epsilon_lower_bound, epsilon_of_shift
from dpfed.audit.statistics.rejection import ErrorCounts, GuessCuts, reject_counts, upper_limit
from dpfed.audit.verdict import Check

Guesses = dict[float, float]
"""Guess for each code of an output: +1 for world 1, -1 for world 0."""

_MORE_OFTEN = 1.5
_REPEATS = 3
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Events:
    """Guesses from the kinds of outputs and from whole outputs.

    kinds: empty if the pilot had only one kind of output. values: empty if the pilot had no repeated outputs.
    """

    kinds: Guesses
    values: Guesses

    @classmethod
    def learn(cls, one: Floats, other: Floats) -> Events | None:
        """Return the events of a pilot; None if all outputs are of one kind and none repeats.

        one, other: codes [n, 2] of the kinds and of whole outputs in worlds 1 and 0.
        """
        several = len(np.unique(np.concatenate([one[:, 0], other[:, 0]]))) > 1
        again = sum(len(codes) - len(np.unique(codes[:, 1])) for codes in (one, other)) >= _REPEATS
        if not several and not again:
            return None
        return cls(
            kinds=_learnt_guesses(one[:, 0], other[:, 0]) if several else {},
            values=_learnt_guesses(one[:, 1], other[:, 1]) if again else {},
        )

    def guesses(self, codes: Floats) -> Floats:
        """Return the guess for each output [n]: +1, -1, or 0 for none; whole outputs take precedence over their kinds.

        codes [n, 2]: codes of the kind and of the whole output.
        """
        return np.array([self.values.get(value, 0.0) or self.kinds.get(kind, 0.0) for kind, value in codes.tolist()])


def _learnt_guesses(one: Floats, other: Floats) -> Guesses:
    """Return guesses for codes in `one` (world 1) and `other` (world 0) that are clearly more frequent in one world.

    A code must occur in one world only, or there more often by a half and by two standard errors.
    """
    seen1, seen0 = Counter(one.tolist()), Counter(other.tolist())
    found = {}
    for code in seen1 | seen0:
        most, least = max(seen1[code], seen0[code]), min(seen1[code], seen0[code])
        if most >= _MORE_OFTEN * least and most - least >= min(most, 2 * math.sqrt(most + least)):
            found[code] = 1.0 if seen1[code] > seen0[code] else -1.0
    return found


def events_test(guesses0: Floats, guesses1: Floats, claim: FunctionClaim, *, alpha: float) -> PairTest:
    """Test if the guesses refute the claim.

    guesses0, guesses1: guesses (+1, -1, 0) in all trials of worlds 0 and 1; a fair coin flip chose each trial's world.
    alpha: error probability, conditional on trials of both worlds in every pair.
    Claim: a true claim is rejected with probability at most alpha. Let outputs in S be guessed as world 1, in T as
    world 0. A profile of both orders bounds P1(S) - e^eps P0(S) and P0(T) - e^eps P1(T), and therefore their mean. That
    mean is P(right) - e^eps P(wrong) over the choice of the world; both are counted over all trials. The mean over
    pairs of neighbours is bounded as well. Counts over several pairs vary less than binomial ones (Hoeffding 1956).
    """
    trials = len(guesses0) + len(guesses1)
    right = int((guesses1 > 0).sum() + (guesses0 < 0).sum())
    wrong = int((guesses1 < 0).sum() + (guesses0 > 0).sum())
    counts = ErrorCounts.from_counts(wrong, trials - right, trials, trials)
    half = alpha / 2  # two tests: the whole profile, and the bound on mu or epsilon
    tested = reject_counts(counts, claim.profile, alpha=half)
    limits = [float(upper_limit(count, trials, alpha=half / 2)) for count in (wrong, trials - right)]
    mu = max(0.0, -float(ndtri(limits[0])) - float(ndtri(limits[1])))
    share = alpha if claim.is_gaussian else half
    cuts = GuessCuts(low=-0.5, high=0.5)
    plain_bound = epsilon_lower_bound(guesses0, guesses1, delta=claim.delta, alpha=share, cuts=cuts)
    return PairTest(
        pair="all pairs, by the kind of output or by repeated outputs",
        score="events",
        gap=0.0,
        trials=trials,
        lower_bound=plain_bound,
        lower_bound_gdp=epsilon_of_shift(mu, delta=claim.delta),
        mu=mu,
        test=tested,
        too_far=mu > claim.mu * (1 + _ROUNDING) if claim.is_gaussian else plain_bound > claim.epsilon * (1 + _ROUNDING),
    )


CODES = 2
"""Number of columns of a coded table that hold codes, in front of the numbers."""

_LEARN, _LEARN_SHORT = 1_000, 200

_FARTHER = 0.1

_SAME = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class Pilot:
    """Scores and events learnt from uncounted calls of one pair.

    noise_follows_seed: True if noise follows the seed. shows_seed: True if the output contains the seed.
    """

    scores: list[LearntScore]
    events: Events | None
    noise_follows_seed: bool
    shows_seed: bool

    @property
    def largest_separation(self) -> float:
        """Largest separation of the two worlds by one of the scores."""
        return max(score.separation for score in self.scores)


def pairs_with_trials(
    trial: CallTrials, pairs: Sequence[Worlds], trials: int
) -> tuple[list[Worlds], list[Pilot], tuple[str, ...]]:
    """Return the pairs that get trials, their pilots, and the names of screened pairs that get none.

    A screened pair gets a short pilot. It gets a full pilot and trials only if the short pilot separates its worlds
    better, by a tenth, than all pairs that are not screened. Pilots are not counted as trials, so this choice does not
    change the error probability.
    """
    kept = [pair for pair in pairs if not pair.screened] or list(pairs)
    pilots = [pilot_of(trial, pair, trials) for pair in kept]
    least, names = max(one.largest_separation for one in pilots) * (1 + _FARTHER), []
    for pair in [pair for pair in pairs if pair not in kept]:
        if pilot_of(trial, pair, trials, short=True).largest_separation > least:
            kept.append(pair)
            pilots.append(pilot_of(trial, pair, trials))
        else:
            names.append(pair.name)
    return kept, pilots, tuple(names)


def exact_distance(
    trial: CallTrials, claim: FunctionClaim, pairs: list[Worlds], pilots: list[Pilot], trials: int, alpha: float
) -> Check | None:
    """Check the exact distance between two calls with one seed, for the pair with the largest separation in its pilot.

    Returns None unless noise follows the seed and the pilot separates the worlds more than the claim allows.
    Let s be the pilot's score. If s(f(D, seed)) - s(f(D', seed)) = c for every seed, the scores of one world are
    distributed as those of the other, shifted by c. No mu-GDP mechanism has a c above
    `largest_gap_ratio(mu)` mu standard deviations. The seeds are new. alpha: probability that the standard deviation is
    underestimated by more than allowed, by a normal approximation with the measured fourth moment (large samples).
    """
    pair, pilot = max(zip(pairs, pilots, strict=True), key=lambda both: both[1].largest_separation)
    limit = claim.mu * largest_gap_ratio(claim.mu)
    score = max(pilot.scores, key=lambda one: one.separation)
    if not pilot.noise_follows_seed or not pilot.largest_separation > limit:
        return None
    seeds = trial.draw_seeds(max(100, trials // 12))
    other, one = (
        score.score_rows(table[:, CODES:]) for table in trial.tables(pair, (seeds, seeds), f"exact, {pair.name}")
    )
    apart, centred = one - other, other - other.mean()
    shift, std = float(apart.mean()), float(centred.std())
    if not float(np.abs(apart - shift).max()) <= _SAME * abs(shift):
        return None
    kurtosis = float((centred**4).mean()) / std**4 if std > 0 else 1.0
    std *= math.exp(-float(ndtri(alpha)) * math.sqrt(max(kurtosis - 1, 1e-3) / (4 * len(seeds))))
    seen = abs(shift) / std if std > 0 else math.inf
    return Check(
        name="distance",
        passed=seen <= limit,
        detail="two calls with the same seed, one with the client and one without "
        f"({pair.name}), always differ by "
        f"an equal distance: at least {downwards(seen)} standard deviations of the noise, but the claim allows "
        f"{upwards(limit)}.",
        would_find="a client that moves the output farther than the claim allows, by any factor above 1.1",
    )


def pilot_of(trial: CallTrials, pair: Worlds, trials: int, *, short: bool = False) -> Pilot:
    """Return the pilot of a pair: scores are learnt on some calls and measured on others.

    Both worlds share the seeds of the calls to learn on; if noise does not follow the seed, more calls with other seeds
    replace them. short: True for few calls, which suffice to find a gross fault.
    """
    count, words = 50 if short else max(50, trials // 80), f"pilot, {pair.name}"
    shared = trial.draw_seeds(count)
    first = trial.tables(pair, (shared, shared), words)
    other, one = (table[:, CODES:] for table in first)
    follows, shows_seed = noise_follows_seed(one, other), outputs_contain_seed(one, other, shared)
    if not follows:
        count = _LEARN_SHORT if short else max(_LEARN, trials // 10)
        first = trial.tables(pair, (trial.draw_seeds(count), trial.draw_seeds(count)), words)
    measured = max(60, min(150, trials // 8), count // 4) if not short else 60
    second = trial.tables(pair, (trial.draw_seeds(measured), trial.draw_seeds(measured)), words)
    seen0, seen1 = ((first[world][:, CODES:], second[world][:, CODES:]) for world in (0, 1))
    codes0, codes1 = (np.concatenate([first[world][:, :CODES], second[world][:, :CODES]]) for world in (0, 1))
    return Pilot(
        scores=learn_scores(seen1, seen0, shared=follows),
        events=Events.learn(codes1, codes0),
        noise_follows_seed=follows,
        shows_seed=shows_seed,
    )


def outputs_contain_seed(one: Floats, other: Floats, seeds: list[int]) -> bool:
    """Return True if outputs contain their seed as a number, and noise follows the seed.

    one, other: tables of outputs of the two worlds from `seeds`. A seed has 31 bits, so no number in an output equals
    it by accident in most of the calls.
    """
    drawn = np.asarray(seeds, dtype=np.float64)[:, None]
    columns = np.zeros(one.shape[1], dtype=bool)
    for form in (drawn, drawn.astype(np.float32).astype(np.float64)):
        columns |= (one == form).mean(axis=0) > 0.5
    if not columns.any() or one.shape != other.shape:
        return False
    rest = [np.where(columns, 0.0, table) for table in (one, other)]
    return bool(rest[0].var(axis=0).any()) and noise_follows_seed(rest[0], rest[1])
