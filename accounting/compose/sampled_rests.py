"""Importance sampling for the hockey-stick divergences of schedules with rests (`min-separation`), with bounded
weights.

Let pi be the client's rounds, s = 1/noise, N = |pi|, v_t = e^(s x_t - s^2/2), and S = E_pi prod v_t the likelihood
ratio of the run against noise alone. For a, a' > 0 and gamma = e^epsilon >= 1 (docs/theory-participation.md, Theorem
7):

    H_gamma(P || Q) = E_R  (1 - gamma/S)_+ dP/dR,    R = E_pi N((1+a) s 1_pi, I),    weights <= M
    H_gamma(Q || P) = E_R' (1 - gamma S)_+ dQ/dR',   R' = N(-a' s p 1, I),           weights <= M'
    M = (E e^((1+a) N s^2/2) e^-epsilon)^a a^a / (1+a)^(1+a),    M' = e^(a' (E N s^2/2 - epsilon) + a'^2 T p^2 s^2/2).

Means are bounded as in `sampled_weights`. S is the last value of a renewal chain, so computing a sample takes T steps.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from accounting.arrays import Floats
from accounting.compose.sampled_weights import CHUNK, Pair
from accounting.compose.shown_schedules import counts_distribution
from accounting.mechanisms.schedules import MinSeparation


@dataclass(frozen=True, kw_only=True)
class RestsUnderNoise:
    """Rounds of a schedule with rests, under independent Gaussian noise of multiplier 1/s."""

    schedule: MinSeparation
    rounds: int
    noise_multiplier: float
    tilts: ClassVar[tuple[Pair, ...]] = ((0.3, 0.2), (0.5, 0.2), (0.7, 0.2), (1.0, 0.2))
    order: ClassVar[str] = "a chunk: patterns, noise of the first order, noise of the second"
    _counts: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_counts", counts_distribution(self.schedule, self.rounds))

    def largest_log(self, tilts: Pair) -> float:
        """Return a bound on the logarithm of likelihood ratios that is exceeded with negligible probability."""
        s = 1 / self.noise_multiplier
        return self.schedule.most_participations(self.rounds) * (2 * s * s + 16 * s)

    def largest_weights(self, epsilon: float, tilts: Pair) -> Pair:
        """Return M and M' for the tilts a and a'."""
        a, other = tilts
        s, numbers, p = 1 / self.noise_multiplier, np.arange(len(self._counts)), self.schedule.probability
        moment = math.log(float((self._counts * np.exp((1 + a) * numbers * s * s / 2)).sum()))
        first = a * (moment - epsilon) + a * math.log(a) - (1 + a) * math.log1p(a)
        drift = float((self._counts * numbers).sum()) * s * s / 2 - epsilon
        return math.exp(first), math.exp(other * drift + other**2 * self.rounds * (p * s) ** 2 / 2)

    def samples(
        self, generator: np.random.Generator, count: int, tilts: Pair
    ) -> Iterator[tuple[tuple[Floats, Floats], tuple[Floats, Floats]]]:
        """Yield chunks of pairs (log S, log dP/dR) under R, and (log S, log dQ/dR') under R'. All chunks together
        have at least `count` samples.
        """
        a, other = tilts
        s, shape = 1 / self.noise_multiplier, (self.rounds, CHUNK)
        reverse_shift = -other * s * self.schedule.probability
        for _ in range(-(-count // CHUNK)):
            taking_part = self._sampled_participations(generator)
            x = generator.standard_normal(shape)
            x += (1 + a) * s * taking_part
            ratio, tilted = self._log_ratio(x, s), self._log_ratio(x, (1 + a) * s)
            y = generator.standard_normal(shape)
            y += reverse_shift
            shifted = -reverse_shift * y.sum(axis=0) + self.rounds * reverse_shift * reverse_shift / 2
            yield (ratio, ratio - tilted), (self._log_ratio(y, s), shifted)

    def _sampled_participations(self, generator: np.random.Generator) -> Floats:
        """Return sampled participations as 0 and 1, stationary from the first round on. Shape: [T, CHUNK]."""
        rest, p = self.schedule.separation, self.schedule.probability
        uniforms = generator.random((self.rounds + 1, CHUNK))
        free_from = np.where(uniforms[0] < (rest - 1) * p, np.ceil(uniforms[0] / p), 0.0)
        found = np.zeros((self.rounds, CHUNK))
        for number in range(self.rounds):
            participates = (free_from <= number) & (uniforms[number + 1] < self.schedule.coin)
            found[number] = participates
            free_from[participates] = number + rest
        return found

    def _log_ratio(self, x: Floats, shift: float) -> Floats:
        """Return log E_pi prod_(t in pi) e^(shift x_t - shift^2/2) for every column of x [T, CHUNK]."""
        rest, p, c = self.schedule.separation, self.schedule.probability, self.schedule.coin
        taking_part = np.exp(shift * x - shift * shift / 2)
        taking_part *= c
        free = np.full(x.shape[1], 1 - (rest - 1) * p)
        for number in range(self.rounds):
            taking_part[number] *= free
            free = free * (1 - c)
            free += taking_part[number + 1 - rest] if number + 1 >= rest else p
        resting = taking_part[max(self.rounds - rest + 1, 0) :].sum(axis=0) if rest > 1 else 0.0
        return np.asarray(np.log(free + resting + p * max(rest - 1 - self.rounds, 0)))
