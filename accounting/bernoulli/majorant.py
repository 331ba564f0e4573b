"""Certified suprema: least concave majorants by duality, and branch and bound over boxes.

For every slope s, phi^(u) <= s u + sup over v of phi(v) - s v.
"""

import math
from collections.abc import Callable

import numpy as np

from accounting.arrays import Floats, Ints

Certified = Callable[[Floats, Floats, int], Floats]
"""Function (slopes, tolerances, most boxes) -> an upper bound on sup over all moves t of phi(t^2) - slope t^2."""

# Increases of the slope, coarse to fine, and the most boxes of a search. For nearly linear phi, certifying its own
# slope never ends; every room gives a valid bound, a finer one a tighter bound if it ends in time.
ROOMS = ((1e-2, 400_000), (3e-3, 30_000), (1e-3, 30_000), (1e-4, 15_000))


def bound(step: float, t: Floats, phi: Floats, certified: Certified, rooms: tuple[tuple[float, int], ...]) -> Floats:
    """Return upper bounds on the least concave majorants at `step`, for problems with phi [problems, n] at moves t [n].

    Valid for any `phi`: it only proposes the slope, `certified` proves the bound. t from `sample_steps`.
    """
    sampled = _slope_at(t * t, phi, step)
    best = np.full(len(phi), np.inf)
    for room, most in rooms:
        slope = sampled * (1 + room)
        beyond = certified(slope, slope * step * room / 4, most)
        best = np.minimum(best, slope * step + beyond)
        if np.any(beyond > slope * step * room):  # ended early; a finer room would too
            break
    return best


def sample_steps(step: float, farthest: float, count: int) -> Floats:
    """Return rising moves up to `farthest`, denser towards 0, with sqrt(step) among them."""
    here = min(math.sqrt(step), farthest)
    return np.unique(np.concatenate([np.geomspace(here / 30, farthest, count)[:-1], [here, farthest]]))


def _slope_at(u: Floats, phi: Floats, step: float) -> Floats:
    """Return slopes at `step` of the least concave majorants of phi [problems, n], sampled at rising u [n] with `step`.

    Any slope gives a valid bound; this one is tight for dense samples.
    """
    u = np.concatenate([[0.0], u])
    phi = np.concatenate([np.zeros((len(phi), 1)), phi], axis=1)
    here = int(np.argmin(np.abs(u - step)))
    # The majorant at `step` is its highest chord; any slope between those of the neighbouring chords supports it.
    run = u[None, here + 1 :] - u[:here, None]
    rise = phi[:, None, here + 1 :] - phi[:, :here, None]
    chords = phi[:, :here, None] + rise / run * (step - u[:here, None])
    height = np.maximum(phi[:, here], chords.reshape(len(phi), -1).max(axis=1, initial=0.0))
    before = np.min((height[:, None] - phi[:, :here]) / (step - u[:here]), axis=1)
    after = np.max((phi[:, here + 1 :] - height[:, None]) / (u[here + 1 :] - step), axis=1, initial=0.0)
    return np.asarray(np.maximum((before + after) / 2, 1e-300))


def above_chord(alpha: Floats, slope: Floats, t0: Floats, t1: Floats, f0: Floats, f1: Floats) -> Floats:
    """Return sup over [t0, t1] of log(1 + F) / (alpha - 1) - slope t^2 for the chord F from f0 to f1, concave in t."""
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
    """Return an upper bound on the supremum over its boxes, for each of many problems at once.

    `evaluate` returns, for each box, a number not below the function anywhere in it, and the function at some point of
    it (or -infinity). A box is dropped if its bound is within the problem's `tolerance` of the best value; the others
    are halved along the dimension with the largest of `widths` [n, k]. Direction of error: upper bound always; looser
    if `rounds` or `most` boxes end the search early.
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
