"""Root finding and bisection without scipy.optimize, whose import is slow."""

import math
from bisect import bisect_left
from collections.abc import Callable


def brentq(
    function: Callable[[float], float], low: float, high: float, *, xtol: float, rtol: float, maxiter: int = 500
) -> float:
    """Return x between `low` and `high` with function(x) = 0, by the method of Brent.

    R. P. Brent, Algorithms for Minimization Without Derivatives, 1973, chapter 4: inverse quadratic interpolation, and
    bisection where that does not shrink the bracket. The steps are those of `scipy.optimize.brentq`, in the same order
    of operations: results are equal to the last bit. Error: at most xtol + rtol |x|.

    Errors: ValueError if the function has the same sign at both ends or is nan; RuntimeError after `maxiter` steps.
    """
    before, now = low, high
    value_before, value = _checked_value(function, before), _checked_value(function, now)
    if value_before == 0:
        return before
    if value == 0:
        return now
    if (value_before < 0) == (value < 0):
        raise ValueError(f"no sign change: {value_before} at {low}, {value} at {high}.")
    other = value_other = step = step_before = 0.0
    for _ in range(maxiter):
        if value_before != 0 and value != 0 and (value_before < 0) != (value < 0):
            other, value_other = before, value_before
            step = step_before = now - before
        if abs(value_other) < abs(value):
            before, now, other = now, other, now
            value_before, value, value_other = value, value_other, value
        least = (xtol + rtol * abs(now)) / 2
        half = (other - now) / 2
        if value == 0 or abs(half) < least:
            return now
        tried = math.inf
        if abs(step_before) > least and abs(value) < abs(value_before):
            tried = _interpolation_step((before, value_before), (now, value), (other, value_other))
        short = 2 * abs(tried) < min(abs(step_before), 3 * abs(half) - least)
        step_before, step = (step, tried) if short else (half, half)
        before, value_before = now, value
        now += step if abs(step) > least else math.copysign(least, half)
        value = _checked_value(function, now)
    raise RuntimeError(f"no root to {xtol} after {maxiter} steps from [{low}, {high}].")


def _interpolation_step(before: tuple[float, float], now: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the step to the zero of the secant, or of the inverse parabola; infinite if it has none."""
    (x_before, y_before), (x, y), (x_other, y_other) = before, now, other
    try:
        if x_before == x_other:
            return -y * (x - x_before) / (y - y_before)
        slope, slope_other = (y_before - y) / (x_before - x), (y_other - y) / (x_other - x)
        return -y * (y_other * slope_other - y_before * slope) / (slope_other * slope * (y_other - y_before))
    except ZeroDivisionError:
        return math.inf


def _checked_value(function: Callable[[float], float], x: float) -> float:
    value = float(function(x))
    if math.isnan(value):
        raise ValueError(f"the function is nan at {x}.")
    return value


def smallest_passing(passes: Callable[[int], bool]) -> int:
    """Return the smallest integer n >= 1 that passes a monotone test, by doubling and then bisection."""
    high = 1
    while not passes(high):
        high *= 2
    low = high // 2 + 1
    return low + bisect_left(range(low, high), True, key=passes)


def bisected_bracket(passes: Callable[[float], bool], low: float, high: float, *, rtol: float) -> tuple[float, float]:
    """Return a bracket within [low, high] of relative width at most `rtol`. A monotone test must fail at `low` and pass
    at `high`.

    The test fails at the first point of the bracket and passes at the second.
    """
    while high - low > rtol * high:
        middle = (low + high) / 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return low, high


def crossing_bracket(
    passes: Callable[[float], bool], first: float, *, rtol: float, limit: float, growth: float = 2.0
) -> tuple[float, float]:
    """Return a bracket around the point above 0 from which on a monotone test passes, as `bisected_bracket` does.

    The second point is infinite if `first`, multiplied by `growth` repeatedly, exceeds `limit` before the test passes.
    """
    low, high = 0.0, first
    while not passes(high):
        low, high = high, growth * high
        if high > limit:
            return low, math.inf
    return bisected_bracket(passes, low, high, rtol=rtol)
