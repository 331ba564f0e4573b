"""Certified upper bounds on suprema: least concave majorants by duality, and branch and bound over boxes.

Duality: the least concave majorant phi^ satisfies phi^(u) <= s u + sup over v of (phi(v) - s v) for every slope s.
"""

import math
from collections.abc import Callable

import numpy as np

from accounting.arrays import Floats, Ints

Certified = Callable[[Floats, Floats, int], Floats]
"""Function (slopes, tolerances, largest number of boxes) -> upper bounds on sup over all moves t of phi(t^2) - slope
t^2.
"""

# Pairs (relative increase of the slope, largest number of boxes of a search), from coarse to fine. For nearly linear
# phi, certifying its exact slope does not terminate. Every increase gives a valid bound, smaller ones a tighter bound.
SLOPE_INCREASES = ((1e-2, 400_000), (3e-3, 30_000), (1e-3, 30_000), (1e-4, 15_000))


def majorant_bound(
    step: float, t: Floats, phi: Floats, certified: Certified, increases: tuple[tuple[float, int], ...]
) -> Floats:
    """Return upper bounds on the least concave majorants at `step`, from samples phi [problems, n] at moves t [n].

    The bound is valid for any `phi`, which only proposes the slope; `certified` proves the bound. t: from
    `sample_steps`.
    """
    sampled = _slope_at(t * t, phi, step)
    best = np.full(len(phi), np.inf)
    for increase, most in increases:
        slope = sampled * (1 + increase)
        beyond = certified(slope, slope * step * increase / 4, most)
        best = np.minimum(best, slope * step + beyond)
        if np.any(beyond > slope * step * increase):  # the search ended early; that of a smaller increase would, too
            break
    return best


def sample_steps(step: float, farthest: float, count: int) -> Floats:
    """Return increasing moves up to `farthest`, denser towards 0, that contain sqrt(step)."""
    middle_move = min(math.sqrt(step), farthest)
    return np.unique(np.concatenate([np.geomspace(middle_move / 30, farthest, count)[:-1], [middle_move, farthest]]))


def _slope_at(u: Floats, phi: Floats, step: float) -> Floats:
    """Return slopes at `step` of the least concave majorants of phi [problems, n], sampled at increasing u [n] that
    contain `step`.

    Every slope gives a valid bound; these slopes give a tight bound for dense samples.
    """
    u = np.concatenate([[0.0], u])
    phi = np.concatenate([np.zeros((len(phi), 1)), phi], axis=1)
    middle_index = int(np.argmin(np.abs(u - step)))
    # The majorant at `step` is the highest chord there; every slope between those of the adjacent chords supports it.
    run = u[None, middle_index + 1 :] - u[:middle_index, None]
    rise = phi[:, None, middle_index + 1 :] - phi[:, :middle_index, None]
    chords = phi[:, :middle_index, None] + rise / run * (step - u[:middle_index, None])
    height = np.maximum(phi[:, middle_index], chords.reshape(len(phi), -1).max(axis=1, initial=0.0))
    before = np.min((height[:, None] - phi[:, :middle_index]) / (step - u[:middle_index]), axis=1)
    after = np.max((phi[:, middle_index + 1 :] - height[:, None]) / (u[middle_index + 1 :] - step), axis=1, initial=0.0)
    return np.asarray(np.maximum((before + after) / 2, 1e-300))


def second_order_bound(alpha: Floats, slope: Floats, weight: Floats, t0: Floats, t1: Floats) -> Floats:
    """Return the largest log(1 + alpha (alpha - 1) weight t^2) / (alpha - 1) - slope t^2 for moves t in [t0, t1];
    infinite if the weight is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        w = alpha * (alpha - 1) * weight
        stationary = 1 / ((alpha - 1) * slope) - 1 / w
        u = np.clip(np.where(np.isnan(stationary), np.inf, stationary), t0 * t0, t1 * t1)
        value = np.log1p(w * u) / (alpha - 1) - slope * u
    return np.asarray(np.where(np.isfinite(w), value, np.inf))


def supremum_above_chord(alpha: Floats, slope: Floats, t0: Floats, t1: Floats, f0: Floats, f1: Floats) -> Floats:
    """Return sup over t in [t0, t1] of log(1 + F(t)) / (alpha - 1) - slope t^2, F the chord from f0 at t0 to f1 at
    t1.
    """
    beta = alpha - 1
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        rise = (f1 - f0) / np.where(t1 > t0, t1 - t0, 1.0)
        at_zero, square = 1 + f0 - rise * t0, 2 * rise * rise / (slope * beta)
        root = np.sqrt(at_zero * at_zero + square)
        best = np.where(at_zero > 0, rise / (slope * beta) / (at_zero + root), (root - at_zero) / (2 * rise))
        t = np.clip(np.where(np.isnan(best), t1, best), t0, t1)
        value = np.log1p(f0 + rise * (t - t0)) / beta - slope * t * t
    return np.where(np.isfinite(square), value * (1 + 1e-12 * np.sign(value)), np.inf)


BoxFunction = Callable[[Ints, Floats, Floats], tuple[Floats, Floats]]
"""Function (problem [n], low corners [n, k], high corners [n, k]) -> (upper bounds [n], attained values [n])."""


def certified_supremum(
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
    """Return for each problem an upper bound on the supremum of a function over the problem's boxes, by branch and
    bound.

    `evaluate` returns for each box an upper bound on the function in the box, and a value of the function in the box
    (or -infinity). A box is dropped if its bound is within the problem's `tolerance` of the best value. The remaining
    boxes are halved along the dimension with the largest of `widths` [n, k].
    Direction of error: upper bound; it is looser if `rounds` or `most` boxes end the search early.
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
        low, high = _halved_boxes(low, high, np.argmax(widths(low, high), axis=1))
        problem = np.concatenate([problem, problem])
    np.maximum.at(settled, problem, evaluate(problem, low, high)[0])
    return np.asarray(np.maximum(settled, best))


def _halved_boxes(low: Floats, high: Floats, axis: Ints) -> tuple[Floats, Floats]:
    rows = np.arange(len(low))
    middle = (low[rows, axis] + high[rows, axis]) / 2
    left_high, right_low = high.copy(), low.copy()
    left_high[rows, axis] = middle
    right_low[rows, axis] = middle
    return np.concatenate([low, right_low]), np.concatenate([left_high, high])
