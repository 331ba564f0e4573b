"""Lower bound on the loss distribution of a pair: cells of the output with exact masses, and losses rounded down to a
grid.

Rounding down decreases the bound in proportion to the spacing, so the grid must be fine against the losses of one
release. If such a grid is too large for all releases, groups of releases are first composed on a finer grid, whose
cells are then merged.
"""

import math

import numpy as np
import scipy

from accounting.arrays import Floats
from accounting.compose.loss_distribution import CUT, LossDistribution, certain_loss
from accounting.compose.pld import composition_slack
from accounting.gaussian.attacks import AttackPair, Mixture, log_density

# Error of the logarithm of a distribution function, relative to itself and to 1 (a ninth of it was measured).
_LOG_ROUNDING = 4e-15
# Outputs of one release with a smaller probability have no separate cells.
_TAIL_MASS = 1e-18
# Grid points per standard deviation of one release's loss; releases in a group; cells that are merged to one.
_POINTS_PER_SPREAD = 1000.0
_GROUP_SIZES, _MERGED = range(200, 257), 16
_MOST_POINTS, _LARGEST_LOSS = 1 << 22, 600.0  # largest loss for which exponents do not overflow
_MOST_STEPS = 1 << 23  # largest loss on the grid, in steps; a grid for larger ones would not fit in memory


def quantised(pair: AttackPair, interval: float, count: int) -> tuple[LossDistribution, float, int, float]:
    """Return (loss distribution, offset of its grid in steps, number of such losses, mass misplaced by rounding
    errors).

    Claim: the returned number of independent losses, each plus the offset, is the loss of a pair that `count` releases
    of `pair` dominate. Merging cells is post-processing. Releases that do not fill a group are dropped, which decreases
    the bound.
    Direction of error: lower bound, except for the misplaced mass.
    """
    stages = _number_of_refinements(pair, interval, count)
    finer = interval / _MERGED**stages
    distribution, offset = _pair_cells(pair, finer)
    misplaced = 0.0
    for _ in range(stages):
        group_size = min(_GROUP_SIZES, key=lambda some: count % some)
        finer, count = finer * _MERGED, count // group_size
        distribution, offset = _with_merged_cells(distribution.repeated(group_size), group_size * offset, finer)
        misplaced += count * (composition_slack(group_size) + 2 * CUT)
    return distribution, offset, count, misplaced


def _number_of_refinements(pair: AttackPair, interval: float, count: int) -> int:
    """Return the number of grid refinements that are needed and fit into memory."""
    spread, means = math.sqrt(pair.loss_moments()[1]), [mean for _, mean in (*pair.p, *pair.q)]
    reach = float(np.abs(pair.loss(np.array([min(means) - 10.0, max(means) + 10.0]))).sum())
    found = 0
    while interval / _MERGED**found > spread / _POINTS_PER_SPREAD and count >= 4 * _GROUP_SIZES[-1] ** (found + 1):
        if reach * _MERGED ** (found + 1) > _MOST_POINTS * interval or reach * _GROUP_SIZES[-1] > _LARGEST_LOSS:
            break
        found += 1
    return found


def _with_merged_cells(
    distribution: LossDistribution, offset: float, interval: float
) -> tuple[LossDistribution, float]:
    """Return the distribution with adjacent cells merged, on the grid of `interval`, and the offset of that grid."""
    masses = np.maximum(distribution.masses, 0.0)
    losses = distribution.spacing * (distribution.lowest + offset + np.arange(len(masses)))
    starts = np.arange(0, len(masses), _MERGED)
    mass, other = np.add.reduceat(masses, starts), np.add.reduceat(masses * np.exp(-losses), starts)
    kept = (mass > 0) & (other > 0)
    return rounded_down(np.log(mass[kept]), np.log(other[kept]), _LOG_ROUNDING, interval)


def _pair_cells(pair: AttackPair, interval: float) -> tuple[LossDistribution, float]:
    """Return the distribution of the pair's cells with losses rounded down to a grid, and the offset of that grid in
    steps.
    """
    (p, one), (q, two) = _cell_masses(pair, interval)
    rounding = one + two
    kept = (p > -700) & (q > -np.inf) & ((rounding < 0.5) | (rounding < 1e-6 * (p - q)))
    return rounded_down(p[kept], q[kept], rounding[kept], interval)


