"""Distribution of scores in the two worlds, if the claim holds or under a stated fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from accounting.arrays import Floats
from accounting.mechanisms import CappedPoissonSampling, Sampling


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


def scores_of_drawn_cohort(
    sampling: Sampling, clients: int, mu: float, out: float, rest: float, expected: float, *, present: bool = False
) -> NormalMixture:
    """Return the distribution for a cohort drawn from `clients` clients, in units of the claimed noise.

    All shifts are along the scored direction.
    mu:   shift by the client under test, if drawn: its contribution in world 1 minus that in world 0
    out:  mean of a cohort without that client, minus that of a cohort in which it acts as in world 0 (fixed size)
    rest: contribution of each other client; the score's origin contains `expected` such contributions (Poisson)
    present: True if world 0 has the client under test, which may then displace another client (Poisson with a cap)
    """
    if sampling.name == "all":
        return scores_of_all_clients(mu)
    q = sampling.probability
    if isinstance(sampling, CappedPoissonSampling):
        return _scores_of_capped_cohort(sampling, clients, mu, rest, expected, present)
    if sampling.name != "poisson":
        weights, beside = np.array([1 - q, q]), np.array([out, 0.0])
        own = np.array([0.0, mu])
        return NormalMixture(weights=(weights, weights), means=(beside, beside + own), own=(0 * own, own))
    others = np.arange(clients)
    chances = np.asarray(binom.pmf(others, clients - 1, q), dtype=np.float64)
    beside = np.asarray(rest * (others - expected), dtype=np.float64)
    return NormalMixture(
        weights=(chances, np.concatenate([(1 - q) * chances, q * chances])),
        means=(beside, np.concatenate([beside, beside + mu])),
        own=(0 * beside, np.concatenate([0 * beside, 0 * beside + mu])),
    )


def _scores_of_capped_cohort(
    sampling: CappedPoissonSampling, clients: int, mu: float, rest: float, expected: float, present: bool
) -> NormalMixture:
    """Return the distribution for Poisson sampling with a cap K: drawn with r others, r + 1 > K, the client is kept
    with probability K/(r+1).
    """
    q, cap, others = sampling.probability, sampling.cap, np.arange(clients)
    chances = np.asarray(binom.pmf(others, clients - 1, q), dtype=np.float64)
    inside = np.minimum(cap / (others + 1), 1.0)
    weights = np.concatenate([(1 - q) * chances, q * chances * (1 - inside), q * chances * inside])
    without, beside = np.minimum(others, cap), np.minimum(others, cap - 1)
    means = np.asarray(rest * (np.concatenate([without, without, beside]) - expected), dtype=np.float64)
    own = np.concatenate([0.0 * others, 0.0 * others, 0.0 * others + mu])
    alone = np.asarray(rest * (without - expected), dtype=np.float64)
    return NormalMixture(
        weights=(weights if present else chances, weights),
        means=(means if present else alone, means + own),
        own=(0 * means if present else 0 * alone, own),
    )
