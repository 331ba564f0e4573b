"""Banded Toeplitz factorisations of prefix sums: coefficients, sensitivity, error."""

import math

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.errors import InvalidParameter
from accounting.gaussian.half_lines import Floats


def square_root(bands: int) -> Floats:
    """The first `bands` coefficients of the square root of the matrix of prefix sums, c_j = c_(j-1) (2j - 1) / 2j.

    (1 - x)^(-1/2), whose square is 1 / (1 - x) (Fichtenberger, Henzinger, Upadhyay 2023). bands = 1: independent noise.
    Positive and non-increasing. Shape: [bands].
    """
    j = np.arange(1, require.count(bands=bands), dtype=float)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def sensitivity(coefficients: ArrayLike, *, rounds: int, separation: int, participations: int | None = None) -> float:
    """L2 sensitivity of C x in clip norms: at most `participations` of a client, `separation` rounds apart or more.

    sens^2 = |sum over i of column i * separation of C|^2, over as many i as there is room for: the largest over all
    patterns. With G(s, t) the product of columns s and t, G falls in max(s, t) and in |s - t|, since c does not
    increase; the i-th participation is in round i * separation or later, the i-th and j-th are |i - j| * separation
    apart or more; and all products are >= 0, so that updates that point the same way are the worst. Adjacency: zero-out
    and add-remove; twice that for replace-one. Error: exact to rounding. Errors: InvalidParameter for coefficients that
    are negative or increase.
    """
    c = _checked(coefficients)[: require.count(rounds=rounds)]
    gap = require.count(separation=separation)
    most = -(-rounds // gap)
    times = most if participations is None else min(require.count(participations=participations), most)
    column = np.zeros(rounds)
    for start in range(0, times * gap, gap):
        column[start : start + len(c)] += c[: rounds - start]
    return float(np.linalg.norm(column))


def prefix_error(coefficients: ArrayLike, *, rounds: int) -> float:
    """Root mean square, over rounds, of the noise in x_1 + ... + x_t for z of variance 1: |A C^-1|_F / sqrt(T).

    Independent noise: sqrt((T + 1) / 2). Error: rounding.
    """
    noise = np.cumsum(inverse(coefficients, rounds=rounds))
    return math.sqrt(float((np.cumsum(noise * noise)).mean()))


def inverse(coefficients: ArrayLike, *, rounds: int) -> Floats:
    """The first column of C^-1: what of a round's fresh noise comes back in the rounds after it. Shape: [rounds]."""
    c = _checked(coefficients)
    found = np.zeros(require.count(rounds=rounds))
    found[0] = 1.0
    for t in range(1, rounds):
        past = found[max(t - len(c) + 1, 0) : t][::-1]
        found[t] = -float(past @ c[1 : len(past) + 1])
    return found


def _checked(coefficients: ArrayLike) -> Floats:
    c = np.asarray(coefficients, dtype=float)
    if c.ndim != 1 or not c.size or c[0] != 1 or np.any(np.diff(c) > 0) or np.any(c < 0) or not np.isfinite(c).all():
        raise InvalidParameter(
            "coefficients: must be a list that begins with 1 and does not increase, of numbers of at least 0."
        )
    return c
