"""Scores of trials in two neighbouring worlds, and the errors of saying "the second world" from a threshold on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed.audit.statistics.clopper_pearson import upper_limit
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]


def checked_scores(scores: ArrayLike, name: str) -> Floats:
    """A list of at least one score, infinities allowed (log-likelihood ratios have them), NaN refused."""
    try:
        given = np.asarray(scores, dtype=float)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}: must be a list of numbers, one a trial.") from None
    if given.ndim != 1 or not given.size:
        raise ConfigError(f"{name} of shape {given.shape}: must be a list of numbers, one a trial, at least one.")
    if missing := int(np.isnan(given).sum()):
        raise ConfigError(
            f"{name}: {missing} of {given.size} scores are NaN. A trial without a score is no trial, and leaving it "
            "out would choose trials by their outcome. Repair what made it."
        )
    return given


@dataclass(frozen=True, kw_only=True)
class ErrorCounts:
    """At each threshold t [k]: trials of world 0 with score >= t, and of world 1 with score < t."""

    thresholds: Floats
    false_positives: NDArray[np.int64]
    false_negatives: NDArray[np.int64]
    trials0: int
    trials1: int

    @classmethod
    def of(cls, scores0: Floats, scores1: Floats, thresholds: ArrayLike) -> "ErrorCounts":
        at = np.atleast_1d(np.asarray(thresholds, dtype=float))
        below0, below1 = (np.searchsorted(np.sort(scores), at, side="left") for scores in (scores0, scores1))
        return cls(
            thresholds=at,
            false_positives=scores0.size - below0,
            false_negatives=below1,
            trials0=scores0.size,
            trials1=scores1.size,
        )

    def upper_limits(self, *, alpha: float) -> tuple[Floats, Floats]:
        """Limits of both error rates that hold at all thresholds at once with probability 1 - alpha (Bonferroni)."""
        each = alpha / (2 * len(self.thresholds))
        return (
            upper_limit(self.false_positives, self.trials0, alpha=each),
            upper_limit(self.false_negatives, self.trials1, alpha=each),
        )
