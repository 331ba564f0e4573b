"""Trials of pairs of neighbouring inputs: the order of their calls, and each pair's part of the audit."""

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

    best: the pair whose power is stated. seed: of the fair coins that choose the input of each trial
    """

    pair: Pair
    trials: int
    alpha: float
    best: bool = False
    seed: int = 0

    @property
    def both_seen(self) -> float:
        """Probability that the coins of the trials do not all fall alike."""
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
