"""Distribution of scores, and the power of an audit by trials: the faults that it finds with probability 90%.

The rule counts errors at one threshold: false positives in n0 trials of world 0, false negatives in n1 trials of world
1. Both counts are binomial, so the probability of a rejection under a stated fault is a sum over the rejected counts.
The power does not depend on the outcome of the audit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtr

from accounting.arrays import Floats
from dpfed.audit.statistics.rejection import ErrorCounts, PrivacyProfile, reject_counts


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalMixture:
    """Mixture of normal distributions N(m, 1) in each world, in units of the claimed noise's standard deviation.

    weights, means: probability and mean m of each component.
    own: part of each mean that the client under test adds."""

    weights: tuple[Floats, Floats]
    means: tuple[Floats, Floats]
    own: tuple[Floats, Floats]

    def error_rates(self, threshold: float, noise_short: float = 0.0, too_far: float = 0.0) -> tuple[float, float]:
        """Return P0(score >= threshold) and P1(score < threshold) under a fault.

        noise_short: part by which the noise's standard deviation is below the claimed one. too_far: part by which the
        client moves the release farther than claimed.
        """
        std = max(1 - noise_short, 1e-300)
        below = [
            float((weights * ndtr((threshold - means - too_far * own) / std)).sum())
            for weights, means, own in zip(self.weights, self.means, self.own, strict=True)
        ]
        return 1 - below[0], below[1]


def scores_of_all_clients(mu: float) -> NormalMixture:
    """Return the distribution if all clients take part: N(0, 1) in world 0 and N(mu, 1) in world 1."""
    one, nothing, shift = np.ones(1), np.zeros(1), np.full(1, mu)
    return NormalMixture(weights=(one, one), means=(nothing, shift), own=(nothing, shift))


LIKELY = 0.9
"""Least probability of a rejection at which a fault counts as found."""

A_FIFTH = 0.2
"""Smallest shortfall of the noise's standard deviation, as a part of it, that an audit must be able to find."""

_PLACES = 41
_CELLS = 64
_REACH = 8.0


def threshold_for_short_noise(law: NormalMixture, profile: PrivacyProfile, *, trials: int, alpha: float) -> float:
    """Return the threshold at which noise short by a fifth exceeds `profile` the most, at expected counts.

    It is meant for drawn cohorts, whose worst events are in the tail of the score.
    """
    means = np.concatenate(law.means)
    at = np.linspace(means.min() - 4.0, means.max() + 4.0, _PLACES)
    rates = (law.error_rates(float(threshold), noise_short=A_FIFTH) for threshold in at)
    seen = (ErrorCounts.expected_counts(each, trials=trials) for each in rates)
    return float(at[int(np.argmax([reject_counts(counts, profile, alpha=alpha).excess for counts in seen]))])


