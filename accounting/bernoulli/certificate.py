"""Certified Gaussian that dominates a sum of Bernoulli samples, and the cache of its paths on disk.

The proof replaces one coordinate after another. Proofs: docs/theory-bernoulli.md, Theorem 7. The finitely many checks
are in doubles, in logarithms and with margins. They fail if a number is not finite; then there is no certificate, and
other accounts apply.

The cache (`accounting.disk_cache`) is keyed by the arguments and the source code.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path as FilePath

import numpy as np

from accounting import disk_cache
from accounting.arrays import Floats
from accounting.bernoulli.growth import Coordinates, Growth

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
    """Upper bounds on log G in all cells between the nodes of a table. Shape: [orders, moves]."""

    orders: Floats
    low_moves: Floats
    high_moves: Floats
    log_growth: Floats
    last_order: float
    last_growth: float
    ratio: float

    @classmethod
    def of(cls, growth: Growth) -> "_GrowthCells":
        """Return the cells of a table. Bounds are chords in tau at every node of alpha, then chords of their logarithms
        in alpha.

        On a cell of moves the chords at two neighbouring nodes are at most their values at the ends. So G between the
        nodes is at most a geometric mean of these values, and on a cell of orders that mean is largest at an end.
        """
        moves, orders = _refined(growth.moves, _MOVES_A_CELL), _refined(growth.orders, _ORDERS_A_CELL)
        chords = np.array([np.interp(moves, growth.moves, row) for row in growth.table])
        ends = np.log(np.maximum(chords[:, :-1], chords[:, 1:]))
        interpolated = np.array([np.interp(orders, growth.orders, column) for column in ends.T]).T
        return cls(
            orders=orders[:-1],
            low_moves=moves[:-1],
            high_moves=moves[1:],
            log_growth=np.maximum(interpolated[:-1], interpolated[1:]) + _MARGIN,
            last_order=float(growth.orders[-1]),
            last_growth=float(np.log(growth.table[-1].max())) + _MARGIN,
            ratio=growth.ratio,
        )


def _refined(nodes: Floats, parts: int) -> Floats:
    """Return the nodes and the points that divide each interval between them into equal parts."""
    return np.append((nodes[:-1, None] + np.diff(nodes)[:, None] * (np.arange(parts) / parts)).ravel(), nodes[-1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Path:
    """Certified rates at increasing variances: from `variances[k]` on a move tau may be replaced by a Gaussian of
    variance `rates[k]` tau^2, at a charge of zeta tau^2 to delta.
    """

    variances: Floats
    rates: Floats
    move: float

    def variance(self, squared_norm: float) -> float:
        """Return the smallest final variance over all initial variances, for moves of this squared norm; infinite if
        the path is too short.

        From an initial variance v the rates are the running minimum of the certified rates from v on. A coordinate
        whose rate changes within its move adds at most the difference of the two rates times the square of the largest
        move.
        """
        starts = range(min(len(self.variances) - 1, _LATEST_START))
        return min((self._final_variance_from(start, squared_norm) for start in starts), default=math.inf)

    def _final_variance_from(self, start: int, squared_norm: float) -> float:
        rates = np.minimum.accumulate(self.rates[start:])
        if not np.isfinite(rates[0]):
            return math.inf
        reached_norms = np.concatenate([[0.0], np.cumsum(np.diff(self.variances[start:]) / rates[:-1])])
        stage = int(np.searchsorted(reached_norms, squared_norm, side="right")) - 1
        if stage >= len(rates) - 1:
            return math.inf
        rate_change = (rates[0] - rates[stage]) * self.move**2
        end = self.variances[start + stage] + rates[stage] * (squared_norm - reached_norms[stage]) + rate_change
        return float(end) * (1 + _MARGIN)


def path_of(growth: Growth, zeta: float, squared_norm: float) -> Path | None:
    """Return certified rates from a small initial variance up to a possible final one, for moves of this squared norm.
    Returns None if no rate passes.

    zeta: the charge of a move tau to delta, divided by tau^2.
    Direction of error: the rates are upper bounds.
    """
    if not (np.all(np.isfinite(growth.table)) and np.all(growth.table > 0) and 0 < zeta < 1):
        return None
    cells, move = _GrowthCells.of(growth), float(growth.moves[-1])
    least = float(growth.table[:, 0].max())
    variances, rates = [], []
    for variance in _increasing_variances(_FIRST * least * move**2, 2 * least * squared_norm):
        variances.append(variance)
        rates.append(_least_rate(cells, variance, least, zeta))
    found = Path(variances=np.array(variances), rates=np.array(rates), move=move)
    return found if np.isfinite(found.rates).any() else None


def _increasing_variances(first: float, expected_end: float) -> Iterator[float]:
    """Yield variances that increase by a fixed ratio, up to at least twice the smallest possible final variance."""
    last = min(first * _STEP**_LATEST_START + 2 * expected_end, _MOST_VARIANCE)
    while first < last:
        yield first
        first *= _STEP


def _least_rate(cells: _GrowthCells, variance: float, least: float, zeta: float) -> float:
    """Return approximately the smallest rate that passes; infinite if no rate up to `_LARGEST_RATE` times `least`
    passes.
    """
    low, high = least, least * _LARGEST_RATE
    if not _tail_passes(cells, variance, zeta):
        return math.inf
    uncovered_rows = _uncovered_rows(cells, variance, zeta)
    if not _certifies_rate(cells, uncovered_rows, variance, high):
        return math.inf
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _certifies_rate(cells, uncovered_rows, variance, middle) else (middle, high)
    return high


def _log_slope(order: Floats | float, variance: float) -> Floats:
    """Return log dW/dv at (alpha - 1/2) v, W the profile of a Gaussian pair of variance v; it decreases in alpha >=
    1.
    """
    beyond = np.maximum(np.asarray(order) - 1, 0.0)
    return np.asarray(-(beyond**2) * variance / 2 - math.log(2) - math.log(2 * math.pi * variance) / 2)


def _tail_passes(cells: _GrowthCells, variance: float, zeta: float) -> bool:
    """Return True if at the last node G times the slope is below zeta, and beyond it the slope decreases faster than
    G can grow.
    """
    below = cells.last_growth + float(_log_slope(cells.last_order, variance)) < math.log(zeta) - _MARGIN
    return below and (cells.last_order - 1) * variance > cells.ratio * (1 + _MARGIN)


def _uncovered_rows(cells: _GrowthCells, variance: float, zeta: float) -> int:
    """Return the number of leading order rows up to the last row with a cell that zeta alone does not cover."""
    covered = cells.log_growth + _log_slope(cells.orders, variance)[:, None] <= math.log(zeta) - _MARGIN
    rows = np.flatnonzero(~covered.all(axis=1))
    return int(rows[-1]) + 1 if rows.size else 0


def _certifies_rate(cells: _GrowthCells, rows: int, variance: float, rate: float) -> bool:
    """Return True if log G <= log(rate (e^(bD) - 1)/(bD)) in every cell of the first `rows` orders, D = rate tau^2.

    b is from Lemma 6. (e^x - 1)/x increases in x, so each cell uses the end of its interval of D with the smallest b D.
    Returns False if a number is not finite.
    """
    w = ((cells.orders[:rows] - 0.5) * variance)[:, None]
    low, high = rate * cells.low_moves**2, rate * cells.high_moves**2
    b = w * w / (2 * variance * (variance + high)) - 1 / 8 - 1 / (2 * variance)
    x = np.where(b > 0, b * low, b * high)
    return bool(np.all(cells.log_growth[:rows] <= math.log(rate) + _log_growth_of_exponential(x) - _MARGIN))


def _log_growth_of_exponential(x: Floats) -> Floats:
    """Return log((e^x - 1)/x) for finite x, rounded downwards."""
    size = np.abs(x)
    near = size < 1e-5
    nonzero_size = np.where(near, 1.0, size)
    falling = np.log(-np.expm1(-nonzero_size) / nonzero_size)  # log((1 - e^-|x|)/|x|)
    return np.asarray(np.where(near, x / 2, falling + np.maximum(x, 0.0))) - 1e-14


_ANSWERED_BY = ("certificate.py", "growth.py")


def cached_path(at: Coordinates, zeta: float, squared_norm: float, compute: Callable[[], Path | None]) -> Path | None:
    """Return the path for these arguments from the disk cache; if it is missing, call `compute` and store its result.

    File errors are suppressed; a damaged entry counts as missing.
    """
    question = {**asdict(at), "zeta": zeta, "squared_norm": squared_norm, "code": _code_hash()}
    for kept in disk_cache.read("coins", question):
        return kept and Path(variances=np.array(kept["variances"]), rates=np.array(kept["rates"]), move=kept["move"])
    found = compute()
    stored = found and {"variances": found.variances.tolist(), "rates": found.rates.tolist(), "move": found.move}
    disk_cache.write("coins", question, stored)
    return found


@lru_cache(maxsize=1)
def _code_hash() -> str:
    sources = [(FilePath(__file__).parent / name).read_bytes() for name in _ANSWERED_BY]
    return hashlib.sha256(b"\0".join([*sources, np.__version__.encode()])).hexdigest()
