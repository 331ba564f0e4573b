"""Distribution of the scores of two worlds if the claim holds, or under a stated fault."""

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
    """Fault: noise of (1 - noise_short) of its claimed standard deviation, a move of (1 + too_far) times the claimed
    one.
    """

    noise_short: float = 0.0
    too_far: float = 0.0


HONEST = Deviation()


class ScoreLaw(Protocol):
    """Distribution of scores by the errors of "world 1 from this threshold on"."""

    def errors(self, threshold: float, fault: Deviation = HONEST) -> tuple[float, float]:
        """Return upper bounds on P0(score >= threshold) and P1(score < threshold) under the distribution."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalMixture:
    """Scores in units of the claimed noise: N(m, 1), m one of `means` with its `weights`, in either world.

    own: the part of each mean that is due to the client under test
    """

    weights: tuple[Floats, Floats]
    means: tuple[Floats, Floats]
    own: tuple[Floats, Floats]

    def errors(self, threshold: float, fault: Deviation = HONEST) -> tuple[float, float]:
        std = max(1 - fault.noise_short, 1e-300)
        below = []
        for weights, means, own in zip(self.weights, self.means, self.own, strict=True):
            below.append(float((weights * ndtr((threshold - means - fault.too_far * own) / std)).sum()))
        return 1 - below[0], below[1]

    def reach(self) -> tuple[float, float]:
        """Interval of all means."""
        means = np.concatenate(self.means)
        return float(means.min()), float(means.max())


def plain(mu: float) -> NormalMixture:
    """Return the distribution if all clients take part: N(0, 1) and N(mu, 1)."""
    one, nothing, shift = np.ones(1), np.zeros(1), np.full(1, mu)
    return NormalMixture(weights=(one, one), means=(nothing, shift), own=(nothing, shift))


def drawn(
    sampling: Sampling, clients: int, mu: float, out: float, rest: float, expected: float, *, present: bool = False
) -> NormalMixture:
    """Return the distribution for a drawn cohort of `clients` clients, in units of the claimed noise along the scored
    direction.

    mu:   the client under test in world 1, if it is drawn, minus its part in world 0
    out:  a cohort without it, minus one in which it acts as in world 0 (fixed size)
    rest: the part of each other client; `expected` of them are in the origin of the scores (Poisson)
    present: world 0 has the client under test, so that it may displace another one there, too (Poisson with a cap)
    """
    if sampling.name == "all":
        return plain(mu)
    q = sampling.probability
    if isinstance(sampling, CappedPoissonSampling):
        return _capped(sampling, clients, mu, rest, expected, present)
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


def _capped(
    sampling: CappedPoissonSampling, clients: int, mu: float, rest: float, expected: float, present: bool
) -> NormalMixture:
    """Return the distribution for a cap K: of r others and the client, above K, it is among the K with probability
    K/(r+1).
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
