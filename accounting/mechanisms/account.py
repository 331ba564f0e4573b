"""What is known of one kind of release; `mechanisms.kinds` says where each kind's account is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Account:
    """What `accounting.compose` asks of a kind of release; None where nothing is known. All are upper bounds.

    renyi:   (orders, release) -> Renyi divergences, unsampled, in both orders of the worlds, over all neighbours
    sampled: (orders, release, sampling) -> the same of a sampled round; infinite at orders without a bound
    orders:  where each order takes a search of its own: the orders to look at, unsampled, and all sampled
    twin:    (release, count) -> a Gaussian, and how far off: each of `count` releases has laws within e^±that of
             post-processings of the Gaussian. So it has the Gaussian's loss law and lower bound is none of its own
    above:   (release, in_clips, lost) -> mu of a Gaussian pair N(mu), N(0): for neighbours that lie at most `in_clips`
             clips apart, gamma >= 0 and both orders of the worlds, H_gamma of the release is at most H_gamma of that
             pair plus `lost`; None where no such mu is known. It is about pairs of worlds: accounts that look at three
             vectors at once do not follow
    words:   (release, closeness) -> what a reader should know of the twin, `closeness` that of the whole run
    exact:   (release, rounds, delta) -> epsilon by the exact law; `exact_fits`: (release, rounds) -> whether it can
    """

    renyi: Callable[[Floats, Any], Floats]
    sampled: Callable[[Floats, Any, Any], Floats] | None = None
    orders: tuple[Floats, Floats] | None = None
    twin: Callable[[Any, int], tuple[Any, float]] | None = None
    above: Callable[[Any, float, float], float | None] | None = None
    words: Callable[[Any, float], str] | None = None
    exact: Callable[[Any, int, float], float] | None = None
    exact_fits: Callable[[Any, int], bool] = lambda release, rounds: False
