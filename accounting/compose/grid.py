"""Epsilon of sampled Gaussian rounds for arrays of settings, as for tables, heat maps and searches."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from accounting import require
from accounting.arrays import Floats, Ints
from accounting.compose import rdp
from accounting.compose.rdp import Conversion
from accounting.errors import InvalidParameter
from accounting.gaussian import sampled_renyi

Sampling = Literal["poisson", "fixed"]
_CURVES = {"poisson": sampled_renyi.poisson_renyi, "fixed": sampled_renyi.fixed_size_renyi}


def epsilons(
    sampling_probability: ArrayLike,
    noise_multiplier: ArrayLike,
    rounds: ArrayLike,
    delta: ArrayLike,
    *,
    sampling: Sampling = "poisson",
    orders: ArrayLike = rdp.ORDERS,
    conversion: Conversion = "improved",
) -> Floats:
    """Return the smallest epsilon over `orders` of T rounds at delta for each cell; the arguments broadcast.

    Claim: T adaptive rounds with sampling probability q, vectors of norm at most C and noise sigma C are (epsilon,
    delta)-DP, with `sampling` poisson for add-remove and zero-out neighbours (`gaussian.sampled_renyi`), with fixed (q
    = cohort / clients) for replace-one and zero-out (`gaussian.sampled_renyi`). Each cell equals `compose.rdp`, up to
    rounding. Only about twelve orders of a cell are computed. T (alpha-1) rho(alpha) is convex in alpha (for fixed
    sizes its bound is convex except at large q), and the conversion adds (alpha-1) log(alpha-1) - alpha log alpha - log
    delta. So epsilon(alpha) decreases and then increases, and Fibonacci search finds its minimum.
    Direction of error: upper bound for every set of orders, even if the search misses the minimum.
    Errors: InvalidParameter for values outside the domain or shapes that do not broadcast.
    """
    if sampling not in _CURVES:
        raise InvalidParameter(f"sampling={sampling!r}: must be one of {', '.join(_CURVES)}.")
    alpha = np.unique(np.atleast_1d(rdp.checked_orders(orders)))
    try:
        cells = np.broadcast_arrays(
            *(np.asarray(given, dtype=float) for given in (sampling_probability, noise_multiplier, rounds, delta))
        )
    except (TypeError, ValueError):
        raise InvalidParameter(
            "sampling_probability, noise_multiplier, rounds, delta: must be numbers, or arrays whose shapes broadcast."
        ) from None
    q, sigma, count, target = (cell.ravel() for cell in cells)
    _require_domains(count, target)

    def epsilon_at(index: Ints) -> Floats:
        a = alpha[np.minimum(index, len(alpha) - 1)]
        rho = count * _CURVES[sampling](a, sampling_probability=q, noise_multiplier=sigma)
        return np.where(index < len(alpha), rdp.converted(a, rho, target, conversion), np.inf)

    # A bound by total variation alone is attained at the first order.
    first = epsilon_at(np.zeros(len(q), dtype=int))
    least = np.minimum(first, _fibonacci_minimum(epsilon_at, cells=len(q), length=len(alpha)))
    return np.asarray(np.maximum(least, 0.0).reshape(cells[0].shape))


def _require_domains(rounds: Floats, delta: Floats) -> None:
    whole = (rounds >= 1) & (rounds <= require.LARGEST_COUNT) & (rounds == np.round(rounds))
    if not whole.all():
        raise InvalidParameter(f"rounds={rounds[~whole][0]:g}: must be integers from 1 to {require.LARGEST_COUNT:.0e}.")
    inside = (delta > 0) & (delta < 1)
    if not inside.all():
        raise InvalidParameter(f"delta={delta[~inside][0]}: must be numbers strictly between 0 and 1.")


def _fibonacci_minimum(epsilon_at: Callable[[Ints], Floats], *, cells: int, length: int) -> Floats:
    """Return the minimum of at(0), ..., at(length - 1) in each cell by Fibonacci search, for values that decrease
    and then increase.
    """
    shorter, longer = 1, 2
    while shorter + longer <= length:
        shorter, longer = longer, shorter + longer
    low = np.full(cells, -1)  # the minimum is strictly between `low` and low + shorter + longer
    left, right = epsilon_at(low + shorter), epsilon_at(low + longer)
    while longer > 2:
        shorter, longer = longer - shorter, shorter
        leftwards = left <= right
        low = np.where(leftwards, low, low + longer)
        new = epsilon_at(np.where(leftwards, low + shorter, low + longer))
        left, right = np.where(leftwards, new, right), np.where(leftwards, left, new)
    return np.minimum(left, right)
