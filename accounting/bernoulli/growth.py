"""Divergence of sums of Bernoulli samples if one of them moves: the table behind the certificate.

    G(alpha, tau) = sup of 2 (sum P^alpha Q^(1-alpha) - 1) / (tau^2 alpha (alpha - 1))

over all coordinates of a sum, P and Q the distributions of the sum with the moving Bernoulli sample at its two places
tau apart, in both orders. Proofs: docs/theory-bernoulli.md, Theorem 7.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from accounting.arrays import Floats
from accounting.bernoulli.windows import Coordinates, Window, windows

_MARGIN = 1 + 1e-8
_NOT_SMALL = 1e-5
_SMALLEST_SPREAD = 1e-5
_FEW = 400  # Bernoulli samples; of more a coarser table takes seconds, too
_SLACK = {True: 1e-3, False: 5e-3}
_JUDGED = 0.7  # of the orders; those above it matter at the first steps of a path only
_SMALLEST_MASS = 1e-250
_LARGEST_EXPONENT = 500.0
_FIRST_ORDERS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0)  # none between 2 and 3: G need not be convex in tau there
_RATIO = {True: 1.1, False: 1.15}
_MOVES = {True: 10, False: 8}
_MOST_ENTRIES = 400_000_000  # about ten seconds
_WIDTH = 20.0  # of a distribution's support, in square roots of the Bernoulli samples


@dataclass(frozen=True, kw_only=True, eq=False)
class Growth:
    """Upper bounds on G at nodes, [orders, moves]; the first move is 0, where G is its limit.

    Between nodes: log G is convex in alpha; G is convex in tau at every node of alpha. `ratio` bounds the logarithm of
    the ratio of the two distributions at any outcome.
    """

    orders: Floats
    moves: Floats
    table: Floats
    ratio: float


@lru_cache(maxsize=64)
def growth_of(at: Coordinates) -> Growth | None:
    """Return the table for these coordinates; None if it cannot be computed in doubles or in seconds.

    Direction of error: upper bound. A block of distributions, of the other Bernoulli samples j0 at the top of the
    window and K-1-j1 at its bottom, bounds all with j0 to j1 at the top (data processing). Blocks are halved while they
    exceed the values of single distributions by more than a rate higher by 0.1% (for large sums 0.5%) would allow.
    """
    spans = windows(at)
    if any(window.low <= 0 or window.low + at.move * window.stretch >= 1 for window in spans):
        return None
    ratio = max(math.log1p(at.move * window.stretch / window.low) for window in spans)
    if not spans or ratio > math.log(20.0):
        return None
    lowest = max(_information(window, at.coins) for window in spans)
    if at.move * math.sqrt(lowest) < _SMALLEST_SPREAD:
        return growth_of(replace(at, move=1.01 * _SMALLEST_SPREAD / math.sqrt(lowest)))
    few = at.coins <= _FEW
    moves = at.move * np.sqrt(np.arange(_MOVES[few] + 1) / _MOVES[few])
    farthest = 1 + math.sqrt(40 / (lowest * at.move**2)) if lowest * at.move**2 > 0 else math.inf
    orders = _orders(min(max(farthest, 8.0), _LARGEST_EXPONENT / ratio), _RATIO[few])
    table = _largest(at, spans, orders, moves)
    if table is None or not np.all(np.isfinite(table)):
        return None
    return Growth(orders=orders, moves=moves, table=table * _MARGIN, ratio=ratio)


def _orders(largest: float, ratio: float) -> Floats:
    count = max(int(math.log(largest / 3) / math.log(ratio)), 0)
    return np.concatenate([_FIRST_ORDERS, 3 * ratio ** np.arange(1, count + 1)])


def _information(window: Window, coins: int) -> float:
    """Return nearly G at small moves, with the other Bernoulli samples at the bottom of the window."""
    return window.stretch**2 / (coins * window.low * (1 - window.low))


def _largest(at: Coordinates, spans: list[Window], orders: Floats, moves: Floats) -> Floats | None:
    last = at.coins - 1
    ends = [(window, j, j, up) for window in spans for j in {0, last} for up in _directions(window)]
    table = np.zeros((len(orders), len(moves)))
    for block in ends:
        table = np.maximum(table, _block_growth(at.coins, *block, orders, moves))
    # Slack is that of a slightly higher rate: G grows like e^(rate tau^2 alpha^2 / 2).
    bends = 1 + np.multiply.outer(orders**2, moves**2) * table[:, :1].max() / 2
    attained = table * np.exp(_SLACK[at.coins <= _FEW] * bends)
    judged = orders <= _JUDGED * orders[-1]
    left = [(window, *part, up) for window in spans for up in _directions(window) for part in _parts(1, last - 1)]
    entries = 0
    while left:
        window, first, end, up = left.pop()
        entries += len(orders) * len(moves) * int(_WIDTH * math.sqrt(at.coins) + 10)
        if entries > _MOST_ENTRIES:
            return None
        found = _block_growth(at.coins, window, first, end, up, orders, moves)
        if first == end or np.all(found[judged] <= attained[judged]):
            table = np.maximum(table, found)
        else:
            middle = (first + end) // 2
            left += [(window, first, middle, up), (window, middle + 1, end, up)]
    return table


def _parts(first: int, last: int) -> list[tuple[int, int]]:
    """Return blocks of first..last that grow from both ends."""
    if first > last:
        return []
    sizes = [2**k for k in range((last - first + 1).bit_length())]
    lows, highs = {first + size - 1 for size in sizes}, {last - size + 1 for size in sizes}
    middle = (first + last) // 2
    cuts = sorted({cut for cut in lows if cut <= middle} | {cut for cut in highs if cut > middle} | {first})
    return list(zip(cuts, [cut - 1 for cut in cuts[1:]] + [last], strict=True))


def _directions(window: Window) -> tuple[bool, ...]:
    """Return moves up from the bottom, and moves down from the top if they differ."""
    return (True,) if window.mirrored else (True, False)


def _block_growth(coins: int, window: Window, first: int, end: int, up: bool, orders: Floats, moves: Floats) -> Floats:
    mass, tilt = _sum_distribution(coins, window, first, end, up)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _growth(mass, tilt, orders, moves)


def _sum_distribution(coins: int, window: Window, first: int, end: int, up: bool) -> tuple[Floats, Floats]:
    """Return masses of the sum before the move, and the relative change of each by a move of 1 in the metric.

    Masses below 1e-250 are dropped; two outcomes hold all that they can add, since a tilt is between those of the
    moving Bernoulli sample alone and the summand is convex in it, and zero at no tilt.
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
    from scipy.stats import binom

    return np.asarray(binom.pmf(np.arange(n + 1), n, p))


