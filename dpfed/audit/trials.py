"""Trials of pairs of neighbouring inputs: directions of updates, order of calls, and trials and alpha of each pair.

Some directions have entries of equal size, others of uneven size: code that treats entries by their size (quantising,
picking the largest, a norm of some entries) can keep its bound for equal entries and exceed it for uneven entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

CallNumbers = NDArray[np.int64]

Pair = TypeVar("Pair")

CallOutput = TypeVar("CallOutput")

Progress = Callable[[str], object]

_CHUNK = 500

Direction = NDArray[np.float64]

LOUD_NORM = 1e3
"""Norm of loud updates as a multiple of the clip norm: so large that a missing or faulty clip is visible."""

_SMALL = 0.05

_FEW = 8  # "few coordinates" has one entry in 8 that is not zero


def calls_in_random_order(
    call: Callable[[list[int]], list[CallOutput]], count: int, generator: np.random.Generator
) -> Iterator[tuple[CallNumbers, list[CallOutput]]]:
    """Make calls 0 to count - 1 in a random order; yield (numbers, outputs) of at most 500 calls at a time.

    The low numbers are calls of one input, the high numbers those of its neighbour. In a random order, a state, a
    cache or the time, which change from call to call, do not separate the two inputs.
    """
    order = generator.permutation(count)
    for start in range(0, count, _CHUNK):
        chunk = order[start : start + _CHUNK]
        yield chunk, call(chunk.tolist())


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialShare(Generic[Pair]):
    """Trials and error probability (alpha) that one pair has in an audit.

    best: True for the pair whose power is stated. seed: seed of the fair coin flips that choose each trial's input.
    """

    pair: Pair
    trials: int
    alpha: float
    best: bool = False
    seed: int = 0

    @property
    def probability_of_both_worlds(self) -> float:
        """Probability that both inputs of the pair get at least one trial."""
        return 1 - 2.0 ** (1 - self.trials)


def split_trials(
    pairs: Sequence[Pair],
    shown: Sequence[float],
    *,
    trials: int,
    alpha: float,
    seed: int,
    nearly: float,
) -> list[TrialShare[Pair]]:
    """Give the best pair half of the trials and of alpha, and divide the other half equally among the other pairs.

    The best pair gets all trials and all of alpha if the other pairs would have fewer than two trials each.
    shown: separation of each pair, measured without the counted trials. nearly: the best pair is the first whose
    separation is at least this part of the largest.
    """
    best = next(k for k, one in enumerate(shown) if one >= nearly * max(shown))
    others = [pair for k, pair in enumerate(pairs) if k != best]
    part = trials // 2 // len(others) if others else 0
    level = alpha / 2
    if part < 2:
        return [TrialShare(pair=pairs[best], trials=trials, alpha=alpha, best=True, seed=seed)]
    first = TrialShare(pair=pairs[best], trials=trials - part * len(others), alpha=alpha - level, best=True, seed=seed)
    rest = [
        TrialShare(pair=pair, trials=part, alpha=level / len(others), seed=seed + k) for k, pair in enumerate(others, 1)
    ]
    return [first, *rest]


def fixed_signs(size: int) -> Direction:
    """Return [size] entries +1 and -1 from a fixed seed, so without a pattern that code might treat in a
    special way.
    """
    return np.where(np.random.default_rng(7).random(size) < 0.5, 1.0, -1.0)


def layerwise_direction(layers: Sequence[int]) -> Direction:
    """Return a direction [d] with norm 1 in every layer and entries of equal size within it. layers: sizes, sum d."""
    return np.asarray(fixed_signs(sum(layers)) / np.sqrt(np.repeat(np.asarray(layers, dtype=float), layers)))


def uneven_directions(layers: Sequence[int]) -> dict[str, Direction]:
    """Return directions [d] of norm 1 with entries of different size, by name. layers: sizes of the layers, sum d."""
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
        "a spike beside small entries": fixed_signs(size) * spike,
        "Gaussian entries": normal,
        "entries by a power law": fixed_signs(size) * power,
        "few coordinates": fixed_signs(size) * few,
        "the first layer only": fixed_signs(size) * first,
        "the last layer only": fixed_signs(size) * last,
    }
    return {name: row / np.linalg.norm(row) for name, row in found.items()}
