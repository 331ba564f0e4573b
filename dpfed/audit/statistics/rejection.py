"""Test of a claimed privacy profile by error counts at thresholds that were fixed before the scores were drawn.

A threshold chosen on the tested scores invalidates the test: its lower bounds exceed the true value too often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, ndtr, ndtri
from scipy.stats import binom

from accounting.arrays import Floats, Ints
from dpfed.errors import ConfigError

_SLIGHTLY_MORE = 1 + 1e-13
"""Factor on counts that outweighs rounding. It also avoids k + 1 = 1000 exactly, at which the inverse of SciPy 1.17 is
wrong: its alpha is 8% too large for 10^8 trials."""


def checked_scores(scores: ArrayLike, name: str) -> Floats:
    """Return the scores as an array [n], n >= 1; infinities are allowed (log-likelihood ratios have
    them), NaN is not.
    """
    try:
        given = np.asarray(scores, dtype=float)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}: must be a list of numbers, one for each trial.") from None
    if given.ndim != 1 or not given.size:
        raise ConfigError(f"{name} of shape {given.shape}: must be a list of at least one number, one for each trial.")
    if missing := int(np.isnan(given).sum()):
        raise ConfigError(
            f"{name}: {missing} of {given.size} scores are NaN. Leaving such trials out would select trials by their "
            "outcome. Repair the code that computes the scores."
        )
    return given


@dataclass(frozen=True)
class ErrorCounts:
    """Errors at each threshold t [k]: trials of world 0 with score >= t, and of world 1 with score < t."""

    thresholds: Floats
    false_positives: Ints
    false_negatives: Ints
    trials0: int
    trials1: int

    @classmethod
    def from_scores(cls, scores0: Floats, scores1: Floats, thresholds: ArrayLike) -> ErrorCounts:
        at = np.atleast_1d(np.asarray(thresholds, dtype=float))
        below0, below1 = (np.searchsorted(np.sort(scores), at, side="left") for scores in (scores0, scores1))
        return cls(
            thresholds=at,
            false_positives=scores0.size - below0,
            false_negatives=below1,
            trials0=scores0.size,
            trials1=scores1.size,
        )

    @classmethod
    def expected_counts(cls, rates: tuple[float, float], *, trials: int) -> ErrorCounts:
        """Return the expected counts at one threshold if errors have these rates in `trials` trials of each world."""
        counts = [int(np.ceil(trials * min(max(rate, 0.0), 1.0))) for rate in rates]
        return cls.from_counts(counts[0], counts[1], trials, trials)

    @classmethod
    def from_counts(cls, false_positives: int, false_negatives: int, trials0: int, trials1: int) -> ErrorCounts:
        """Return the counts of one threshold, whose value is not needed and is set to 0."""
        counts = np.array([[false_positives], [false_negatives]])
        return cls(np.zeros(1), counts[0], counts[1], trials0, trials1)

    def upper_limits(self, *, alpha: float) -> tuple[Floats, Floats]:
        """Return upper limits [k] of both error rates; with probability 1 - alpha all of them hold (Bonferroni)."""
        each = alpha / (2 * len(self.thresholds))
        return (
            upper_limit(self.false_positives, self.trials0, alpha=each),
            upper_limit(self.false_negatives, self.trials1, alpha=each),
        )


def upper_limit(successes: ArrayLike, trials: ArrayLike, *, alpha: float) -> Floats:
    """Return the upper confidence limit of a probability after `successes` in `trials` independent trials.

    Beta.ppf(1 - alpha; k + 1, n - k), and 1 for k = n   (Clopper, Pearson 1934)

    Claim: for every p the limit is below p with probability at most alpha. Elementwise; counts need not be whole (an
    expected count gives the limit of a typical outcome). Direction of error: conservative, since k is increased
    slightly, which outweighs rounding.
    """
    k, n = np.broadcast_arrays(np.asarray(successes, dtype=float), np.asarray(trials, dtype=float))
    inside = k < n
    more = (k + 1) * _SLIGHTLY_MORE
    return np.asarray(np.where(inside, betainccinv(more, np.where(inside, n - k, 1.0), alpha), 1.0))


ErrorRates = Callable[[float], tuple[float, float]]
PrivacyProfile = Callable[[Floats], ArrayLike]


@dataclass(frozen=True, kw_only=True)
class GuessCuts:
    """Cuts of a guess: world 1 if score >= `high`, world 0 if score < `low`, else no guess.

    The cuts are fixed before the scores are drawn.
    """

    low: float
    high: float

    def count_guesses(self, scores0: Floats, scores1: Floats) -> tuple[int, int]:
        """Return the numbers of right and of wrong guesses."""
        right = int((scores1 >= self.high).sum()) + int((scores0 < self.low).sum())
        wrong = int((scores0 >= self.high).sum()) + int((scores1 < self.low).sum())
        return right, wrong


@dataclass(frozen=True, kw_only=True)
class ScoreCuts:
    """Cuts of one score: for the test of a profile, for guesses of the world, and for the bound on mu (Gaussian DP)."""

    profile_thresholds: tuple[float, ...]
    guess_cuts: GuessCuts
    gaussian_cut: float


def gaussian_threshold(mu: float, *, trials: int, alpha: float) -> float:
    """Return the best threshold if the scores are N(0, 1) in world 0 and N(mu, 1) in world 1, as claimed.

    `trials`: number in each world. Scores are in units of the noise's standard deviation along x' - x: for an upload y,
    the score is <y - x, x' - x> / (sigma |x' - x|). The threshold maximises the expected mu-GDP bound. It affects the
    power only: an audit is valid at any threshold fixed beforehand.
    """
    at = np.linspace(-6.0, mu + 6.0, 4001)
    fpr, fnr = ndtr(-at), ndtr(at - mu)
    limits = [upper_limit(trials * rate, trials, alpha=alpha / 2) for rate in (fpr, fnr)]
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = (ndtri(limits[0]) + ndtri(limits[1])) / (ndtri(fpr) + ndtri(fnr))
    shown = np.where(np.isfinite(shown), shown, -math.inf)
    # With too few trials to show any part of the claimed mu, equal error rates serve faults that separate more.
    best = np.argmax(shown) if shown.max() > 0 else np.argmin(np.abs(fpr - fnr))
    return float(at[best])


def most_revealed_trials(trials: int, delta: float, alpha: float) -> int:
    """Return the least d with P(Bin(trials, delta) > d) <= alpha / 20, a limit on the revealed trials; 0
    at delta = 0.
    """
    return int(binom.isf(alpha / 20, trials, delta)) if delta > 0 else 0


def trials_in_worlds(trials: int, seed: int) -> tuple[int, int]:
    """Return the numbers of trials in world 0 and world 1 by fair coin flips, given that both are at least 1.

    That condition has probability 1 - 2^(1 - trials).
    """
    if trials < 2:
        raise ConfigError(f"trials={trials}: must be at least 2, one in each world.")
    rng = np.random.default_rng([seed, 0xC0])
    ones = 0
    while not 0 < ones < trials:
        ones = int(rng.binomial(trials, 0.5))
    return trials - ones, ones


_GRID = 2001
_ROUNDING = 1e-12  # two computations of one delta may differ by this; no claim is rejected for it


@dataclass(frozen=True, kw_only=True)
class ClaimTest:
    """Outcome `rejected` of the test, and the strongest evidence of the trials against the claim.

    At `threshold` the trials require delta(epsilon) >= `seen`; the claim has delta(epsilon) = `claimed`; `excess` =
    `seen` - `claimed`. `order` names the inequality tested: "1|0" is P1(score >= t) <= e^epsilon P0(score >= t) +
    delta, "0|1" is P0(score < t) <= e^epsilon P1(score < t) + delta.
    """

    rejected: bool
    alpha: float
    threshold: float
    epsilon: float
    seen: float
    claimed: float
    excess: float
    order: str
    false_positives: int
    false_negatives: int
    trials0: int
    trials1: int


def reject_claim(
    scores0: ArrayLike,
    scores1: ArrayLike,
    profile: PrivacyProfile,
    *,
    alpha: float,
    thresholds: Sequence[float],
) -> ClaimTest:
    """Test if P1(S) <= e^epsilon P0(S) + profile(epsilon) for all sets S, and equally with P0 and P1 exchanged.

    The claim is rejected iff for some threshold and some epsilon
        1 - FNR_u > profile(epsilon) + e^epsilon FPR_u   or   1 - FPR_u > profile(epsilon) + e^epsilon FNR_u,
    with one-sided Clopper-Pearson limits FPR_u, FNR_u at alpha / (2 thresholds).

    scores0, scores1: one score for each trial, each trial with fresh randomness; high scores speak for world 1. The
    score function and the thresholds must not be fitted to these trials. `profile`: vectorised callable of real
    epsilon (negative too) that covers both orders of the neighbours (`accounting.compose.profiles`).

    Claim: a true claim is rejected with probability at most alpha, for any mechanism. The maximum over epsilon needs no
    correction (the profile is one hypothesis). A claim that is not rejected is NOT proven: the trials may have been too
    few.
    Errors: ConfigError for NaN scores, and for a profile with values outside [max(0, 1 - e^epsilon), 1]."""
    counts = ErrorCounts.from_scores(checked_scores(scores0, "scores0"), checked_scores(scores1, "scores1"), thresholds)
    return reject_counts(counts, profile, alpha=alpha)


def reject_counts(counts: ErrorCounts, profile: PrivacyProfile, *, alpha: float) -> ClaimTest:
    """Test the claim from error counts at thresholds fixed beforehand. If counts are rejected, so are
    smaller counts.
    """
    fpr_upper, fnr_upper = counts.upper_limits(alpha=alpha)
    found = []
    for k in range(len(counts.thresholds)):
        found.append((*_largest_excess(profile, float(fnr_upper[k]), float(fpr_upper[k])), "1|0", k))
        found.append((*_largest_excess(profile, float(fpr_upper[k]), float(fnr_upper[k])), "0|1", k))
    excess, epsilon, seen, claimed, order, k = max(found, key=lambda row: row[0])
    return ClaimTest(
        rejected=excess > _ROUNDING,
        alpha=alpha,
        threshold=float(counts.thresholds[k]),
        epsilon=epsilon,
        seen=seen,
        claimed=claimed,
        excess=excess,
        order=order,
        false_positives=int(counts.false_positives[k]),
        false_negatives=int(counts.false_negatives[k]),
        trials0=counts.trials0,
        trials1=counts.trials1,
    )


def _largest_excess(profile: PrivacyProfile, missed: float, false: float) -> tuple[float, float, float, float]:
    """Return the largest 1 - missed - e^eps false - delta(eps) over eps, its eps, 1 - missed - e^eps false, delta(eps).

    The search ends at log(missed / (1 - false)) and log((1 - missed) / false): beyond, no profile is exceeded.
    """
    epsilons = np.zeros(1)
    if missed + false < 1:
        low, high = math.log(missed / (1 - false)), math.log((1 - missed) / false)
        epsilons = np.append(epsilons, np.linspace(low, high, _GRID))
    claimed = _checked_profile_values(profile, epsilons)
    seen = 1 - missed - np.exp(epsilons) * false
    best = int(np.argmax(seen - claimed))
    return float((seen - claimed)[best]), float(epsilons[best]), float(seen[best]), float(claimed[best])


def _checked_profile_values(profile: PrivacyProfile, epsilons: Floats) -> Floats:
    claimed = np.asarray(profile(epsilons), dtype=float)
    least = np.maximum(-np.expm1(epsilons), 0.0)
    if claimed.shape != epsilons.shape or not np.all((claimed >= least - 1e-9) & (claimed <= 1 + 1e-9)):
        raise ConfigError(
            f"profile: gave shape {claimed.shape} for {epsilons.size} epsilons, or values outside "
            "[max(0, 1 - e^epsilon), 1]: no pair of distributions has it. Give a vectorised profile of real epsilon, "
            "negative included: delta(-e) = 1 - e^-e + e^-e delta(e), with delta(e) of the opposite order."
        )
    return np.asarray(np.maximum(claimed, least))
