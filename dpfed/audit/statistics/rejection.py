"""Test of a claimed privacy profile against scores of two neighbouring worlds."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats
from dpfed.audit.statistics.error_counts import ErrorCounts, checked_scores
from dpfed.audit.statistics.thresholds import PrivacyProfile, Thresholds
from dpfed.errors import ConfigError

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
    thresholds: Thresholds,
) -> ClaimTest:
    """Test if P1(S) <= e^epsilon P0(S) + profile(epsilon) for all sets S, and equally with P0 and P1 exchanged.

    The claim is rejected iff for some threshold and some epsilon
        1 - FNR_u > profile(epsilon) + e^epsilon FPR_u   or   1 - FPR_u > profile(epsilon) + e^epsilon FNR_u,
    with one-sided Clopper-Pearson limits FPR_u, FNR_u at alpha / (2 thresholds).

    scores0, scores1: one score for each trial, each trial with fresh randomness; high scores speak for world 1. The
    score function must not be fitted to these trials. `profile`: vectorised callable of real epsilon (negative too)
    that covers both orders of the neighbours (`accounting.compose.profiles`).

    Claim: a true claim is rejected with probability at most alpha, for any mechanism. The maximum over epsilon needs no
    correction (the profile is one hypothesis). A claim that is not rejected is NOT proven: the trials may have been too
    few.
    Errors: ConfigError for NaN scores, and for a profile with values outside [max(0, 1 - e^epsilon), 1]."""
    level = require.open_probability(alpha=alpha)
    counts = ErrorCounts.from_scores(
        checked_scores(scores0, "scores0"), checked_scores(scores1, "scores1"), thresholds.values
    )
    return reject_counts(counts, profile, alpha=level)


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
