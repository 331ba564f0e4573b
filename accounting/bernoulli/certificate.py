"""Gaussian that dominates a sum of Bernoulli samples: one coordinate after another is replaced by a Gaussian.

Proofs: docs/theory-bernoulli.md, Theorem 7. The finite checks are in doubles with margins, in logarithms, and fail if
anything is not finite: then there is no certificate, and other accounts apply.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from accounting.arrays import Floats
from accounting.bernoulli.growth import Growth

_MARGIN = 1e-9
_ORDERS_A_CELL = 4
_MOVES_A_CELL = 4
_STEP = 1.08
_FIRST = 3.0
_BISECTIONS = 12
_LARGEST_RATE = 6.0
_MOST_VARIANCE = 2500.0
_LATEST_START = 60


@dataclass(frozen=True, kw_only=True, eq=False)
class _GrowthCells:
    """Table between its nodes: bounds on log G in cells of orders and moves, [orders, moves]."""

    orders: Floats
    low_moves: Floats
    high_moves: Floats
    log_growth: Floats
    last_order: float
    last_growth: float
    ratio: float

    @classmethod
    def of(cls, growth: Growth) -> "_GrowthCells":
        """Return the cells of a table: chords in tau at every node of alpha, then chords of their logarithms in alpha.

        On a cell of moves the chords at two neighbouring nodes are at most their values at its ends, so G in between is
        at most the geometric mean of those, and on a cell of orders that is largest at an end.
        """
        parts = np.arange(_MOVES_A_CELL) / _MOVES_A_CELL
        moves = np.append((growth.moves[:-1, None] + np.diff(growth.moves)[:, None] * parts).ravel(), growth.moves[-1])
        chords = np.array([np.interp(moves, growth.moves, row) for row in growth.table])
        ends = np.log(np.maximum(chords[:, :-1], chords[:, 1:]))
        parts = np.arange(_ORDERS_A_CELL) / _ORDERS_A_CELL
        orders = np.append(
            (growth.orders[:-1, None] + np.diff(growth.orders)[:, None] * parts).ravel(), growth.orders[-1]
        )
        between = np.array([np.interp(orders, growth.orders, column) for column in ends.T]).T
        return cls(
            orders=orders[:-1],
            low_moves=moves[:-1],
            high_moves=moves[1:],
            log_growth=np.maximum(between[:-1], between[1:]) + _MARGIN,
            last_order=float(growth.orders[-1]),
            last_growth=float(np.log(growth.table[-1].max())) + _MARGIN,
            ratio=growth.ratio,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Path:
    """Rates that pass at variances, both rising: from `variances[k]` on a move tau may be replaced by a Gaussian of
    variance `rates[k]` tau^2, for zeta tau^2 of delta.
    """

    variances: Floats
    rates: Floats
    move: float

    def variance(self, squared_norm: float) -> float:
        """Return the final variance of all moves of this squared norm, the least over initial gifts; infinite if the
        path is too short.

        From a gift v the rates are the running minimum of those that passed from v on. A coordinate that begins at one
        rate and ends at another adds at most the difference of the two times the square of the largest move.
        """
        starts = range(min(len(self.variances) - 1, _LATEST_START))
        return min((self._order_from(start, squared_norm) for start in starts), default=math.inf)

    def _order_from(self, start: int, squared_norm: float) -> float:
        rates = np.minimum.accumulate(self.rates[start:])
        if not np.isfinite(rates[0]):
            return math.inf
        reached = np.concatenate([[0.0], np.cumsum(np.diff(self.variances[start:]) / rates[:-1])])
        stage = int(np.searchsorted(reached, squared_norm, side="right")) - 1
        if stage >= len(rates) - 1:
            return math.inf
        straddling = (rates[0] - rates[stage]) * self.move**2
        end = self.variances[start + stage] + rates[stage] * (squared_norm - reached[stage]) + straddling
        return float(end) * (1 + _MARGIN)


def path_of(growth: Growth, zeta: float, squared_norm: float) -> Path | None:
    """Return rates from a small gift up to a possible end for moves of this squared norm; None if nothing passes.

    zeta: the part of delta that a move tau may take, over tau^2. Direction of error: the rates are upper bounds.
    """
    if not (np.all(np.isfinite(growth.table)) and np.all(growth.table > 0) and 0 < zeta < 1):
        return None
    cells, move = _GrowthCells.of(growth), float(growth.moves[-1])
    least = float(growth.table[:, 0].max())
    variances, rates = [], []
    for variance in _variances(_FIRST * least * move**2, 2 * least * squared_norm):
        variances.append(variance)
        rates.append(_least_rate(cells, variance, least, zeta))
    found = Path(variances=np.array(variances), rates=np.array(rates), move=move)
    return found if np.isfinite(found.rates).any() else None


def _variances(first: float, enough: float) -> Iterator[float]:
    """Return variances that rise by a fixed ratio, past twice the least possible end of the whole path."""
    variance = first
    last = first * _STEP**_LATEST_START + 2 * enough
    while variance < min(last, _MOST_VARIANCE):
        yield variance
        variance *= _STEP


def _least_rate(cells: _GrowthCells, variance: float, least: float, zeta: float) -> float:
    """Return a rate that passes, nearly the least; infinite if none up to `_LARGEST_RATE` times the least does."""
    low, high = least, least * _LARGEST_RATE
    if not _tail_passes(cells, variance, zeta):
        return math.inf
    open_cells = _open(cells, variance, zeta)
    if not _certifies_rate(cells, open_cells, variance, high):
        return math.inf
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _certifies_rate(cells, open_cells, variance, middle) else (middle, high)
    return high


def _log_slope(order: Floats | float, variance: float) -> Floats:
    """Return log of dW/dv at (alpha - 1/2) v, W the profile of a Gaussian pair of variance v; it falls in alpha from 1
    on.
    """
    beyond = np.maximum(np.asarray(order) - 1, 0.0)
    return np.asarray(-(beyond**2) * variance / 2 - math.log(2) - math.log(2 * math.pi * variance) / 2)


def _tail_passes(cells: _GrowthCells, variance: float, zeta: float) -> bool:
    """Return True if beyond the last node the slope falls faster than G can grow, from below zeta on."""
    below = cells.last_growth + float(_log_slope(cells.last_order, variance)) < math.log(zeta) - _MARGIN
    return below and (cells.last_order - 1) * variance > cells.ratio * (1 + _MARGIN)


def _open(cells: _GrowthCells, variance: float, zeta: float) -> int:
    """Return the number of rows of orders with a cell that zeta alone does not cover."""
    covered = cells.log_growth + _log_slope(cells.orders, variance)[:, None] <= math.log(zeta) - _MARGIN
    rows = np.flatnonzero(~covered.all(axis=1))
    return int(rows[-1]) + 1 if rows.size else 0


def _certifies_rate(cells: _GrowthCells, rows: int, variance: float, rate: float) -> bool:
    """Return True if log G <= log(rate (e^(bD) - 1)/(bD)) in every cell of the first `rows` orders, D = rate tau^2.

    b is from Lemma 6. (e^x - 1)/x rises in x, so a cell takes the end of D with the least b D. False for anything not
    finite.
    """
    w = ((cells.orders[:rows] - 0.5) * variance)[:, None]
    low, high = rate * cells.low_moves**2, rate * cells.high_moves**2
    b = w * w / (2 * variance * (variance + high)) - 1 / 8 - 1 / (2 * variance)
    x = np.where(b > 0, b * low, b * high)
    return bool(np.all(cells.log_growth[:rows] <= math.log(rate) + _log_growth_of_exponential(x) - _MARGIN))


def _log_growth_of_exponential(x: Floats) -> Floats:
    """Return log((e^x - 1)/x), for all finite x, rounded downwards."""
    size = np.abs(x)
    near = size < 1e-5
    safe = np.where(near, 1.0, size)
    falling = np.log(-np.expm1(-safe) / safe)  # log((1 - e^-|x|)/|x|)
    return np.asarray(np.where(near, x / 2, falling + np.maximum(x, 0.0))) - 1e-14
