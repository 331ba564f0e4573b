"""Importance sampling for the hockey-stick divergences of balls-and-bins in secret lanes, with bounded weights.

Let m_t be column t of C over the noise, truncated at the last round; m_t = 0 for later t. A client has a uniform lane r
of L, and in each epoch e a uniform bin b of its lane, so pi consists of the rounds t = e B + b. Columns of one lane do
not overlap. With v_t = e^(<m_t, x> - |m_t|^2 / 2) the likelihood ratio of the run against noise alone is

    S = (1/L) sum_r prod_e (L/B) sum over b of lane r of v_(e,b),

Weights, tilts and bounds are as in `sampled_rests` and `sampled_weights` (docs/theory-participation.md, Theorems 7 and
8). Here |m_pi|^2 is exactly the sum of the squared norms of the columns of pi, and mbar = (1/B) sum_t m_t.
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
    """Rounds of balls-and-bins in secret lanes, under banded Gaussian noise; noise_multiplier is that of the fresh
    noise.
    """

    schedule: BallsAndBins
    rounds: int
    noise_multiplier: float
    tilts: ClassVar[tuple[Pair, ...]] = ((0.3, 0.3), (0.6, 0.8), (0.9, 1.2), (1.1, 1.5), (1.5, 1.5))
    order: ClassVar[str] = "a chunk: lanes, bins of all epochs, noise of the first order, noise of the second"
    _columns: Any = field(init=False, repr=False, compare=False)
    _half_squared_norms: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        epochs = -(-self.rounds // self.schedule.bins)
        offsets = -np.arange(len(self.schedule.coefficients))
        shape = self.rounds, epochs * self.schedule.bins
        bands = [np.full(shape[1], one / self.noise_multiplier) for one in self.schedule.coefficients]
        columns = scipy.sparse.dia_array((np.array(bands), offsets), shape=shape).tocsr()
        object.__setattr__(self, "_columns", columns)
        object.__setattr__(self, "_half_squared_norms", np.asarray(columns.power(2).sum(axis=0)).ravel() / 2)

    def largest_log(self, tilts: Pair) -> float:
        """Return a bound on the logarithm of likelihood ratios that is exceeded with negligible probability."""
        tilt, mu = 1 + tilts[0], self.schedule.norm / self.noise_multiplier
        return self.schedule.most_participations(self.rounds) * (2 * (tilt * mu) ** 2 + 16 * tilt * mu)

    def largest_weights(self, epsilon: float, tilts: Pair) -> Pair:
        """Return M and M' for the tilts a and a'."""
        a, other = tilts
        moments = self._means_by_epoch_and_lane(np.exp((1 + a) * self._half_squared_norms)[:, None]).prod(axis=0)
        first = a * (math.log(float(moments.mean())) - epsilon) + a * math.log(a) - (1 + a) * math.log1p(a)
        drift = float(self._half_squared_norms.sum()) / self.schedule.bins - epsilon
        return math.exp(first), math.exp(other * drift + other**2 * float(self._mean_column @ self._mean_column) / 2)

    def samples(
        self, generator: np.random.Generator, count: int, tilts: Pair
    ) -> Iterator[tuple[tuple[Floats, Floats], tuple[Floats, Floats]]]:
        """Yield chunks of pairs (log S, log dP/dR) under R, and (log S, log dQ/dR') under R'. All chunks together
        have at least `count` samples.
        """
        a, other = tilts
        reverse_shift = -other * self._mean_column
        for _ in range(-(-count // CHUNK)):
            x = (1 + a) * (self._columns @ self._sampled_participations(generator))
            x += generator.standard_normal((self.rounds, CHUNK))
            products = self._columns.T @ x
            ratio, tilted = self._log_ratio(products, 1.0), self._log_ratio(products, 1 + a)
            y = generator.standard_normal((self.rounds, CHUNK))
            y += reverse_shift[:, None]
            shifted = -reverse_shift @ y + float(reverse_shift @ reverse_shift) / 2
            yield (ratio, ratio - tilted), (self._log_ratio(self._columns.T @ y, 1.0), shifted)

    @property
    def _mean_column(self) -> Floats:
        """Vector mbar: the sum of the columns over the noise, divided by the number of bins."""
        return np.asarray(self._columns.sum(axis=1)).ravel() / self.schedule.bins

    def _sampled_participations(self, generator: np.random.Generator) -> Floats:
        """Return sampled participations as 0 and 1, in whole epochs; columns after round T are 0. Shape: [epochs
        times B, CHUNK].
        """
        lanes, bins = self.schedule.lanes, self.schedule.bins
        starts = np.arange(0, len(self._half_squared_norms), bins)
        lane = generator.integers(lanes, size=CHUNK)
        turns = generator.integers(bins // lanes, size=(len(starts), CHUNK))
        found = np.zeros((len(self._half_squared_norms), CHUNK))
        found[starts[:, None] + lanes * turns + lane, np.arange(CHUNK)] = 1
        return found

    def _means_by_epoch_and_lane(self, values: Floats) -> Floats:
        """Return means of values [epochs times B, n] over the bins of each epoch and lane. Shape: [epochs, lanes,
        n].
        """
        lanes, bins = self.schedule.lanes, self.schedule.bins
        return np.asarray(values.reshape(-1, bins // lanes, lanes, values.shape[1]).mean(axis=1))

    def _log_ratio(self, products: Floats, tilt: float) -> Floats:
        """Return log E_pi prod_(t in pi) e^(tilt <m_t, x> - tilt^2 |m_t|^2 / 2) for every column of products <m_t,
        x>.
        """
        values = np.exp(tilt * products - (tilt * tilt * self._half_squared_norms)[:, None])
        return np.asarray(np.log(self._means_by_epoch_and_lane(values).prod(axis=0).mean(axis=0)))
