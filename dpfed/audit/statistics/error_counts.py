"""Error counts of threshold tests on scores of two neighbouring worlds, and exact limits of the error rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv

from accounting import require
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
    level = require.open_probability(alpha=alpha)
    k, n = np.broadcast_arrays(np.asarray(successes, dtype=float), np.asarray(trials, dtype=float))
    if not np.all((n > 0) & (k >= 0) & (k <= n)):
        raise ConfigError(
            f"successes={successes!r}, trials={trials!r}: must be 0 <= successes <= trials, trials above 0."
        )
    inside = k < n
    more = (k + 1) * _SLIGHTLY_MORE
    return np.asarray(np.where(inside, betainccinv(more, np.where(inside, n - k, 1.0), level), 1.0))
