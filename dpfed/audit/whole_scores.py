"""One run's canaries from whole scores, where the law of a score is known: the code under audit is our own.

Guesses with thresholds use a bit of each score; with a law, a score says how much it speaks for "present". What is
bounded is how far a present canary moves the release, over how far it is claimed to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from accounting import require
from dpfed.audit.score_law import HONEST, Deviation, ScoreLaw
from dpfed.audit.scores import checked_scores
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]

LEAST = 30
"""Canaries of either kind, for the normal law of their mean scores."""

_CELLS = 240
_NEVER = 1e-7
_FACTORS = np.concatenate([np.linspace(0.0, 2.0, 81), np.linspace(2.1, 4.0, 20)])


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeScores:
    """A law, ready for many runs: the weight of a score in each cell, and D at some factors.

    D(f) = E g(present) - E g(absent), g the log-likelihood ratio of a cell, where present canaries move f times as far.
    """

    edges: Floats
    weights: Floats
    factors: Floats
    differences: Floats

    @classmethod
    def of(cls, law: ScoreLaw) -> WholeScores:
        edges = _edges(law)
        weights = _weights(law, edges)
        differences = [_difference(law, edges, weights, float(factor)) for factor in _FACTORS]
        return cls(
            edges=edges, weights=weights, factors=_FACTORS, differences=np.maximum.accumulate(np.array(differences))
        )

    def moved_at_least(self, scores: ArrayLike, included: ArrayLike, *, alpha: float) -> float:
        """A factor f: present canaries move the release at least f times as far as the law has it; 0 if nothing shows.

        scores [m] in the units of the law, included [m] of bool. The f at which D(f) = mean difference of g -
        z_{1-alpha} standard errors (from the scores' own variances); at most 4.

        Preconditions: independent scores whose law is the given one for some f, included by fair coins of their own.
        Claim: above the true factor with probability alpha, up to the normal approximation of means (measured in the
        tests: at most 1.2 alpha from 100 canaries on). Direction of error: lower bound under the known law, about the
        canaries that were tried.
        """
        level, given = require.open_probability(alpha=alpha), checked_scores(scores, "scores")
        coins = np.asarray(included)
        if coins.shape != given.shape or coins.dtype != np.bool_:
            raise ConfigError(
                f"included of shape {coins.shape}, type {coins.dtype}: must be True or False for each score."
            )
        if min(coins.sum(), (~coins).sum()) < LEAST:
            raise ConfigError(
                f"{coins.sum()} of {coins.size} canaries present: must be at least {LEAST} of either kind."
            )
        seen = self.weights[np.searchsorted(self.edges, given)]
        present, absent = seen[coins], seen[~coins]
        error = math.sqrt(present.var(ddof=1) / present.size + absent.var(ddof=1) / absent.size)
        shown = float(present.mean() - absent.mean()) + float(ndtri(level)) * error
        if shown <= self.differences[0]:
            return 0.0
        return float(np.interp(shown, self.differences, self.factors))


def _edges(law: ScoreLaw) -> Floats:
    """Between which nearly all scores of both worlds lie."""
    low, high = -1.0, 1.0
    while law.errors(low)[1] > _NEVER or 1 - law.errors(low)[0] > _NEVER:
        low *= 1.5
    while law.errors(high)[0] > _NEVER or 1 - law.errors(high)[1] > _NEVER:
        high *= 1.5
    return np.linspace(low, high, _CELLS)


def _weights(law: ScoreLaw, edges: Floats) -> Floats:
    """The log-likelihood ratio of each cell; cells that neither world has say nothing."""
    absent, present = _cells(law, edges, HONEST)
    return np.asarray(np.log((present + _NEVER) / (absent + _NEVER)))


def _difference(law: ScoreLaw, edges: Floats, weights: Floats, factor: float) -> float:
    absent, present = _cells(law, edges, Deviation(too_far=factor - 1))
    return float((present - absent) @ weights)


def _cells(law: ScoreLaw, edges: Floats, fault: Deviation) -> tuple[Floats, Floats]:
    """Probabilities of the cells in world 0 and world 1: below the first edge, between, above the last."""
    errors = np.array([law.errors(float(edge), fault) for edge in edges])
    below = np.concatenate([[[0.0, 0.0]], np.stack([1 - errors[:, 0], errors[:, 1]], axis=1), [[1.0, 1.0]]])
    cells = np.maximum(np.diff(below, axis=0), 0.0)
    return cells[:, 0], cells[:, 1]
