"""Windows of the probabilities in a sum, one for each cell of public probabilities.

Proofs: docs/theory-bernoulli.md, Theorem 7.
"""

import math
from dataclasses import dataclass

from accounting import require

ROUNDED = 2.0**-23
"""Margin above the rounding of a probability to float32: windows and moves are widened by it."""

_NEAR_WORST = (1.004, 1.01, 1.02, 1.04, 1.08)
_MANY = 18  # windows; each takes a quarter of a second or more
_SMALLEST_STEP = 1e-3


@dataclass(frozen=True, kw_only=True)
class Window:
    """Interval [low, high] of all probabilities of a coordinate; a move of 1 in the clip's metric moves a probability
    by `stretch`.
    """

    low: float
    high: float
    stretch: float = 1.0
    mirrored: bool = False
    """True if the window is its own mirror image, so that moves down from `high` are moves up from `low`."""


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """Bounds on the probabilities of each coordinate of a sum.

    coins:  number of Bernoulli samples, the moving one included
    floor:  c; every probability is in [c, 1 - c]
    reach:  largest distance of any probability of the sum from the public one, in the metric; None: anywhere
    move:   largest distance of the two neighbours' probabilities of the moving sample, in the metric
    reference: the public probability, if it is known to be one number; None: anywhere in [c, 1 - c]
    fisher: True for the metric |p - theta| / sqrt(theta (1 - theta)), theta the public probability; else |p - theta|
    """

    coins: int
    floor: float
    reach: float | None
    move: float
    fisher: bool = False
    reference: float | None = None

    def __post_init__(self) -> None:
        require.count(coins=self.coins)
        require.positive(move=self.move)


def windows(at: Coordinates) -> list[Window]:
    """Return windows that hold every configuration of a coordinate, up to exchanging heads and tails.

    With `reach` the public probability theta in [c, 1/2] is covered by cells [a, b]; the window of a cell is [max(c, a
    - r), min(1 - c, b + r)], r the reach at b, and its stretch that at b, where both are largest.
    """
    c = at.floor * (1 - 1e-12) - ROUNDED if at.floor > 2 * ROUNDED else at.floor / 2
    if at.reach is None:
        return [Window(low=c, high=1 - c, stretch=0.5 if at.fisher else 1.0, mirrored=True)]
    if at.reference is not None:
        theta = min(at.reference, 1 - at.reference)
        return [_window(at, c, theta, theta)]
    worst = max(_weight(at, c, theta, theta) for theta in _points(c, at.reach))
    for near in _NEAR_WORST:
        found = _covering_window(at, c, near * worst)
        if len(found) <= _MANY:
            break
    return found


def _covering_window(at: Coordinates, c: float, heaviest: float) -> list[Window]:
    found, a = [], c
    while a < 0.5:
        b = _end(at, c, a, heaviest)
        found.append(_window(at, c, a, b))
        a = b
    return found


def _points(c: float, reach: float) -> list[float]:
    """Return public probabilities, one of which nearly has the largest weight."""
    return [c + (0.5 - c) * k / 400 for k in range(401)] + [min(c + reach * k / 40, 0.5) for k in range(41)]


def _window(at: Coordinates, c: float, a: float, b: float) -> Window:
    assert at.reach is not None
    stretch = math.sqrt(b * (1 - b)) * (1 + 1e-12) if at.fisher else 1.0
    reach = at.reach * stretch + ROUNDED
    return Window(low=max(c, a - reach), high=min(1 - c, b + reach), stretch=stretch)


def _weight(at: Coordinates, c: float, a: float, b: float) -> float:
    """Return nearly the information of a small move in a cell: its squared stretch over the least Bernoulli
    variance.
    """
    window = _window(at, c, a, b)
    return window.stretch**2 / (window.low * (1 - window.low))


def _end(at: Coordinates, c: float, a: float, heaviest: float) -> float:
    """Return the far end of a cell from a: as wide as its weight allows, and not wide against the probabilities in
    it.
    """
    assert at.reach is not None
    narrow, wide = min(0.5, a + _SMALLEST_STEP * a), min(0.5, a + max(at.reach * 0.5, a / 2))
    if _weight(at, c, a, wide) <= heaviest:
        return wide
    for _ in range(20):
        middle = (narrow + wide) / 2
        narrow, wide = (middle, wide) if _weight(at, c, a, middle) <= heaviest else (narrow, middle)
    return narrow
