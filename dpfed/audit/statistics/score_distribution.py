"""Distribution of scores in the two worlds, if the claim holds or under a stated fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from accounting.arrays import Floats


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """Fault: noise has (1 - noise_short) of its claimed std; the client moves the release (1 + too_far)
    times as far.
    """

    noise_short: float = 0.0
    too_far: float = 0.0


HONEST = Deviation()


class ScoreDistribution(Protocol):
    """Distribution of scores, given by the error rates of threshold tests."""

    def error_rates(self, threshold: float, fault: Deviation = HONEST) -> tuple[float, float]:
        """Return upper bounds on P0(score >= threshold) and P1(score < threshold) under the distribution."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalMixture:
    """Mixture of normal distributions N(m, 1) in each world, in units of the claimed noise's standard deviation.

    weights, means: probability and mean m of each component.
    own: part of each mean that the client under test adds."""

    weights: tuple[Floats, Floats]
    means: tuple[Floats, Floats]
    own: tuple[Floats, Floats]

    def error_rates(self, threshold: float, fault: Deviation = HONEST) -> tuple[float, float]:
        std = max(1 - fault.noise_short, 1e-300)
        below = []
        for weights, means, own in zip(self.weights, self.means, self.own, strict=True):
            below.append(float((weights * ndtr((threshold - means - fault.too_far * own) / std)).sum()))
        return 1 - below[0], below[1]

    def range_of_means(self) -> tuple[float, float]:
        """Return the smallest and the largest mean of a component, over both worlds."""
        means = np.concatenate(self.means)
        return float(means.min()), float(means.max())


def scores_of_all_clients(mu: float) -> NormalMixture:
    """Return the distribution if all clients take part: N(0, 1) in world 0 and N(mu, 1) in world 1."""
    one, nothing, shift = np.ones(1), np.zeros(1), np.full(1, mu)
    return NormalMixture(weights=(one, one), means=(nothing, shift), own=(nothing, shift))