@dataclass(frozen=True, kw_only=True)
class Power:
    """Smallest faults that would have been found with probability 90%; None if no fault of the kind would have been.

    noise_short: part by which the noise's standard deviation is too small
    too_far:     part by which the client moves the released vector farther than claimed
    """

    noise_short: float | None
    too_far: float | None

    @property
    def is_sufficient(self) -> bool:
        """True if noise short by a fifth would have been found."""
        return self.noise_short is not None and self.noise_short <= A_FIFTH + 1e-9

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the power."""
        return {"probability": LIKELY, **asdict(self), "enough": self.is_sufficient}

    def as_text(self) -> str:
        """Return text such as "noise short by 12% or a client that moves the release 15% too far, with probability
        90%".
        """
        found = []
        if self.noise_short is not None:
            found.append(f"noise short by {_percent_text(self.noise_short)}")
        if self.too_far is not None:
            found.append(f"a client that moves the release {_percent_text(self.too_far)} too far")
        if not found:
            return "no fault of the noise or of the clip, however large"
        return f"{' or '.join(found)}, with probability {LIKELY:.0%}"


def _percent_text(part: float) -> str:
    return f"{100 * part:.3g}%"


@dataclass(frozen=True, kw_only=True, eq=False)
class RejectionRegion:
    """Rejected counts: at most `false_positives[k]` false positives and `most_negatives[k]` false negatives, for some
    k.

    -1 in `most_negatives` means that no count is rejected. The listed counts are a part of the whole rejection region,
    so that a power computed from them is a lower bound.
    """

    threshold: float
    trials0: int
    trials1: int
    false_positives: NDArray[np.int64]
    most_negatives: NDArray[np.int64]

    @classmethod
    def of_one_threshold(
        cls, profile: PrivacyProfile, law: NormalMixture, *, threshold: float, trials: tuple[int, int], alpha: float
    ) -> RejectionRegion:
        """Return the rejected counts of `rejection.reject_claim` with one threshold. trials: in worlds 0 and 1.

        `law` affects only the false positives at which the region is evaluated most densely.
        """
        cells = _numbers_of_false_positives(trials[0], law.error_rates(threshold)[0])

        def rejected(positives: int, negatives: int) -> bool:
            counts = ErrorCounts.from_counts(positives, negatives, *trials)
            return reject_counts(counts, profile, alpha=alpha).rejected

        most, limits = trials[1], []
        for positives in cells:
            most = _largest_holding(partial(rejected, int(positives)), most)
            limits.append(most)
        return cls(
            threshold=threshold,
            trials0=trials[0],
            trials1=trials[1],
            false_positives=cells,
            most_negatives=np.array(limits),
        )

    def probability(self, law: NormalMixture, **fault: float) -> float:
        """Return a lower bound on the probability of a rejection if scores are distributed as `law` under a fault.

        fault: as of `NormalMixture.error_rates`
        """
        fpr, fnr = (min(max(rate, 0.0), 1.0) for rate in law.error_rates(self.threshold, **fault))
        in_cell = np.diff(_binomial_cdf(self.false_positives, self.trials0, fpr), prepend=0.0)
        return float((in_cell * _binomial_cdf(self.most_negatives, self.trials1, fnr)).sum())


def _binomial_cdf(counts: NDArray[np.int64], trials: int, rate: float) -> NDArray[np.float64]:
    """Return P(Binomial(trials, rate) <= count), 0 for counts below 0."""
    return np.where(counts < 0, 0.0, bdtr(np.maximum(counts, 0).astype(float), trials, rate))


def _numbers_of_false_positives(trials: int, rate: float) -> NDArray[np.int64]:
    """Return numbers of false positives, from 0 to beyond their mean and dense around it."""
    spread = _REACH * (trials * rate * (1 - rate)) ** 0.5 + 1
    low, high = max(0.0, trials * rate - spread), min(float(trials), trials * rate + spread)
    near, far = np.linspace(low, high, _CELLS), np.linspace(0, low, _CELLS // 2)
    return np.unique(np.round(np.concatenate([far, near])).astype(np.int64))


def _largest_holding(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number from 0 to `most` for which `holds` is true; -1 if there is none.

    `holds` is true up to that number and false beyond it. The search steps down from `most`, which is often near the
    result, and then bisects.
    """
    if most < 0 or holds(most):
        return most
    step, high, low = 8, most, most - 8
    while low >= 0 and not holds(low):
        step, high = 2 * step, low
        low = high - step
    low = max(low, -1)
    return low + bisect_left(range(low + 1, high), True, key=lambda count: not holds(count))


def power_of(region: RejectionRegion, law: NormalMixture) -> Power:
    """Return, for `NOISES` and for `MOVES`, the smallest listed fault such that it and all larger ones are found."""
    return Power(
        noise_short=smallest_of_found(NOISES, lambda size: region.probability(law, noise_short=size)),
        too_far=smallest_of_found(MOVES, lambda size: region.probability(law, too_far=size)),
    )


def smallest_of_found(sizes: Sequence[float], probability: Callable[[float], float]) -> float | None:
    """Return the smallest of rising sizes such that it and all larger ones have probability 90%; None without any."""
    found = [*takewhile(lambda size: probability(size) >= LIKELY, reversed(sizes))]
    return found[-1] if found else None


NOISES = tuple(np.round(np.concatenate([np.arange(1, 50) / 200, np.arange(25, 100) / 100]), 4).tolist())
MOVES = tuple(
    np.round(np.concatenate([np.arange(1, 100) / 200, np.arange(10, 100) / 20, np.arange(5, 101)]), 4).tolist()
)
