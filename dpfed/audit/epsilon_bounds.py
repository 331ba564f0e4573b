"""Lower bounds on the epsilon of a mechanism, from trials in two neighbouring worlds."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import require
from accounting.gaussian import smallest_epsilon
from dpfed.audit.clopper_pearson import upper_limit
from dpfed.audit.scores import ErrorCounts, checked_scores
from dpfed.audit.thresholds import HeldOut, Thresholds, best_of_limits
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]

_CANDIDATES = 400


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """An epsilon at `delta` that holds with probability 1 - alpha, and the counts it rests on.

    `mu`: the Gaussian shift behind it, None for the bound without that assumption.
    """

    epsilon: float
    delta: float
    alpha: float
    mu: float | None
    threshold: float
    thresholds_tried: int
    false_positives: int
    false_negatives: int
    trials0: int
    trials1: int


def epsilon_lower_bound(
    scores0: ArrayLike, scores1: ArrayLike, *, delta: float, alpha: float, thresholds: Thresholds | HeldOut
) -> LowerBound:
    """epsilon >= max{ log((1 - delta - FNR_u) / FPR_u), log((1 - delta - FPR_u) / FNR_u), 0 }, for any mechanism.

    FPR_u, FNR_u: one-sided Clopper-Pearson limits at alpha / (2 thresholds) (Kairouz, Oh, Viswanath 2015; Jagielski,
    Ullman, Oprea 2020). delta in [0, 1). Scores as for `rejection.reject_claim`.

    Claim: above the true epsilon at `delta` of this pair of worlds with probability at most alpha. Direction of error:
    lower bound. Weak: at delta = 1e-5 and 1e5 trials a Gaussian of epsilon 4.38 shows 2.6. To test an accountant's
    claim use `reject_claim` with its profile.
    """
    target = require.probability(delta=delta)
    if target == 1:
        raise ConfigError("delta=1.0: every mechanism has it. Must be in [0, 1).")
    return _bound(scores0, scores1, target, alpha, thresholds, gaussian=False)


def gdp_lower_bound(
    scores0: ArrayLike, scores1: ArrayLike, *, delta: float, alpha: float, thresholds: Thresholds | HeldOut
) -> LowerBound:
    """mu >= Phi^-1(1 - FPR_u) - Phi^-1(FNR_u), and the epsilon of that mu at `delta` (Nasr et al. 2023).

    Limits, scores and thresholds as for `epsilon_lower_bound`. delta in (0, 1).

    Claim: a mechanism that is mu0-GDP gives a mu above mu0 with probability at most alpha, so mu > mu0 REJECTS "it is
    mu0-GDP", unconditionally. As a lower bound on epsilon it holds only IF the mechanism is mu-GDP for some mu with
    equality (its trade-off curve is a Gaussian's): errors seen at one threshold are extrapolated along that curve. For
    sampled or discrete mechanisms use `reject_claim` with their own profile.
    """
    return _bound(scores0, scores1, require.open_probability(delta=delta), alpha, thresholds, gaussian=True)


def _bound(
    scores0: ArrayLike,
    scores1: ArrayLike,
    delta: float,
    alpha: float,
    thresholds: Thresholds | HeldOut,
    *,
    gaussian: bool,
) -> LowerBound:
    level = require.open_probability(alpha=alpha)
    first, second = checked_scores(scores0, "scores0"), checked_scores(scores1, "scores1")
    if isinstance(thresholds, HeldOut):
        chosen0, first = thresholds.split(first, 0)
        chosen1, second = thresholds.split(second, 1)
        sizes = (first.size, second.size)
        thresholds = _chosen(chosen0, chosen1, sizes, level, None if gaussian else delta)
    if not isinstance(thresholds, Thresholds):
        raise ConfigError(
            f"thresholds={thresholds!r}: must be Thresholds settled before the scores were drawn, or HeldOut(seed=...) "
            "to choose on a part of the trials (dpfed.audit.thresholds)."
        )
    counts = ErrorCounts.of(first, second, thresholds.values)
    shown = best_of_limits(*counts.upper_limits(alpha=level), None if gaussian else delta)
    k = int(np.argmax(shown))
    value = max(0.0, float(shown[k]))
    return LowerBound(
        epsilon=epsilon_of_shift(value, delta=delta) if gaussian else value,
        delta=delta,
        alpha=level,
        mu=value if gaussian else None,
        threshold=float(counts.thresholds[k]),
        thresholds_tried=len(counts.thresholds),
        false_positives=int(counts.false_positives[k]),
        false_negatives=int(counts.false_negatives[k]),
        trials0=counts.trials0,
        trials1=counts.trials1,
    )


def epsilon_of_shift(mu: float, *, delta: float) -> float:
    """The epsilon of a Gaussian shift `mu` at `delta`, rounded downwards; 0 at mu = 0."""
    if mu == 0:
        return 0.0
    above = smallest_epsilon(delta, mu=mu)  # rounded upwards, by less than is taken off here
    return max(0.0, above * (1 - 1e-11) - 1e-14 * (1 - math.log(delta)))


def _chosen(scores0: Floats, scores1: Floats, sizes: tuple[int, int], alpha: float, delta: float | None) -> Thresholds:
    """The threshold at which these scores would show the most, with as many trials as will be measured."""
    pooled = np.sort(np.concatenate([scores0, scores1]))
    pooled = pooled[np.isfinite(pooled)]
    if not pooled.size:
        return Thresholds(values=(0.0,), origin="no finite score was held out")
    ranks = np.unique(np.geomspace(1, pooled.size, _CANDIDATES).astype(int)) - 1
    counts = ErrorCounts.of(scores0, scores1, np.unique(np.concatenate([pooled[ranks], pooled[::-1][ranks]])))
    rates = (counts.false_positives / counts.trials0, counts.false_negatives / counts.trials1)
    limits = [upper_limit(rate * size, size, alpha=alpha / 2) for rate, size in zip(rates, sizes, strict=True)]
    best = int(np.argmax(best_of_limits(limits[0], limits[1], delta)))
    return Thresholds(values=(float(counts.thresholds[best]),), origin="held-out trials")
