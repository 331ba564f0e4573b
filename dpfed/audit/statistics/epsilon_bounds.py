"""Lower bounds on the epsilon of a mechanism, from trials whose worlds are chosen by independent fair coin flips.

With one coin flip per trial, wrong guesses in both worlds form one binomial count. One confidence limit suffices, where
fixed numbers of trials per world would need a limit for each world.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, ndtri

from accounting.arrays import Floats
from accounting.gaussian import epsilon_from_below
from dpfed.audit.statistics.rejection import ErrorRates, GuessCuts, checked_scores, most_revealed_trials, upper_limit


def epsilon_lower_bound(
    scores0: ArrayLike, scores1: ArrayLike, *, delta: float, alpha: float, cuts: GuessCuts
) -> float:
    """Return the epsilon at which at least this number of correct guesses has probability alpha, for any mechanism.

    Guesses: "world 1" for scores from `cuts.high` on, "world 0" below `cuts.low`, none between. Every (epsilon,
    delta)-indistinguishable pair is a post-processing of randomised response that reveals its world with probability
    delta (Kairouz, Oh, Viswanath 2015). So Bin(N, delta) of N trials are revealed, and each other guess is right with
    probability at most q = e^epsilon / (1 + e^epsilon), independently. With P(Bin(N, delta) > d) <= alpha / 20, V of R
    guesses right: P(Bin(R - d, q) >= V - d) = 0.95 alpha gives epsilon.

    Precondition: each trial's world was chosen by its own fair coin flip. delta in [0, 1).
    Claim: above the true epsilon at `delta` of this pair of worlds with probability at most alpha. Direction of error:
    lower bound. At delta = 1e-5, a Gaussian of epsilon 4.38 gives a bound of 2.9 with 1e5 trials and of 3.5 with 1e6;
    a claim is therefore tested with its whole profile (`rejection`).
    """
    first, second = checked_scores(scores0, "scores0"), checked_scores(scores1, "scores1")
    right, wrong = cuts.count_guesses(first, second)
    shown = most_revealed_trials(len(first) + len(second), delta, alpha)
    return float(epsilon_of_guesses(right, wrong, shown=shown, alpha=alpha if delta == 0 else 0.95 * alpha))


def gdp_lower_bound(scores0: ArrayLike, scores1: ArrayLike, *, alpha: float, cut: float) -> float:
    """Return the lower bound max(0, -2 Phi^-1(limit of the error rate)) on mu.

    Under mu-GDP a guess of the world of a fair coin flip is wrong with probability at least Phi(-mu / 2) (the trade-off
    curve is above its tangent at the middle). The limit is the one-sided Clopper-Pearson limit of all errors of the
    guess "world 1 if the score is at least `cut`, else world 0".

    Precondition: each trial's world was chosen by its own fair coin flip.
    Claim: a mechanism that is mu0-GDP gives a mu above mu0 with probability at most alpha, so mu > mu0 REJECTS "it is
    mu0-GDP", unconditionally. As a lower bound on epsilon it holds only IF the mechanism is mu-GDP for some mu with
    equality (its trade-off curve is a Gaussian's): errors seen at one threshold are extrapolated along that curve.
    """
    first, second = checked_scores(scores0, "scores0"), checked_scores(scores1, "scores1")
    right, wrong = GuessCuts(low=cut, high=cut).count_guesses(first, second)
    return max(0.0, -2 * float(ndtri(upper_limit(wrong, right + wrong, alpha=alpha))))


def epsilon_of_guesses(right: ArrayLike, wrong: ArrayLike, *, shown: int, alpha: float) -> Floats:
    """Return the epsilon at which P(Bin(R - shown, e^eps / (1 + e^eps)) >= V - shown) = alpha; 0 if there is none.

    R: all guesses; V: right guesses. Expected counts, which need not be whole, are allowed. Elementwise.
    """
    correct = np.asarray(right, dtype=float) - shown
    false = np.asarray(wrong, dtype=float)
    usable = correct > 0
    q = betaincinv(np.where(usable, correct, 1.0), false + 1, alpha)
    with np.errstate(divide="ignore"):
        odds = np.log(q) - np.log1p(-q)
    return np.asarray(np.where(usable, np.maximum(odds * (1 - 1e-12), 0.0), 0.0))


def epsilon_of_shift(mu: float, *, delta: float) -> float:
    """Return the epsilon of a Gaussian shift `mu` at `delta`, rounded downwards; 0 at mu = 0."""
    return epsilon_from_below(delta, mu=mu) if mu else 0.0


def best_guess_cuts(errors: ErrorRates, candidates: ArrayLike, *, trials: int, alpha: float, delta: float) -> GuessCuts:
    """Return the cuts with the largest expected epsilon bound at `delta`, if scores have the claimed distribution.

    errors: function from a threshold t to (P0(score >= t), P1(score < t)). candidates: thresholds to choose from.
    trials: number in both worlds together. The choice affects the power only, not the validity of a bound.
    """
    at = np.unique(np.asarray(candidates, dtype=float))
    rates = np.array([errors(float(t)) for t in at])
    false, missed = np.append(rates[:, 0], 0.0), np.append(rates[:, 1], 1.0)  # the last cut never guesses "world 1"
    false_low, missed_low = np.append(rates[:, 0], 1.0), np.append(rates[:, 1], 0.0)  # this one never "world 0"
    half = trials / 2
    right = half * ((1 - missed)[:, None] + (1 - false_low)[None, :])
    wrong = half * (false[:, None] + missed_low[None, :])
    shown = epsilon_of_guesses(right, wrong, shown=most_revealed_trials(trials, delta, alpha), alpha=0.95 * alpha)
    highs, lows = np.append(at, math.inf), np.append(at, -math.inf)
    shown = np.where(highs[:, None] >= lows[None, :], shown, -1.0)
    high, low = np.unravel_index(int(np.argmax(shown)), shown.shape)
    return GuessCuts(low=float(lows[low]), high=float(highs[high]))
