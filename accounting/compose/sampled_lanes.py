"""Hockey sticks of balls-and-bins in secret lanes by importance sampling with weights that are bounded in closed form.

Column t of C, over noise, is m_t, cut off at the last round; m_t = 0 beyond it. A client has a lane r of L, uniform,
and in each epoch e a bin b of its lane, so that pi has the rounds t = e B + b. Columns of one lane do not overlap. With
v_t = e^(<m_t, x> - |m_t|^2 / 2) the likelihood ratio of the run from noise alone is

    S = (1/L) sum_r prod_e (L/B) sum over b of lane r of v_(e,b),

with weights, tilts and bounds as in `sampled_rests` and `sampled_weights` (docs/theory-participation.md, Theorems 7
and 8), where |m_pi|^2 is the sum of the squared norms of the pattern's columns, exactly, and mbar = (1/B) sum_t m_t.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import scipy

from accounting.arrays import Floats
from accounting.compose.sampled_weights import CHUNK, Pair
from accounting.mechanisms.schedules import BallsAndBins


@dataclass(frozen=True, kw_only=True)
class LanesUnderNoise:
    """Rounds of balls-and-bins in secret lanes, with Gaussian noise in bands, of which z is the fresh noise's."""

    schedule: BallsAndBins
    rounds: int
    noise_multiplier: float
    tilts: ClassVar[tuple[Pair, ...]] = ((0.3, 0.3), (0.6, 0.8), (0.9, 1.2), (1.1, 1.5), (1.5, 1.5))
    order: ClassVar[str] = "a chunk: lanes, bins of all epochs, noise of the first order, noise of the second"
    _columns: Any = field(init=False, repr=False, compare=False)
    _halves: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        epochs = -(-self.rounds // self.schedule.bins)
        offsets = -np.arange(len(self.schedule.coefficients))
        shape = self.rounds, epochs * self.schedule.bins
        bands = [np.full(shape[1], one / self.noise_multiplier) for one in self.schedule.coefficients]
        columns = scipy.sparse.dia_array((np.array(bands), offsets), shape=shape).tocsr()
        object.__setattr__(self, "_columns", columns)
        object.__setattr__(self, "_halves", np.asarray(columns.power(2).sum(axis=0)).ravel() / 2)

    def largest_log(self, tilts: Pair) -> float:
        """Return a logarithm that no likelihood ratio exceeds but by a chance that counts for nothing."""
        tilt, mu = 1 + tilts[0], self.schedule.norm / self.noise_multiplier
        return self.schedule.most_participations(self.rounds) * (2 * (tilt * mu) ** 2 + 16 * tilt * mu)

    def largest_weights(self, epsilon: float, tilts: Pair) -> Pair:
        """Return M and M' for the tilts a and a'."""
        a, other = tilts
        moments = self._by_epoch_and_lane(np.exp((1 + a) * self._halves)[:, None]).prod(axis=0)
        first = a * (math.log(float(moments.mean())) - epsilon) + a * math.log(a) - (1 + a) * math.log1p(a)
        drift = float(self._halves.sum()) / self.schedule.bins - epsilon
        return math.exp(first), math.exp(other * drift + other**2 * float(self._mean @ self._mean) / 2)

    def samples(
        self, generator: np.random.Generator, count: int, tilts: Pair
    ) -> Iterator[tuple[tuple[Floats, Floats], tuple[Floats, Floats]]]:
        """Yield chunks of (log S, log dP/dR) under R, and of (log S, log dQ/dR') under R', `count` in all of each."""
        a, other = tilts
        back = -other * self._mean
        for _ in range(-(-count // CHUNK)):
            x = (1 + a) * (self._columns @ self._patterns(generator))
            x += generator.standard_normal((self.rounds, CHUNK))
            shown = self._columns.T @ x
            ratio, tilted = self._log_ratio(shown, 1.0), self._log_ratio(shown, 1 + a)
            y = generator.standard_normal((self.rounds, CHUNK))
            y += back[:, None]
            shifted = -back @ y + float(back @ back) / 2
            yield (ratio, ratio - tilted), (self._log_ratio(self._columns.T @ y, 1.0), shifted)

    @property
    def _mean(self) -> Floats:
        """mbar: the mean of the run's columns, over noise."""
        return np.asarray(self._columns.sum(axis=1)).ravel() / self.schedule.bins

    def _patterns(self, generator: np.random.Generator) -> Floats:
        """Return the rounds in which clients take part, [epochs times B, CHUNK] of 0 and 1; rounds after T have none of
        the noise."""
        lanes, bins = self.schedule.lanes, self.schedule.bins
        starts = np.arange(0, len(self._halves), bins)
        lane = generator.integers(lanes, size=CHUNK)
        turns = generator.integers(bins // lanes, size=(len(starts), CHUNK))
        found = np.zeros((len(self._halves), CHUNK))
        found[starts[:, None] + lanes * turns + lane, np.arange(CHUNK)] = 1
        return found

    def _by_epoch_and_lane(self, values: Floats) -> Floats:
        """Return means over the bins of each epoch and lane, [epochs, lanes, n], of values [epochs times B, n]."""
        lanes, bins = self.schedule.lanes, self.schedule.bins
        return np.asarray(values.reshape(-1, bins // lanes, lanes, values.shape[1]).mean(axis=1))

    def _log_ratio(self, shown: Floats, tilt: float) -> Floats:
        """Return log E_pi prod over pi of e^(tilt <m_t, x> - tilt^2 |m_t|^2 / 2), of every column of <m_t, x>."""
        values = np.exp(tilt * shown - (tilt * tilt * self._halves)[:, None])
        return np.asarray(np.log(self._by_epoch_and_lane(values).prod(axis=0).mean(axis=0)))
