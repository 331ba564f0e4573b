"""Trials of pairs of neighbouring inputs: directions, the order of calls, and the part of each pair in an audit.

Directions are even and uneven: a rule that treats entries by their size (quantising, picking the largest, a norm of
some entries only) can keep its bound for entries of equal size and exceed it for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

Pair = TypeVar("Pair")

Seen = TypeVar("Seen")

Progress = Callable[[str], object]

PLENTY = 2_000
"""Trials of a pair beside the best one from which on more trials would find no more of the faults of that pair."""

_CHUNK = 500

Direction = NDArray[np.float64]

LOUD = 1e3
"""Norm of loud updates over the clip norm: far beyond any clip, so that the clip is under test."""

_SMALL = 0.05

_FEW = 8  # one entry in this number


def in_drawn_order(
    call: Callable[[list[int]], list[Seen]], count: int, generator: np.random.Generator
) -> Iterator[tuple[Ids, list[Seen]]]:
    """Yield the numbers and outputs of calls 0 to count - 1, at most 500 at a time, in an order that is drawn.

    Numbers below some limit are of one input, all others of its neighbour. In a drawn order, whatever changes from call
    to call (a state, a cache, the time) does not separate the two inputs.
    """
    order = generator.permutation(count)
    for start in range(0, count, _CHUNK):
        chunk = order[start : start + _CHUNK]
        yield chunk, call(chunk.tolist())


@dataclass(frozen=True, kw_only=True, eq=False)
class Share(Generic[Pair]):
    """Part of a pair in the trials and in the error probability of an audit.

    best: the pair whose power is stated. seed: of the fair Bernoulli samples that choose the input of each trial
    """

    pair: Pair
    trials: int
    alpha: float
    best: bool = False
    seed: int = 0

    @property
    def both_seen(self) -> float:
        """Probability that both inputs get a trial."""
        return 1 - 2.0 ** (1 - self.trials)


def split(
    pairs: Sequence[Pair],
    shown: Sequence[float],
    *,
    trials: int,
    alpha: float,
    seed: int,
    nearly: float,
    plenty: int | None = None,
) -> list[Share[Pair]]:
    """Return half of the trials and of alpha for the pair that shows the most, the rest in equal parts for the others.

    The best pair has all of both if the others had fewer than two trials each. shown: measured without the counted
    trials. nearly: the first pair that shows this part of the largest is the best. plenty: trials beyond these go to
    the best pair, and then nine tenths of alpha, as the other pairs are for gross faults.
    """
    best = next(k for k, one in enumerate(shown) if one >= nearly * max(shown))
    others = [pair for k, pair in enumerate(pairs) if k != best]
    part = trials // 2 // len(others) if others else 0
    level = alpha / 2
    if plenty is not None and part >= plenty:
        part, level = plenty, alpha / 10
    if part < 2:
        return [Share(pair=pairs[best], trials=trials, alpha=alpha, best=True, seed=seed)]
    first = Share(pair=pairs[best], trials=trials - part * len(others), alpha=alpha - level, best=True, seed=seed)
    rest = [Share(pair=pair, trials=part, alpha=level / len(others), seed=seed + k) for k, pair in enumerate(others, 1)]
    return [first, *rest]


def signs(size: int) -> Direction:
    """Return entries +1 and -1 without a pattern that code might treat in a special way; equal in every call."""
    return np.where(np.random.default_rng(7).random(size) < 0.5, 1.0, -1.0)


def equal_in_every_layer(layers: Sequence[int]) -> Direction:
    """Return entries of equal size within a layer, norm 1 in every layer. layers: their sizes, which sum to d."""
    return np.asarray(signs(sum(layers)) / np.sqrt(np.repeat(np.asarray(layers, dtype=float), layers)))


def uneven(layers: Sequence[int]) -> dict[str, Direction]:
    """Return directions [d] of norm 1 with entries of different size, by name. layers: their sizes, which sum to d."""
    size = sum(layers)
    drawn = np.random.default_rng(11)
    order, normal = drawn.permutation(size), drawn.standard_normal(size)
    spike = np.full(size, _SMALL)
    spike[order[0]] = 1.0
    power, few = np.empty(size), np.zeros(size)
    power[order] = 1.0 / np.arange(1, size + 1)
    few[order[: max(2, size // _FEW)]] = 1.0
    first, last = np.zeros(size), np.zeros(size)
    first[: layers[0]], last[size - layers[-1] :] = 1.0, 1.0
    found = {
        "a spike beside small entries": signs(size) * spike,
        "Gaussian entries": normal,
        "entries by a power law": signs(size) * power,
        "few coordinates": signs(size) * few,
        "the first layer only": signs(size) * first,
        "the last layer only": signs(size) * last,
    }
    return {name: row / np.linalg.norm(row) for name, row in found.items()}
