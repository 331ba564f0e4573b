"""Windows that contain all probabilities of a coordinate of a sum, one for each cell of public probabilities.

Proofs: docs/theory-bernoulli.md, Theorem 7.
"""

import math
from dataclasses import dataclass

from accounting import require

ROUNDED = 2.0**-23
"""Margin above the rounding error of a probability in float32, by which windows and moves are widened."""

_NEAR_WORST = (1.004, 1.01, 1.02, 1.04, 1.08)
_MOST_WINDOWS = 18  # largest number of windows; each takes at least a quarter of a second
_SMALLEST_STEP = 1e-3


@dataclass(frozen=True, kw_only=True)
class Window:
    """Interval [low, high] of all probabilities of a coordinate. A move of 1 in the clip's metric changes a
    probability by `stretch`.
    """

    low: float
    high: float
    stretch: float = 1.0
    mirrored: bool = False
    """True if the window is its own mirror image, so that moves down from `high` equal moves up from `low`."""


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """Bounds on the probabilities of each coordinate of a sum.

    coins:  number of Bernoulli samples, including the moving one
    floor:  c; every probability is in [c, 1 - c]
    largest_distance: of any probability of the sum from the public probability, in the metric; None: unbounded
    move:   largest distance of the two neighbours' probabilities of the moving sample, in the metric
    reference: the public probability, if it is one number for all coordinates and rounds; None: any in [c, 1 - c]
    fisher: True for the metric |p - theta| / sqrt(theta (1 - theta)), theta the public probability; else |p - theta|
    """

    coins: int
    floor: float
    largest_distance: float | None
    move: float
    fisher: bool = False
    reference: float | None = None

    def __post_init__(self) -> None:
        require.count(coins=self.coins)
        require.positive(move=self.move)


def windows(coordinates: Coordinates) -> list[Window]:
    """Return windows that contain every configuration of a coordinate, up to exchanging ones and zeros.

    With `largest_distance` the public probability theta in [c, 1/2] is covered by cells [a, b]; the window of a cell is
    [max(c, a - r), min(1 - c, b + r)]. Distance r and stretch are those at b, where both are largest.
    """
    c = coordinates.floor * (1 - 1e-12) - ROUNDED if coordinates.floor > 2 * ROUNDED else coordinates.floor / 2
    if coordinates.largest_distance is None:
        return [Window(low=c, high=1 - c, stretch=0.5 if coordinates.fisher else 1.0, mirrored=True)]
    if coordinates.reference is not None:
        theta = min(coordinates.reference, 1 - coordinates.reference)
        return [_window_of_cell(coordinates, c, theta, theta)]
    worst = max(
        _information_in_cell(coordinates, c, theta, theta)
        for theta in _probability_grid(c, coordinates.largest_distance)
    )
    for tolerance in _NEAR_WORST:
        found = _covering_windows(coordinates, c, tolerance * worst)
        if len(found) <= _MOST_WINDOWS:
            break
    return found


def _covering_windows(coordinates: Coordinates, c: float, largest_information: float) -> list[Window]:
    found, a = [], c
    while a < 0.5:
        b = _cell_end(coordinates, c, a, largest_information)
        found.append(_window_of_cell(coordinates, c, a, b))
        a = b
    return found


def _probability_grid(c: float, reach: float) -> list[float]:
    """Return a grid of public probabilities, one of which has nearly the largest weight."""
    return [c + (0.5 - c) * k / 400 for k in range(401)] + [min(c + reach * k / 40, 0.5) for k in range(41)]


def _window_of_cell(coordinates: Coordinates, c: float, a: float, b: float) -> Window:
    assert coordinates.largest_distance is not None
    stretch = math.sqrt(b * (1 - b)) * (1 + 1e-12) if coordinates.fisher else 1.0
    reach = coordinates.largest_distance * stretch + ROUNDED
    return Window(low=max(c, a - reach), high=min(1 - c, b + reach), stretch=stretch)


def _information_in_cell(coordinates: Coordinates, c: float, a: float, b: float) -> float:
    """Return approximately the information of a small move in a cell: its squared stretch over the smallest
    Bernoulli variance.
    """
    window = _window_of_cell(coordinates, c, a, b)
    return window.stretch**2 / (window.low * (1 - window.low))


def _cell_end(coordinates: Coordinates, c: float, a: float, largest_information: float) -> float:
    """Return the far end of a cell that begins at a. The cell is as wide as its weight allows, but narrow relative
    to its probabilities.
    """
    assert coordinates.largest_distance is not None
    narrow, wide = min(0.5, a + _SMALLEST_STEP * a), min(0.5, a + max(coordinates.largest_distance * 0.5, a / 2))
    if _information_in_cell(coordinates, c, a, wide) <= largest_information:
        return wide
    for _ in range(20):
        middle = (narrow + wide) / 2
        narrow, wide = (
            (middle, wide)
            if _information_in_cell(coordinates, c, a, middle) <= largest_information
            else (narrow, middle)
        )
    return narrow
