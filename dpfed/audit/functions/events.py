"""Guesses of the world from the kind of an output or from repeated outputs, and one test of them over all pairs.

Events are kinds of outputs (keys, types, shapes, exceptions) and whole outputs that occur more than once, as they do if
noise repeats or is left out. An event that is more frequent in one world of the pilot is a guess of that world.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from accounting.arrays import Floats
from dpfed.audit.functions.claim import FunctionClaim
from dpfed.audit.functions.outcome import PairTest
from dpfed.audit.statistics.epsilon_bounds import epsilon_lower_bound, epsilon_of_shift
from dpfed.audit.statistics.error_counts import ErrorCounts, upper_limit
from dpfed.audit.statistics.rejection import reject_counts
from dpfed.audit.statistics.thresholds import GuessCuts

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
    cuts = GuessCuts(low=-0.5, high=0.5, origin="outputs of the pilot")
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