def _growth(mass: Floats, tilt: Floats, orders: Floats, moves: Floats) -> Floats:
    """Return the larger of both orders of the neighbours, [orders, moves].

    Sums of mass ((1+z)^e - 1 - e z), z = move tilt, with the exponent e = alpha or 1 - alpha; no term is below zero.
    """
    z = moves[1:, None] * tilt[None]
    logs, first = np.log1p(z), _summed_growth(z, mass)
    information = float((mass * tilt * tilt).sum())
    table = np.empty((len(orders), len(moves)))
    table[:, 0] = information
    for row, alpha in enumerate(orders.tolist()):
        far = information * moves[1] ** 2 * min(alpha, abs(alpha - 1) or 1.0) ** 2 > _NOT_SMALL
        both = [_moment(logs, first, mass, exponent, far) for exponent in (alpha, 1 - alpha)]
        table[row, 1:] = 2 * np.maximum(*both) / moves[1:] ** 2
    return table


def _moment(logs: Floats, first: Floats, mass: Floats, e: float, far: bool) -> Floats:
    """Return sum of mass ((1+z)^e - 1 - e z) / (e (e-1)), and its limits at e = 0 and 1, for each move.

    first: the sum of mass z. Rounding: 1e-9 relative or less, since it is 1e-16 of sums of |e z|, or of 1 where the
    result is `far` above that, and moves are not below `_SMALLEST_SPREAD`.
    """
    if e == 0:
        return first - _summed_growth(logs, mass)
    if e == 1:
        return _summed_growth(np.exp(logs) * logs, mass) - first
    raised = e * logs
    sums = (
        _summed_growth(np.exp(raised, out=raised), mass) - mass.sum() if far else _summed_growth(np.expm1(raised), mass)
    )
    return np.asarray((sums - e * first) / (e * (e - 1)))


def _summed_growth(values: Floats, mass: Floats) -> Floats:
    return np.asarray((values * mass).sum(axis=-1))