def rounded_down(p: Floats, q: Floats, rounding: Floats | float, interval: float) -> tuple[LossDistribution, float]:
    """Return the loss distribution of cells with log masses p and q, accurate to `rounding`, and the offset of its
    grid.

    Cells that are not given, or far below 0, are dropped, as if their loss were below all others.
    """
    steps = np.minimum((p - q - rounding) / interval, _MOST_STEPS)
    steps, mass = steps[steps > -_MOST_STEPS], np.exp(p[steps > -_MOST_STEPS])
    if not len(mass):  # without cells the bound is 0
        return certain_loss(0, spacing=interval), 0.0
    offset = _best_offset(steps, mass)
    index = np.floor(steps - offset).astype(np.int64)
    lowest = int(index.min())
    probabilities = np.asarray(np.bincount(index - lowest, weights=mass), dtype=float)
    return LossDistribution(spacing=interval, lowest=lowest, masses=probabilities, infinite=0.0), offset


def _best_offset(steps: Floats, mass: Floats) -> float:
    """Return the offset of the grid for which rounding down decreases the mean loss least."""
    candidates = np.concatenate([[0.0], 0.5 - np.geomspace(1e-7, 0.49, 60)])
    bins = 10_000
    masses = np.bincount((steps % 1.0 * bins).astype(np.int64), weights=mass, minlength=bins + 1)
    fractions = np.arange(bins + 1) / bins
    # A cell at fraction f loses f - c of a step at offset c, plus one step if f < c.
    below = np.concatenate([[0.0], np.cumsum(masses)])[np.searchsorted(fractions, candidates)]
    lost = (masses * fractions).sum() - candidates * masses.sum() + below
    return float(candidates[int(np.argmin(lost))])


def _cell_masses(pair: AttackPair, interval: float) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Return log masses of both distributions, and their errors, in cells whose ends are where the loss crosses grid
    points.

    Every division into cells is valid.
    """
    means = [m for _, m in (*pair.p, *pair.q)]
    x = _sorted_distinct([m + np.linspace(-10, 10, 200_001) for m in set(means)])
    log_p = log_density(pair.p, x)
    density = np.exp(log_p)
    inner = (np.cumsum(density) > _TAIL_MASS) & (np.cumsum(density[::-1])[::-1] > _TAIL_MASS)
    x = x[inner]  # the end cells contain everything beyond
    loss = log_p[inner] - log_density(pair.q, x)
    # Under zero-out the loss decreases and then increases; each side is divided separately.
    lowest = int(np.argmin(loss))
    grid = np.arange(math.ceil(loss[lowest] / interval), math.floor(loss[-1] / interval) + 1) * interval
    right = np.interp(grid, np.maximum.accumulate(loss[lowest:]), x[lowest:])
    left = np.interp(grid, np.maximum.accumulate(loss[lowest::-1]), x[lowest::-1])
    cuts = _sorted_distinct([np.array([-np.inf, np.inf]), left, right])
    tails = {mean: _cell_tails(cuts - mean) for mean in set(means)}  # both distributions share most means
    return _mixture_masses(pair.p, tails), _mixture_masses(pair.q, tails)


def _sorted_distinct(runs: list[Floats]) -> Floats:
    """Return the distinct numbers of monotone sequences in order, as `np.unique`, by a merging sort."""
    values = np.sort(np.concatenate(runs), kind="stable")
    return np.asarray(values[np.append(True, values[1:] != values[:-1])])


_Tails = tuple[Floats, Floats, Floats]
"""Cells of a normal distribution: log of the larger tail, log of the cell's share of that tail, rounding error."""


def _cell_tails(ends: Floats) -> _Tails:
    """Return the masses of the cells between `ends` under N(0, 1), each computed in the tail without cancellation."""
    first = int(np.searchsorted(ends, 0.0, side="right"))  # cells from this index on are in the upper tail
    lower, upper = scipy.special.log_ndtr(ends[: first + 1]), scipy.special.log_ndtr(-ends[first:])
    larger = np.concatenate([lower[1:], upper[:-1]])
    smaller = np.concatenate([lower[:-1], upper[1:]])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = -np.expm1(smaller - larger)
        return larger, np.log(share), _LOG_ROUNDING * (1 - larger) / share


def _mixture_masses(mixture: Mixture, tails: dict[float, _Tails]) -> tuple[Floats, Floats]:
    """Return the logarithm of the mass of every cell, and a bound on its rounding error.

    Each mass is computed in the tail without cancellation or underflow. The error accounts for narrow cells, which are
    small differences.
    """
    logs, above, below = [], [], []
    with np.errstate(invalid="ignore"):
        for weight, mean in mixture:
            larger, share, error = tails[mean]
            logs.append(math.log(weight) + larger + share)
            above.append(np.fmin(logs[-1] + error, math.log(weight) + larger))  # at most the whole tail
            below.append(logs[-1] - error)
        found, most, least = (np.logaddexp.reduce(some, axis=0) for some in (logs, above, below))
        return np.asarray(found), np.asarray(np.fmax(most - found, found - least))
