"""Where scores are cut, settled before they are drawn.

A threshold chosen on the scores that it is measured on is no test: bounds come out above the truth too often.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from accounting import require
from dpfed.audit.clopper_pearson import upper_limit
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]
Tail = Callable[[Floats], Floats]
PrivacyProfile = Callable[[Floats], ArrayLike]


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Scores from which on "the second world" is said, and where they come from.

    `origin` says what settled them; it must be something other than the scores they are used on. Several thresholds
    share the error probability (Bonferroni), so more of them cost power.
    """

    values: tuple[float, ...]
    origin: str

    def __post_init__(self) -> None:
        values = tuple(require.real("a finite number", threshold=value) for value in self.values)
        if not values or not self.origin.strip():
            raise ConfigError(
                f"thresholds={self.values!r}, origin={self.origin!r}: at least one threshold, and what settled it "
                "before the scores were drawn."
            )
        object.__setattr__(self, "values", values)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Choose the threshold on a random part of the trials of each world, and measure on the others only."""

    seed: int
    fraction: float = 0.5

    def __post_init__(self) -> None:
        require.open_probability(fraction=self.fraction)
        require.count(at_least=0, seed=self.seed)

    def split(self, scores: Floats, world: int) -> tuple[Floats, Floats]:
        """The scores to choose on and those to measure on; which is which does not depend on the scores."""
        chosen = round(self.fraction * scores.size)
        if not 0 < chosen < scores.size:
            raise ConfigError(
                f"{scores.size} trials of world {world}: a part of {self.fraction:g} to choose on leaves one of the "
                "two empty. Use more trials, or thresholds from the claimed law."
            )
        order = np.random.default_rng([self.seed, world]).permutation(scores.size)
        return scores[order[:chosen]], scores[order[chosen:]]


def claimed_gaussian(mu: float, *, trials: int, alpha: float, delta: float | None = None) -> Thresholds:
    """The best threshold if the scores are N(0, 1) in world 0 and N(mu, 1) in world 1, as a claim says.

    `trials`: in each world. Units: the noise's standard deviation along x' - x, i.e. for an upload y the score
    <y - x, x' - x> / (sigma |x' - x|). `delta`: best for the (epsilon, delta) lower bound; without, for a mu-GDP bound
    or a claimed profile. A choice of power only: an audit is valid at any threshold settled beforehand.
    """
    shift = require.positive(mu=mu)
    at = np.linspace(min(0.0, shift) - 6.0, shift + 6.0, 4001)
    return _of_law(lambda t: ndtr(-t), lambda t: ndtr(t - shift), at, trials, alpha, delta, f"N({shift:g}, 1)")


def claimed_law(
    false_positive_rate: Tail, false_negative_rate: Tail, candidates: ArrayLike, *, trials: int, alpha: float
) -> Thresholds:
    """The best of `candidates` for scores with P0(score >= t) and P1(score < t) as given: any claimed law.

    Best: where sampling error takes the least share of the separation Phi^-1(1 - FPR) - Phi^-1(FNR).
    """
    at = np.sort(np.asarray(candidates, dtype=float).ravel())
    if not at.size or not np.isfinite(at).all():
        raise ConfigError("candidates: must be finite scores, at least one.")
    return _of_law(false_positive_rate, false_negative_rate, at, trials, alpha, None, "a given law")


def claimed_profile(profile: PrivacyProfile, *, trials: int, alpha: float) -> Thresholds:
    """The best threshold for scores that are log-likelihood ratios of a pair with this very profile.

    Its errors at threshold t: FPR = -delta'(t) e^-t, FNR = 1 - delta(t) - e^t FPR (by differences on a grid).
    """
    end = 1.0
    while float(np.asarray(profile(np.array([end])))[0]) > 0.1 / trials and end < 1e4:
        end *= 1.5
    at = np.linspace(-end, end, 4001)
    delta = np.asarray(profile(at), dtype=float)
    slope = np.gradient(delta, at)
    fpr = np.clip(-slope * np.exp(-at), 0.0, 1.0)
    fnr = np.clip(1 - delta + slope, 0.0, 1.0)
    return _of_law(
        lambda t: np.interp(t, at, fpr), lambda t: np.interp(t, at, fnr), at, trials, alpha, None, "a claimed profile"
    )


def spread_gaussian(mu: float, *, trials: int, count: int) -> Thresholds:
    """`count` thresholds over the range that `trials` can see, for faults that do not look like a larger mu.

    Evenly from where world 0 is expected to exceed them 10 times to where world 1 stays below 10 times; with the
    scores of `claimed_gaussian`.
    """
    shift, number = require.positive(mu=mu), require.count(count=count)
    tail = float(ndtri(min(0.5, 10 / require.count(trials=trials))))
    low, high = sorted((-tail, shift + tail))
    values = tuple(np.linspace(low, high, number).tolist()) if number > 1 else ((low + high) / 2,)
    return Thresholds(values=values, origin=f"spread over claimed scores N(0, 1) and N({shift:g}, 1)")


def best_of_limits(fpr_upper: Floats, fnr_upper: Floats, delta: float | None) -> Floats:
    """What limits of the error rates show: epsilon at `delta`, or mu if delta is None. -infinity if nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if delta is None:
            return np.asarray(-ndtri(fpr_upper) - ndtri(fnr_upper))
        forth = np.log(np.maximum(1 - delta - fnr_upper, 0.0)) - np.log(fpr_upper)
        back = np.log(np.maximum(1 - delta - fpr_upper, 0.0)) - np.log(fnr_upper)
    return np.asarray(np.maximum(forth, back))


def _of_law(
    fpr_at: Tail, fnr_at: Tail, at: Floats, trials: int, alpha: float, delta: float | None, law: str
) -> Thresholds:
    n, level = require.count(trials=trials), require.open_probability(alpha=alpha)
    fpr, fnr = np.asarray(fpr_at(at), dtype=float), np.asarray(fnr_at(at), dtype=float)
    limits = [upper_limit(n * rate, n, alpha=level / 2) for rate in (fpr, fnr)]
    shown = best_of_limits(limits[0], limits[1], delta)
    if delta is None:
        with np.errstate(divide="ignore", invalid="ignore"):
            shown = shown / best_of_limits(fpr, fnr, None)
    shown = np.where(np.isfinite(shown), shown, -math.inf)
    # Too few trials to show anything of the claim itself: then both errors alike, for faults that separate further.
    best = np.argmax(shown) if shown.max() > 0 else np.argmin(np.abs(fpr - fnr))
    return Thresholds(values=(float(at[best]),), origin=f"best for claimed scores of {law}, {n} trials")
