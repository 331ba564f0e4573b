"""The largest value of a function over boxes, bounded from above: not sampled, certified."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BoxFunction = Callable[[Ints, Floats, Floats], tuple[Floats, Floats]]
"""(problem [n], low corners [n, k], high corners [n, k]) -> (upper bounds [n], attained values [n])."""


def supremum(
    evaluate: BoxFunction,
    low: Floats,
    high: Floats,
    *,
    problem: Ints,
    tolerance: Floats,
    widths: Callable[[Floats, Floats], Floats],
    rounds: int = 60,
    most: int = 400_000,
) -> Floats:
    """For each of many problems at once, an upper bound on the supremum over its boxes.

    `evaluate` gives, for each box, a number not below the function anywhere in it, and the function at some point of it
    (or -infinity). A box is dropped when its bound is within the problem's `tolerance` of the best value; the others
    are halved along the dimension with the largest of `widths` [n, k]. Direction of error: upper bound always, also
    where `rounds` or `most` boxes end the search early; then it is looser.
    """
    best = np.full(len(tolerance), -np.inf)
    settled = np.full(len(tolerance), -np.inf)
    for _ in range(rounds):
        upper, attained = evaluate(problem, low, high)
        np.maximum.at(best, problem, attained)
        open_ = upper > best[problem] + tolerance[problem]
        np.maximum.at(settled, problem[~open_], upper[~open_])
        if not open_.any() or open_.sum() > most:
            np.maximum.at(settled, problem[open_], upper[open_])
            return np.asarray(np.maximum(settled, best))
        problem, low, high, upper = problem[open_], low[open_], high[open_], upper[open_]
        low, high = _halved(low, high, np.argmax(widths(low, high), axis=1))
        problem = np.concatenate([problem, problem])
    np.maximum.at(settled, problem, evaluate(problem, low, high)[0])
    return np.asarray(np.maximum(settled, best))


def _halved(low: Floats, high: Floats, axis: Ints) -> tuple[Floats, Floats]:
    rows = np.arange(len(low))
    middle = (low[rows, axis] + high[rows, axis]) / 2
    left_high, right_low = high.copy(), low.copy()
    left_high[rows, axis] = middle
    right_low[rows, axis] = middle
    return np.concatenate([low, right_low]), np.concatenate([left_high, high])
