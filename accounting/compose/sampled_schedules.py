"""Importance sampling for the hockey-stick divergences of secret schedules, with bounded weights.

Let m_t be column t of C over the noise, pi the client's rounds, and v_t = e^(<m_t, x> - |m_t|^2 / 2), for columns that
do not overlap within pi. The likelihood ratio of the run against noise alone is S = E_pi prod_(t in pi) v_t. For
a, a' > 0 and gamma = e^epsilon >= 1 (docs/theory-participation.md, Theorems 7 and 8):

    H_gamma(P || Q) = E_R  (1 - gamma/S)_+ dP/dR,    R = E_pi N((1+a) m_pi, I),    weights <= M
    H_gamma(Q || P) = E_R' (1 - gamma S)_+ dQ/dR',   R' = N(-a' mbar, I),          weights <= M'
    M = (E e^((1+a) |m_pi|^2 / 2) e^-epsilon)^a a^a / (1+a)^(1+a),    M' = e^(a' (E |m_pi|^2 / 2 - epsilon) + a'^2
    |mbar|^2 / 2),    mbar = E m_pi.

A schedule enters by three functions of its distribution: a draw of pi, E_pi prod_(t in pi) v_t, and Pr[t in pi].
The expectation of weights in [0, M] is at most mean + sqrt(2 mean_square l / n) + 2 M l / n, l = log(2/beta), from n
samples, except with probability beta.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import scipy

from accounting.arrays import Floats
from accounting.mechanisms import BallsAndBins, MinSeparation

CHUNK = 5_000
"""Number of samples in a chunk. Changing it changes the samples of a seed."""
ROUNDING = 1e-12
"""Bound on rounding errors as a share of the largest weight, added to every mean."""

Pair = tuple[float, float]
Chunk = tuple[tuple[Floats, Floats], tuple[Floats, Floats]]
"""(log S, log dP/dR) under R, and (log S, log dQ/dR') under R'."""


@dataclass(frozen=True)
class SecretLanes:
    """Distribution of one round of each epoch, uniform among those of a uniform secret lane.

    turns: number of rounds that are drawn, at least those of the run. mean_product: E_pi prod_(t in pi) of
    every column of values [turns, n].
    """

    schedule: BallsAndBins
    tilts: ClassVar = ((0.3, 0.3), (0.6, 0.8), (0.9, 1.2), (1.1, 1.5), (1.5, 1.5))
    order: ClassVar = "a chunk: lanes, bins of all epochs, noise of the first order, noise of the second"

    @property
    def probability(self) -> float:
        return 1 / self.schedule.bins

    def turns(self, rounds: int) -> int:
        return -(-rounds // self.schedule.bins) * self.schedule.bins

    def draw(self, generator: np.random.Generator, turns: int) -> Floats:
        """Return sampled participations as 0 and 1. Shape: [turns, CHUNK]."""
        lanes, bins = self.schedule.lanes, self.schedule.bins
        starts = np.arange(0, turns, bins)
        lane = generator.integers(lanes, size=CHUNK)
        places = generator.integers(bins // lanes, size=(len(starts), CHUNK))
        found = np.zeros((turns, CHUNK))
        found[starts[:, None] + lanes * places + lane, np.arange(CHUNK)] = 1
        return found

    def mean_product(self, values: Floats) -> Floats:
        lanes, bins = self.schedule.lanes, self.schedule.bins
        of_lanes = values.reshape(-1, bins // lanes, lanes, values.shape[1]).mean(axis=1).prod(axis=0)
        return np.asarray(of_lanes.mean(axis=0))


@dataclass(frozen=True)
class Rests:
    """Distribution of a renewal chain, stationary from the first round on."""

    schedule: MinSeparation
    tilts: ClassVar = ((0.3, 0.2), (0.5, 0.2), (0.7, 0.2), (1.0, 0.2))
    order: ClassVar = "a chunk: patterns, noise of the first order, noise of the second"

    @property
    def probability(self) -> float:
        return self.schedule.probability

    def turns(self, rounds: int) -> int:
        return rounds

    def draw(self, generator: np.random.Generator, turns: int) -> Floats:
        rest, p = self.schedule.separation, self.schedule.probability
        uniforms = generator.random((turns + 1, CHUNK))
        free_from = np.where(uniforms[0] < (rest - 1) * p, np.ceil(uniforms[0] / p), 0.0)
        found = np.zeros((turns, CHUNK))
        for number in range(turns):
            participates = (free_from <= number) & (uniforms[number + 1] < self.schedule.coin)
            found[number] = participates
            free_from[participates] = number + rest
        return found

    def mean_product(self, values: Floats) -> Floats:
        rest, p, c, turns = self.schedule.separation, self.schedule.probability, self.schedule.coin, len(values)
        taking_part = values * c
        free = np.full(values.shape[1], 1 - (rest - 1) * p)
        for number in range(turns):
            taking_part[number] *= free
            free = free * (1 - c)
            free += taking_part[number + 1 - rest] if number + 1 >= rest else p
        resting = taking_part[max(turns - rest + 1, 0) :].sum(axis=0) if rest > 1 else 0.0
        return np.asarray(free + resting + p * max(rest - 1 - turns, 0))


@dataclass(frozen=True, kw_only=True)
class ScheduleUnderNoise:
    """Rounds of a secret schedule under banded Gaussian noise; noise_multiplier is that of the fresh noise."""

    schedule: BallsAndBins | MinSeparation
    rounds: int
    noise_multiplier: float
    _law: Any = field(init=False, repr=False, compare=False)
    _columns: Any = field(init=False, repr=False, compare=False)
    _half_squared_norms: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        law = SecretLanes(self.schedule) if isinstance(self.schedule, BallsAndBins) else Rests(self.schedule)
        turns, coefficients = law.turns(self.rounds), getattr(self.schedule, "coefficients", (1.0,))
        bands = np.array([np.full(turns, one / self.noise_multiplier) for one in coefficients])
        columns = scipy.sparse.dia_array((bands, -np.arange(len(bands))), shape=(self.rounds, turns)).tocsr()
        object.__setattr__(self, "_law", law)
        object.__setattr__(self, "_columns", columns)
        object.__setattr__(self, "_half_squared_norms", np.asarray(columns.power(2).sum(axis=0)).ravel() / 2)

    @property
    def tilts(self) -> tuple[Pair, ...]:
        return tuple(self._law.tilts)

    @property
    def order(self) -> str:
        return str(self._law.order)

    def largest_log(self, tilts: Pair) -> float:
        """Return a bound on the logarithm of likelihood ratios that is exceeded with negligible probability."""
        reach = (1 + tilts[0]) * math.sqrt(2 * float(self._half_squared_norms.max()))
        return self.schedule.most_participations(self.rounds) * (2 * reach**2 + 16 * reach)

    def largest_weights(self, epsilon: float, tilts: Pair) -> Pair:
        """Return M and M' for the tilts a and a'."""
        a, other = tilts
        moment = float(self._law.mean_product(np.exp((1 + a) * self._half_squared_norms)[:, None])[0])
        first = a * (math.log(moment) - epsilon) + a * math.log(a) - (1 + a) * math.log1p(a)
        drift = float(self._half_squared_norms.sum()) * self._law.probability - epsilon
        return math.exp(first), math.exp(other * drift + other**2 * float(self._mean_column @ self._mean_column) / 2)

    def samples(self, generator: np.random.Generator, count: int, tilts: Pair) -> Iterator[Chunk]:
        """Yield chunks of pairs (log S, log dP/dR) under R, and (log S, log dQ/dR') under R'. All chunks together
        have at least `count` samples.
        """
        a, other = tilts
        reverse_shift = -other * self._mean_column
        for _ in range(-(-count // CHUNK)):
            x = (1 + a) * (self._columns @ self._law.draw(generator, self._columns.shape[1]))
            x += generator.standard_normal((self.rounds, CHUNK))
            products = self._columns.T @ x
            ratio, tilted = self._log_ratio(products, 1.0), self._log_ratio(products, 1 + a)
            y = generator.standard_normal((self.rounds, CHUNK))
            y += reverse_shift[:, None]
            shifted = -reverse_shift @ y + float(reverse_shift @ reverse_shift) / 2
            yield (ratio, ratio - tilted), (self._log_ratio(self._columns.T @ y, 1.0), shifted)

    @property
    def _mean_column(self) -> Floats:
        """Vector mbar: the sum of the columns over the noise, times the probability of each."""
        return np.asarray(np.asarray(self._columns.sum(axis=1)).ravel() * self._law.probability)

    def _log_ratio(self, products: Floats, tilt: float) -> Floats:
        """Return log E_pi prod_(t in pi) e^(tilt <m_t, x> - tilt^2 |m_t|^2 / 2) for every column of products."""
        values = np.exp(tilt * products - (tilt * tilt * self._half_squared_norms)[:, None])
        return np.asarray(np.log(self._law.mean_product(values)))


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Number, sums and sums of squares of the weights in both orders."""

    count: int
    totals: Pair
    squares: Pair

    @classmethod
    def of(cls, chunks: Iterable[Chunk], epsilon: float) -> "Sums":
        """Return the sums over all samples of these chunks."""
        totals, squares, count = np.zeros(2), np.zeros(2), 0
        for chunk in chunks:
            weights = weights_at(chunk, epsilon)
            totals += [one.sum() for one in weights]
            squares += [float(one @ one) for one in weights]
            count += CHUNK
        return cls(count=count, totals=(totals[0], totals[1]), squares=(squares[0], squares[1]))

    def bounds(self, largest: Pair, failure: float, count: int | None = None) -> Pair:
        """Return upper bounds on both hockey-stick divergences; the probability that one of them fails is at most
        `failure`.

        count: number of samples of a later verification with these means, for calibration
        """
        n, log = count or self.count, math.log(4 / failure)
        found = []
        for total, square, largest_weight in zip(self.totals, self.squares, largest, strict=True):
            mean, mean_square = total / self.count, square / self.count
            slack = math.sqrt(2 * mean_square * log / n) + 2 * largest_weight * log / n
            found.append(mean + slack + ROUNDING * largest_weight)
        return found[0], found[1]


def sampled_sums(
    run: ScheduleUnderNoise, generator: np.random.Generator, count: int, epsilon: float, tilts: Pair
) -> Sums:
    """Return the sums of at least `count` weights at `epsilon` in each order; the number is a multiple of `CHUNK`."""
    return Sums.of(run.samples(generator, count, tilts), epsilon)


def weights_at(chunk: Chunk, epsilon: float) -> tuple[Floats, Floats]:
    """Return the weights (1 - gamma/S)_+ dP/dR and (1 - gamma S)_+ dQ/dR' of a chunk of `samples`."""
    (ratio, forth), (other, back) = chunk
    return (
        np.asarray(np.maximum(-np.expm1(epsilon - ratio), 0.0) * np.exp(np.minimum(forth, 700.0))),
        np.asarray(np.maximum(-np.expm1(np.minimum(epsilon + other, 1.0)), 0.0) * np.exp(back)),
    )
