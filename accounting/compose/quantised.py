"""Distribution of a pair's loss on a grid, from below: cells of the output, their exact masses, losses rounded down.

Rounding down lowers the bound in proportion to the spacing, so a grid must be fine against one release's losses. If
such a grid is too large for all releases, some of them are composed on a finer grid first, and its cells are merged.
"""

import math

import numpy as np
import scipy

from accounting.arrays import Floats
from accounting.compose.loss_distribution import CUT, LossDistribution, certain
from accounting.compose.pld import composition_slack
from accounting.gaussian.attacks import AttackPair, Mixture, log_density

# The logarithm of a distribution function is good to this, relative to itself and to 1 (measured: a ninth of it).
_LOG_ROUNDING = 4e-15
# Outputs of one release with a smaller probability have no separate cells.
_TAIL_MASS = 1e-18
# Grid points to the spread of one release's loss; how many are composed at once, and merged to one.
_FINE = 1000.0
_TOGETHER, _MERGED = range(200, 257), 16
_MOST_POINTS, _LARGEST_LOSS = 1 << 22, 600.0  # of exponents that do not overflow


def quantised(pair: AttackPair, interval: float, count: int) -> tuple[LossDistribution, float, int, float]:
    """Return the distribution, the offset of its grid in steps, its count, and the mass that rounding may have
    misplaced.

    Claim: `count` independent losses of the distribution, plus as many offsets, belong to a pair no further apart than
    `count` releases of `pair`. Merging cells is post-processing; releases that fill no group are dropped, which lowers
    the bound. Direction of error: lower bound, except for the misplaced mass.
    """
    stages = _stages(pair, interval, count)
    finer = interval / _MERGED**stages
    law, offset = _pair_cells(pair, finer)
    misplaced = 0.0
    for _ in range(stages):
        together = min(_TOGETHER, key=lambda some: count % some)
        finer, count = finer * _MERGED, count // together
        law, offset = _merged(law.repeated(together), together * offset, finer)
        misplaced += count * (composition_slack(together) + 2 * CUT)
    return law, offset, count, misplaced


def _stages(pair: AttackPair, interval: float, count: int) -> int:
    """Return the number of refinements of the grid whose points fit into memory."""
    spread, means = math.sqrt(pair.loss_moments()[1]), [mean for _, mean in (*pair.p, *pair.q)]
    reach = float(np.abs(pair.loss(np.array([min(means) - 10.0, max(means) + 10.0]))).sum())
    found = 0
    while interval / _MERGED**found > spread / _FINE and count >= 4 * _TOGETHER[-1] ** (found + 1):
        if reach * _MERGED ** (found + 1) > _MOST_POINTS * interval or reach * _TOGETHER[-1] > _LARGEST_LOSS:
            break
        found += 1
    return found


def _merged(law: LossDistribution, offset: float, interval: float) -> tuple[LossDistribution, float]:
    """Return `law` with neighbouring cells as one, on the grid of `interval`."""
    masses = np.maximum(law.masses, 0.0)
    losses = law.spacing * (law.lowest + offset + np.arange(len(masses)))
    starts = np.arange(0, len(masses), _MERGED)
    mass, other = np.add.reduceat(masses, starts), np.add.reduceat(masses * np.exp(-losses), starts)
    kept = (mass > 0) & (other > 0)
    return rounded_down(np.log(mass[kept]), np.log(other[kept]), _LOG_ROUNDING, interval)


def _pair_cells(pair: AttackPair, interval: float) -> tuple[LossDistribution, float]:
    """Return the pair's cells on a grid, losses rounded down, and the offset of that grid in steps."""
    (p, one), (q, two) = _cells(pair, interval)
    rounding = one + two
    kept = (p > -700) & (q > -np.inf) & ((rounding < 0.5) | (rounding < 1e-6 * (p - q)))
    return rounded_down(p[kept], q[kept], rounding[kept], interval)


def rounded_down(p: Floats, q: Floats, rounding: Floats | float, interval: float) -> tuple[LossDistribution, float]:
    """Return the distribution of cells with these logarithms of both masses, accurate to `rounding`.

    Missing cells are dropped: their loss may be below all others, so their mass does not count.
    """
    if not len(p):  # nothing is shown
        return certain(0, spacing=interval), 0.0
    steps = (p - q - rounding) / interval
    mass = np.exp(p)
    offset = _best_offset(steps, mass)
    index = np.floor(steps - offset).astype(np.int64)
    lowest = int(index.min())
    probabilities = np.asarray(np.bincount(index - lowest, weights=mass), dtype=float)
    return LossDistribution(spacing=interval, lowest=lowest, masses=probabilities, infinite=0.0), offset


