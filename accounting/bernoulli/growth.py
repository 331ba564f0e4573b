"""Growth of the divergence of sums of Bernoulli samples of which one moves, over windows of public probabilities.

A window contains all probabilities of a coordinate of a sum, one window for each cell of public probabilities. The
table is for `bernoulli.certificate`:

    G(alpha, tau) = sup of 2 (sum P^alpha Q^(1-alpha) - 1) / (tau^2 alpha (alpha - 1))

The sup is over all configurations of a coordinate and both orders. P and Q are the distributions of the sum for the two
probabilities of the moving sample, at distance tau. Proofs: docs/theory-bernoulli.md, Theorem 7.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import scipy

from accounting.arrays import Floats

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
    reach = coordinates.largest_distance  # one of these probabilities has nearly the largest weight
    grid = [c + (0.5 - c) * k / 400 for k in range(401)] + [min(c + reach * k / 40, 0.5) for k in range(41)]
    worst = max(_information_in_cell(coordinates, c, theta, theta) for theta in grid)
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
        is_narrow = _information_in_cell(coordinates, c, a, middle) <= largest_information
        narrow, wide = (middle, wide) if is_narrow else (narrow, middle)
    return narrow


_MARGIN = 1 + 1e-8
_NOT_SMALL = 1e-5
_SMALLEST_SPREAD = 1e-5
_FEW = 400  # largest number of Bernoulli samples for the finer table; for more a coarser table also takes seconds
_SLACK = {True: 1e-3, False: 5e-3}
_JUDGED = 0.7  # share of the orders that decide on refinement; higher orders matter only at the first steps of a path
_SMALLEST_MASS = 1e-250
_LARGEST_EXPONENT = 500.0
_FIRST_ORDERS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0)
"""Smallest orders; none is between 2 and 3, where G need not be convex in tau."""
_RATIO = {True: 1.1, False: 1.15}
_MOVES = {True: 10, False: 8}
_MOST_ENTRIES = 400_000_000  # limits the time to about ten seconds
_WIDTH = 20.0  # width of a distribution's support, in units of the square root of the number of samples


@dataclass(frozen=True, kw_only=True, eq=False)
class Growth:
    """Table of upper bounds on G at nodes. Shape: [orders, moves]; the first move is 0, at which G is its limit.

    Between nodes: log G is convex in alpha; G is convex in tau at every node of alpha. `ratio` bounds the logarithm of
    the ratio of the two distributions at any outcome.
    """

    orders: Floats
    moves: Floats
    table: Floats
    ratio: float


@lru_cache(maxsize=64)
def growth_of(coordinates: Coordinates) -> Growth | None:
    """Return the table for these coordinates; None if it overflows or takes too long.

    Direction of error: upper bound. Let j be the number of other Bernoulli samples at the top of the window. By data
    processing all j from j0 to j1 are bounded by one distribution, in which only j0 samples at the top and K-1-j1 at
    the bottom remain. Such a block is halved while its bound exceeds the values of single distributions by more than
    the effect of a 0.1% higher rate (0.5% for large sums).
    """
    window_list = windows(coordinates)
    if any(window.low <= 0 or window.low + coordinates.move * window.stretch >= 1 for window in window_list):
        return None
    ratio = max(math.log1p(coordinates.move * window.stretch / window.low) for window in window_list)
    if ratio > math.log(20.0):
        return None
    lowest = max(_information(window, coordinates.coins) for window in window_list)
    if coordinates.move * math.sqrt(lowest) < _SMALLEST_SPREAD:
        return growth_of(replace(coordinates, move=1.01 * _SMALLEST_SPREAD / math.sqrt(lowest)))
    is_small_sum = coordinates.coins <= _FEW
    moves = coordinates.move * np.sqrt(np.arange(_MOVES[is_small_sum] + 1) / _MOVES[is_small_sum])
    farthest = 1 + math.sqrt(40 / (lowest * coordinates.move**2))
    orders = _node_orders(min(max(farthest, 8.0), _LARGEST_EXPONENT / ratio), _RATIO[is_small_sum])
    table = _largest_growth(coordinates, window_list, orders, moves)
    if table is None or not np.all(np.isfinite(table)):
        return None
    return Growth(orders=orders, moves=moves, table=table * _MARGIN, ratio=ratio)


def _node_orders(largest: float, ratio: float) -> Floats:
    count = max(int(math.log(largest / 3) / math.log(ratio)), 0)
    return np.concatenate([_FIRST_ORDERS, 3 * ratio ** np.arange(1, count + 1)])


def _information(window: Window, coins: int) -> float:
    """Return approximately G at small moves, with all other Bernoulli samples at the bottom of the window."""
    return window.stretch**2 / (coins * window.low * (1 - window.low))


def _largest_growth(
    coordinates: Coordinates, window_list: list[Window], orders: Floats, moves: Floats
) -> Floats | None:
    last = coordinates.coins - 1
    ends = [(window, j, j, up) for window in window_list for j in {0, last} for up in _directions(window)]
    table = np.zeros((len(orders), len(moves)))
    for block in ends:
        table = np.maximum(table, _block_growth(coordinates.coins, *block, orders, moves))
    # The slack is the effect of a slightly higher rate, because G grows like e^(rate tau^2 alpha^2 / 2).
    bends = 1 + np.multiply.outer(orders**2, moves**2) * table[:, :1].max() / 2
    attained = table * np.exp(_SLACK[coordinates.coins <= _FEW] * bends)
    deciding_orders = orders <= _JUDGED * orders[-1]
    parts = _block_ranges(1, last - 1)
    pending = [(window, *part, up) for window in window_list for up in _directions(window) for part in parts]
    entries = 0
    while pending:
        window, first, end, up = pending.pop()
        entries += len(orders) * len(moves) * int(_WIDTH * math.sqrt(coordinates.coins) + 10)
        if entries > _MOST_ENTRIES:
            return None
        block_growth = _block_growth(coordinates.coins, window, first, end, up, orders, moves)
        if first == end or np.all(block_growth[deciding_orders] <= attained[deciding_orders]):
            table = np.maximum(table, block_growth)
        else:
            middle = (first + end) // 2
            pending += [(window, first, middle, up), (window, middle + 1, end, up)]
    return table


def _block_ranges(first: int, last: int) -> list[tuple[int, int]]:
    """Divide first..last into blocks whose sizes grow from both ends."""
    if first > last:
        return []
    sizes = [2**k for k in range((last - first + 1).bit_length())]
    lows, highs = {first + size - 1 for size in sizes}, {last - size + 1 for size in sizes}
    middle = (first + last) // 2
    cuts = sorted({cut for cut in lows if cut <= middle} | {cut for cut in highs if cut > middle} | {first})
    return list(zip(cuts, [cut - 1 for cut in cuts[1:]] + [last], strict=True))


def _directions(window: Window) -> tuple[bool, ...]:
    """Return the directions to consider: up (True), and also down (False) unless the window is its mirror image."""
    return (True,) if window.mirrored else (True, False)


def _block_growth(coins: int, window: Window, first: int, end: int, up: bool, orders: Floats, moves: Floats) -> Floats:
    mass, tilt = _sum_distribution(coins, window, first, end, up)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _growth_of_distribution(mass, tilt, orders, moves)


def _sum_distribution(coins: int, window: Window, first: int, end: int, up: bool) -> tuple[Floats, Floats]:
    """Return (masses, tilts): probabilities of the sum before the move, and their relative changes by a move of 1 in
    the metric.

    Masses below 1e-250 are replaced by two outcomes, which bound their contribution. A tilt is between those of the
    moving sample alone, and the summand is convex in the tilt and zero at tilt 0.
    """
    base = window.low if up else window.high
    others = np.convolve(_binomial(coins - 1 - end, window.low), _binomial(first, window.high))
    heads, tails = np.append(0.0, others), np.append(others, 0.0)
    mass = base * heads + (1 - base) * tails
    kept = mass > _SMALLEST_MASS
    sign = window.stretch if up else -window.stretch
    left_out = 2 * coins * _SMALLEST_MASS
    tilt = sign * np.concatenate([(heads - tails)[kept] / mass[kept], [1 / base, -1 / (1 - base)]])
    return np.concatenate([mass[kept], [left_out, left_out]]), tilt


@lru_cache(maxsize=4096)
def _binomial(n: int, p: float) -> Floats:
    return np.asarray(scipy.stats.binom.pmf(np.arange(n + 1), n, p))


def _growth_of_distribution(mass: Floats, tilt: Floats, orders: Floats, moves: Floats) -> Floats:
    """Return G for one distribution, the larger of both orders of the neighbours. Shape: [orders, moves].

    G is a sum of mass ((1+z)^e - 1 - e z), z = move tilt, with the exponent e = alpha or 1 - alpha. No term is
    negative.
    """
    z = moves[1:, None] * tilt[None]
    logs, first = np.log1p(z), _weighted_sum(z, mass)
    information = float((mass * tilt * tilt).sum())
    table = np.empty((len(orders), len(moves)))
    table[:, 0] = information
    for row, alpha in enumerate(orders.tolist()):
        far = information * moves[1] ** 2 * min(alpha, abs(alpha - 1) or 1.0) ** 2 > _NOT_SMALL
        both = [_growth_moment(logs, first, mass, exponent, far) for exponent in (alpha, 1 - alpha)]
        table[row, 1:] = 2 * np.maximum(*both) / moves[1:] ** 2
    return table


def _growth_moment(logs: Floats, first: Floats, mass: Floats, e: float, far: bool) -> Floats:
    """Return for each move the sum of mass ((1+z)^e - 1 - e z) / (e (e-1)), or its limit at e = 0 and e = 1.

    first: the sum of mass z. The relative rounding error is at most 1e-9: it is 1e-16 of sums of |e z|, or of 1 if
    `far` states that the result is much larger. Moves are at least `_SMALLEST_SPREAD`.
    """
    if e == 0:
        return first - _weighted_sum(logs, mass)
    if e == 1:
        return _weighted_sum(np.exp(logs) * logs, mass) - first
    raised = e * logs
    if far:
        sums = _weighted_sum(np.exp(raised, out=raised), mass) - mass.sum()
    else:
        sums = _weighted_sum(np.expm1(raised), mass)
    return np.asarray((sums - e * first) / (e * (e - 1)))


def _weighted_sum(values: Floats, mass: Floats) -> Floats:
    return np.asarray((values * mass).sum(axis=-1))
