"""Upper bounds on hockey-stick divergences from sampled, bounded weights, shared by `sampled_rests` and
`sampled_lanes`.

The expectation of weights in [0, M] is at most mean + sqrt(2 mean_square l / n) + 2 M l / n, l = log(2/beta), from n
samples, except with probability beta (docs/theory-participation.md, Theorem 7).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from accounting.arrays import Floats
from accounting.mechanisms.schedules import Schedule

CHUNK = 5_000
"""Number of samples in a chunk. Changing it changes the samples of a seed."""
ROUNDING = 1e-12
"""Bound on rounding errors as a share of the largest weight, added to every mean."""

Pair = tuple[float, float]
Chunk = tuple[tuple[Floats, Floats], tuple[Floats, Floats]]
"""(log S, log dP/dR) under R, and (log S, log dQ/dR') under R'."""


class SampledRun(Protocol):
    """Rounds of a schedule under Gaussian noise, whose dominating pair (Theorem 4) is sampled."""

    @property
    def schedule(self) -> Schedule: ...

    @property
    def rounds(self) -> int: ...

    @property
    def noise_multiplier(self) -> float: ...

    @property
    def tilts(self) -> tuple[Pair, ...]:
        """Candidate pairs of tilts (a, a') for the calibration."""
        ...

    @property
    def order(self) -> str:
        """Description of the order of random draws in a chunk."""
        ...

    def largest_log(self, tilts: Pair) -> float:
        """Return a bound on the logarithm of likelihood ratios that is exceeded with negligible probability."""
        ...

    def largest_weights(self, epsilon: float, tilts: Pair) -> Pair:
        """Return M and M' for the tilts a and a'."""
        ...

    def samples(self, generator: np.random.Generator, count: int, tilts: Pair) -> Iterator[Chunk]:
        """Yield chunks of `CHUNK` samples; all chunks together have at least `count` samples."""
        ...


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Number, sums and sums of squares of the weights in both orders."""

    count: int
    totals: Pair
    squares: Pair

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


def sampled_sums(run: SampledRun, generator: np.random.Generator, count: int, epsilon: float, tilts: Pair) -> Sums:
    """Return the sums of at least `count` weights at `epsilon` in each order; the number is a multiple of `CHUNK`."""
    first, squares, number_of_samples = np.zeros(2), np.zeros(2), 0
    for chunk in run.samples(generator, count, tilts):
        number_of_samples += CHUNK
        weights = weights_at(chunk, epsilon)
        first += [one.sum() for one in weights]
        squares += [float(one @ one) for one in weights]
    return Sums(count=number_of_samples, totals=(first[0], first[1]), squares=(squares[0], squares[1]))


def weights_at(chunk: Chunk, epsilon: float) -> tuple[Floats, Floats]:
    """Return the weights (1 - gamma/S)_+ dP/dR and (1 - gamma S)_+ dQ/dR' of a chunk of `samples`."""
    (ratio, forth), (other, back) = chunk
    return (
        np.asarray(np.maximum(-np.expm1(epsilon - ratio), 0.0) * np.exp(np.minimum(forth, 700.0))),
        np.asarray(np.maximum(-np.expm1(np.minimum(epsilon + other, 1.0)), 0.0) * np.exp(back)),
    )
