"""Guesses of the world from anything but numbers, or from repeated outputs, and their one test over all pairs.

Events are the kind of an output (keys, types, shapes, exceptions), and whole outputs seen more than once, as with noise
that repeats or is left out. An event more frequent in one world of the pilot is a guess of that world.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from accounting.arrays import Floats
from dpfed.audit.functions.claim import FunctionClaim
from dpfed.audit.outcome import PairTest
from dpfed.audit.statistics.epsilon_bounds import epsilon_lower_bound, epsilon_of_shift
from dpfed.audit.statistics.error_counts import ErrorCounts, upper_limit
from dpfed.audit.statistics.rejection import reject_counts
from dpfed.audit.statistics.thresholds import Cuts

Guesses = dict[float, float]
"""Guess of each code of an output: +1, world 1, or -1, world 0."""

_MORE_OFTEN = 1.5
_REPEATS = 3
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Events:
    """Guesses from the kinds of outputs and from whole outputs, if a pilot saw more than one kind, or repeated
    outputs.
    """

    kinds: Guesses
    values: Guesses

    @classmethod
    def of(cls, one: Floats, other: Floats) -> Events | None:
        """Return the events of a pilot; None if all outputs are of one kind and none repeats.

        one, other: codes [n, 2] of the kinds and of whole outputs in worlds 1 and 0.
        """
        several = len(np.unique(np.concatenate([one[:, 0], other[:, 0]]))) > 1
        again = sum(len(codes) - len(np.unique(codes[:, 1])) for codes in (one, other)) >= _REPEATS
        if not several and not again:
            return None
        return cls(
            kinds=_learnt(one[:, 0], other[:, 0]) if several else {},
            values=_learnt(one[:, 1], other[:, 1]) if again else {},
        )

    def guesses(self, codes: Floats) -> Floats:
        """Return +1, -1 or 0 (none) for each output [n]; whole outputs, which are more specific, take precedence."""
        return np.array([self.values.get(value, 0.0) or self.kinds.get(kind, 0.0) for kind, value in codes.tolist()])


def _learnt(one: Floats, other: Floats) -> Guesses:
    """Return the codes seen in one world only, or there more often by a half and by two standard errors."""
    seen1, seen0 = Counter(one.tolist()), Counter(other.tolist())
    found = {}
    for code in seen1 | seen0:
        most, least = max(seen1[code], seen0[code]), min(seen1[code], seen0[code])
        if most >= _MORE_OFTEN * least and most - least >= min(most, 2 * math.sqrt(most + least)):
            found[code] = 1.0 if seen1[code] > seen0[code] else -1.0
    return found


def events_test(guesses0: Floats, guesses1: Floats, claim: FunctionClaim, *, alpha: float) -> PairTest:
    """Test if the guesses refute the claim.

    guesses0, guesses1: of all trials of worlds 0 and 1, each chosen by a fair coin flip; alpha is given that each pair
    has both.
    Claim: a true claim is rejected with probability at most alpha. If S is guessed to be world 1 and T world 0, a
    profile of both orders bounds P1(S) - e^eps P0(S) and P0(T) - e^eps P1(T), and so their mean: P(right) - e^eps
    P(wrong) over the choice of the world, for which right and wrong guesses are counted over all trials. The mean over
    pairs of neighbours is bounded as well, and counts over several pairs vary less than binomial ones (Hoeffding 1956).
    """
    trials = len(guesses0) + len(guesses1)
    right = int((guesses1 > 0).sum() + (guesses0 < 0).sum())
    wrong = int((guesses1 < 0).sum() + (guesses0 > 0).sum())
    counts = ErrorCounts.of_counts(wrong, trials - right, trials, trials)
    half = alpha / 2  # of two tests: the whole profile, and the bound that suits the claim
    tested = reject_counts(counts, claim.profile, alpha=half)
    limits = [float(upper_limit(count, trials, alpha=half / 2)) for count in (wrong, trials - right)]
    mu = max(0.0, -float(ndtri(limits[0])) - float(ndtri(limits[1])))
    share = alpha if claim.gaussian else half
    cuts = Cuts(low=-0.5, high=0.5, origin="which outputs the pilot saw")
    plain_bound = epsilon_lower_bound(guesses0, guesses1, delta=claim.delta, alpha=share, cuts=cuts)
    return PairTest(
        pair="all pairs, by the kind of output or by outputs that come again",
        score="events",
        gap=0.0,
        trials=trials,
        lower_bound=plain_bound,
        lower_bound_gdp=epsilon_of_shift(mu, delta=claim.delta),
        mu=mu,
        test=tested,
        too_far=mu > claim.mu * (1 + _ROUNDING) if claim.gaussian else plain_bound > claim.epsilon * (1 + _ROUNDING),
    )
