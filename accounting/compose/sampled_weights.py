"""Upper bounds of hockey sticks from sampled weights that are bounded: what `sampled_rests` and `sampled_lanes` share.

Means of n weights in [0, M] are below  mean + sqrt(2 mean_square l / n) + 2 M l / n, l = log(2/beta), but for a chance
beta (docs/theory-participation.md, Theorem 7).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from accounting.arrays import Floats
from accounting.mechanisms.schedules import Schedule

CHUNK = 5_000
"""Samples that are drawn at a time; a part of what a seed means."""
ROUNDING = 1e-12
"""Share of the largest weight that rounding may hide, charged to every mean."""

Pair = tuple[float, float]
Chunk = tuple[tuple[Floats, Floats], tuple[Floats, Floats]]
"""(log S, log dP/dR) under R, and (log S, log dQ/dR') under R'."""


class SampledRun(Protocol):
    """Rounds of a schedule under Gaussian noise, as the pair of Theorem 4 that is sampled."""

    @property
    def schedule(self) -> Schedule: ...

    @property
    def rounds(self) -> int: ...

    @property
    def noise_multiplier(self) -> float: ...

    @property
    def tilts(self) -> tuple[Pair, ...]:
        """Pairs of tilts a, a' that a calibration chooses from."""
        ...

    @property
    def order(self) -> str:
        """Order in which a chunk draws."""
        ...

    def largest_log(self, tilts: Pair) -> float:
        """Return a logarithm that no likelihood ratio exceeds but by a chance that counts for nothing."""
        ...

    def largest_weights(self, epsilon: float, tilts: Pair) -> Pair:
        """Return M and M' for the tilts a and a'."""
        ...

    def samples(self, generator: np.random.Generator, count: int, tilts: Pair) -> Iterator[Chunk]:
        """Yield chunks of `CHUNK` samples, `count` or more in all."""
        ...


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Number, sum and sum of squares of the weights of both orders."""

    count: int
    first: Pair
    squares: Pair

    def bounds(self, largest: Pair, failure: float, count: int | None = None) -> Pair:
        """Return upper bounds of both hockey sticks; one of them fails with a chance of at most `failure`.

        count: samples of a run to come that has these means, for calibration
        """
        n, log = count or self.count, math.log(4 / failure)
        found = []
        for total, square, most in zip(self.first, self.squares, largest, strict=True):
            mean, mean_square = total / self.count, square / self.count
            slack = math.sqrt(2 * mean_square * log / n) + 2 * most * log / n
            found.append(mean + slack + ROUNDING * most)
        return found[0], found[1]


def sums_of(run: SampledRun, generator: np.random.Generator, count: int, epsilon: float, tilts: Pair) -> Sums:
    """Return the sums of `count` weights, rounded up to whole chunks, of each order at `epsilon`."""
    first, squares, drawn = np.zeros(2), np.zeros(2), 0
    for chunk in run.samples(generator, count, tilts):
        drawn += CHUNK
        weights = weights_at(chunk, epsilon)
        first += [one.sum() for one in weights]
        squares += [float(one @ one) for one in weights]
    return Sums(count=drawn, first=(first[0], first[1]), squares=(squares[0], squares[1]))


def weights_at(chunk: Chunk, epsilon: float) -> tuple[Floats, Floats]:
    """Return the weights (1 - gamma/S)_+ dP/dR and (1 - gamma S)_+ dQ/dR' of a chunk of `samples`."""
    (ratio, forth), (other, back) = chunk
    return (
        np.asarray(np.maximum(-np.expm1(epsilon - ratio), 0.0) * np.exp(np.minimum(forth, 700.0))),
        np.asarray(np.maximum(-np.expm1(np.minimum(epsilon + other, 1.0)), 0.0) * np.exp(back)),
    )