def _best_offset(steps: Floats, mass: Floats) -> float:
    """Return the offset of the grid with the smallest loss by rounding down: cells are near half-way between grid
    points.
    """
    candidates = np.concatenate([[0.0], 0.5 - np.geomspace(1e-7, 0.49, 60)])
    bins = 10_000
    masses = np.bincount((steps % 1.0 * bins).astype(np.int64), weights=mass, minlength=bins + 1)
    fractions = np.arange(bins + 1) / bins
    # A cell at the fraction f loses f - c of a step, and one more where f < c.
    below = np.concatenate([[0.0], np.cumsum(masses)])[np.searchsorted(fractions, candidates)]
    lost = (masses * fractions).sum() - candidates * masses.sum() + below
    return float(candidates[int(np.argmin(lost))])


def _cells(pair: AttackPair, interval: float) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Return log masses of both distributions, and their errors, in cells cut where the loss crosses grid points.

    Any cut is valid.
    """
    means = [m for _, m in (*pair.p, *pair.q)]
    x = _distinct([m + np.linspace(-10, 10, 200_001) for m in set(means)])
    log_p = log_density(pair.p, x)
    density = np.exp(log_p)
    inner = (np.cumsum(density) > _TAIL_MASS) & (np.cumsum(density[::-1])[::-1] > _TAIL_MASS)
    x = x[inner]  # what is beyond goes to the cells at the ends
    loss = log_p[inner] - log_density(pair.q, x)
    lowest = int(np.argmin(loss))  # zero-out's loss falls before it rises; each side is cut on its own
    grid = np.arange(math.ceil(loss[lowest] / interval), math.floor(loss[-1] / interval) + 1) * interval
    right = np.interp(grid, np.maximum.accumulate(loss[lowest:]), x[lowest:])
    left = np.interp(grid, np.maximum.accumulate(loss[lowest::-1]), x[lowest::-1])
    cuts = _distinct([np.array([-np.inf, np.inf]), left, right])
    tails = {mean: _tails(cuts - mean) for mean in set(means)}  # both distributions have most means in common
    return _masses(pair.p, tails), _masses(pair.q, tails)


def _distinct(runs: list[Floats]) -> Floats:
    """Return the different numbers of monotone runs in order: `np.unique`, by a sort that merges the runs."""
    values = np.sort(np.concatenate(runs), kind="stable")
    return np.asarray(values[np.append(True, values[1:] != values[:-1])])


_Tails = tuple[Floats, Floats, Floats]
"""Cells of a normal distribution: logarithms of the larger tail and of the share of it in the cell; rounding error."""


def _tails(ends: Floats) -> _Tails:
    """Return the masses of the cells between `ends` under N(0, 1), each from the tail in which nothing cancels."""
    first = int(np.searchsorted(ends, 0.0, side="right"))  # cells from here on are in the upper tail
    lower, upper = scipy.special.log_ndtr(ends[: first + 1]), scipy.special.log_ndtr(-ends[first:])
    larger = np.concatenate([lower[1:], upper[:-1]])
    smaller = np.concatenate([lower[:-1], upper[1:]])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = -np.expm1(smaller - larger)
        return larger, np.log(share), _LOG_ROUNDING * (1 - larger) / share


def _masses(mixture: Mixture, tails: dict[float, _Tails]) -> tuple[Floats, Floats]:
    """Return the logarithm of the mass of every cell, and its largest rounding error.

    Each is computed in the tail where it does not cancel or underflow; a narrow cell is a small difference of two
    numbers.
    """
    logs, above, below = [], [], []
    with np.errstate(invalid="ignore"):
        for weight, mean in mixture:
            larger, share, error = tails[mean]
            logs.append(math.log(weight) + larger + share)
            above.append(np.fmin(logs[-1] + error, math.log(weight) + larger))  # no more than the whole tail
            below.append(logs[-1] - error)
        found, most, least = (np.logaddexp.reduce(some, axis=0) for some in (logs, above, below))
        return np.asarray(found), np.asarray(np.fmax(most - found, found - least))
