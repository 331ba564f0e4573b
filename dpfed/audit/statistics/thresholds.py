"""Thresholds of scores, fixed before the scores are drawn.

A threshold chosen on the tested scores invalidates the test: its lower bounds exceed the true value too often.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from accounting import require
from accounting.arrays import Floats
from dpfed.audit.statistics.error_counts import upper_limit
from dpfed.errors import ConfigError

ErrorRates = Callable[[float], tuple[float, float]]
PrivacyProfile = Callable[[Floats], ArrayLike]


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds of a score, and their origin; a score at or above a threshold is a guess of world 1.

    `origin` names the data by which they were chosen, which must not be the scores that they are applied to. Several
    thresholds share the error probability (Bonferroni), so that each further one lowers the power.
    """

    values: tuple[float, ...]
    origin: str

    def __post_init__(self) -> None:
        values = tuple(require.real("a finite number", threshold=value) for value in self.values)
        if not values or not self.origin.strip():
            raise ConfigError(
                f"thresholds={self.values!r}, origin={self.origin!r}: must be at least one threshold, and the data by "
                "which it was chosen before the scores were drawn."
            )
        object.__setattr__(self, "values", values)


@dataclass(frozen=True, kw_only=True)
class GuessCuts:
    """Cuts of a guess: world 1 if score >= `high`, world 0 if score < `low`, else no guess.

    The cuts are fixed before the scores are drawn.
    """

    low: float
    high: float
    origin: str

    def __post_init__(self) -> None:
        if math.isnan(self.low) or math.isnan(self.high) or not self.low <= self.high:
            raise ConfigError(f"low={self.low}, high={self.high}: must be numbers, low at most high.")

    def count_guesses(self, scores0: Floats, scores1: Floats) -> tuple[int, int]:
        """Return the numbers of right and of wrong guesses."""
        right = int((scores1 >= self.high).sum()) + int((scores0 < self.low).sum())
        wrong = int((scores0 >= self.high).sum()) + int((scores1 < self.low).sum())
        return right, wrong


@dataclass(frozen=True, kw_only=True)
class ScoreCuts:
    """Cuts of one score: for the test of a profile, for guesses of the world, and for the bound on mu (Gaussian DP)."""

    profile_thresholds: Thresholds
    guess_cuts: GuessCuts
    gaussian_cut: float

    @classmethod
    def from_one_cut(cls, score: float, origin: str) -> "ScoreCuts":
        """Return cuts that are all equal to `score`."""
        return cls(
            profile_thresholds=Thresholds(values=(score,), origin=origin),
            guess_cuts=GuessCuts(low=score, high=score, origin=origin),
            gaussian_cut=score,
        )


def gaussian_threshold(mu: float, *, trials: int, alpha: float) -> Thresholds:
    """Return the best threshold if the scores are N(0, 1) in world 0 and N(mu, 1) in world 1, as claimed.

    `trials`: number in each world. Scores are in units of the noise's standard deviation along x' - x: for an upload y,
    the score is <y - x, x' - x> / (sigma |x' - x|). The threshold maximises the expected mu-GDP bound. It affects the
    power only: an audit is valid at any threshold fixed beforehand.
    """
    shift, n = require.positive(mu=mu), require.count(trials=trials)
    at = np.linspace(-6.0, shift + 6.0, 4001)
    fpr, fnr = ndtr(-at), ndtr(at - shift)
    limits = [upper_limit(n * rate, n, alpha=require.open_probability(alpha=alpha) / 2) for rate in (fpr, fnr)]
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = (ndtri(limits[0]) + ndtri(limits[1])) / (ndtri(fpr) + ndtri(fnr))
    shown = np.where(np.isfinite(shown), shown, -math.inf)
    # With too few trials to show any part of the claimed mu, equal error rates serve faults that separate more.
    best = np.argmax(shown) if shown.max() > 0 else np.argmin(np.abs(fpr - fnr))
    return Thresholds(values=(float(at[best]),), origin=f"best for claimed scores of N({shift:g}, 1), {n} trials")


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
