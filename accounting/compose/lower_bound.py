"""Rigorous lower bounds: no accountant can state less than what an explicit pair of neighbours shows.

For each mechanism a pair of neighbouring data sets is named whose output law is a known mixture of Gaussians in
every round. Quantising the output into cells is post-processing, so the cells' exact masses give a true pair of
lower divergence; rounding their losses down lowers it further.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy

from accounting import require
from accounting.compose import adaptive, loss_grid
from accounting.compose.loss_law import CUT, LossLaw, composed
from accounting.compose.pld import MOST_ROUNDS, composition_slack
from accounting.gaussian import smallest_epsilon
from accounting.gaussian.attacks import AttackPair, Mixture, attack_pairs, log_density
from accounting.gaussian.half_lines import Floats
from accounting.mechanisms import Composed, Mechanism, SingleRelease, gaussian_of, parts_of, plain_gaussian, sampling_of

# The masses of narrow cells are differences of distribution functions, good to about 1e-10 relative.
_MASS_ROUNDING = 1e-9
# Rounding down costs in proportion to the spacing, where connecting the dots costs with its square.
_FINER = 16.0
# Rounds from which on the choice of neighbours by the loss so far shows more than the finer grid of a fixed pair.
_MANY = 20
# No cells of their own for what one release shows more seldom than about this.
_TAIL_MASS = 1e-18


def epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """An epsilon that the mechanism cannot be better than at `delta`.

    Claim: the neighbours of `attack_pairs`, the same in every round, are at least this far apart; under fixed-size
    sampling, where choosing them in each round by the loss so far shows more, so are those of `adaptive.shown_epsilon`.
    Direction of error: lower bound. Equal to the truth for plain Gaussians; for Poisson sampling the pair is the
    dominating one, so the bound meets the upper bound up to the grids, as it does for fixed-size sampling nearly.
    """
    target = require.open_probability(delta=delta)
    parts = [(part, plain_gaussian(part), count) for part, count in parts_of(mechanism)]
    shift_squared = sum(count * noise.mu**2 for _, noise, count in parts if noise is not None)
    sampled: list[tuple[SingleRelease, int]] = [
        (part, min(count, MOST_ROUNDS))  # fewer rounds show less
        for part, noise, count in parts
        if noise is None and gaussian_of(part) is not None and sampling_of(part).probability > 0
    ]
    plain = 0.0
    if shift_squared:  # below by more than `smallest_epsilon` is rounded upwards
        above = smallest_epsilon(target, mu=math.sqrt(shift_squared))
        plain = max(0.0, above * (1 - 1e-11) - 1e-14 * (1 - math.log(target)))
    if not sampled:
        return plain
    shown = adaptive.shown_epsilon(mechanism, delta=target)
    many = sum(count for _, count in sampled) > _MANY
    if shown and many and not plain and all(sampling_of(part).name == "fixed" for part, _ in sampled):
        return shown  # a fixed pair of neighbours shows less
    finer = max(1.0, _FINER / len(sampled))  # each distinct part is a convolution of its own
    interval = loss_grid.interval(Composed(parts=tuple(sampled)), finer=finer)
    bounds = [
        _composed_epsilon([(attack_pairs(part)[choice], count) for part, count in sampled], interval, target)
        for choice in range(min(len(attack_pairs(part)) for part, _ in sampled))
    ]
    return max(0.0, plain, shown, *bounds)


def _composed_epsilon(pairs: Sequence[tuple[AttackPair, int]], interval: float, delta: float) -> float:
    """Epsilon of the composed quantised pairs; each pair's losses sit on the grid plus its own offset."""
    quantised = [(*_quantised(pair, interval), count) for pair, count in pairs]
    offset = sum(count * shift for _, shift, count in quantised)
    # The summed offset is put back before anything is cut off at 0: whole steps as a certain loss, then the rest.
    steps = math.floor(offset)
    # The composition cuts its tails, which can wrap around.
    slack = composition_slack(sum(count for _, count in pairs)) + 2 * CUT
    if delta + slack >= 1:
        return 0.0
    law = composed([(law, count) for law, _, count in quantised])
    epsilon = _shown_epsilon(replace(law, lowest=law.lowest + steps, infinite=0.0), delta + slack)
    return epsilon * (1 - 1e-12) + (offset - steps) * interval if epsilon > 0 else 0.0


def _shown_epsilon(law: LossLaw, delta: float) -> float:
    """An epsilon >= 0 up to which the law's delta(epsilon) is above `delta` at every loss.

    `LossLaw.smallest_epsilon` for the other direction: what the transform has rounded below zero stays so, since all
    that was rounded upwards would add up to a delta of its own; and where rounding makes delta(epsilon) cross `delta`
    more than once, the first crossing counts.
    """
    losses = law.spacing * (law.lowest + np.arange(len(law.masses), dtype=float))[::-1]
    masses = law.masses[::-1]
    above = law.infinite + np.cumsum(masses)
    most = np.maximum.accumulate(above)
    anchor = losses[min(int(np.searchsorted(most, delta)), len(losses) - 1)]
    near = losses > max(anchor - 600.0, 0.0)  # for exponents that do not overflow
    losses, above = losses[near], above[near]
    discounted = np.cumsum(masses[: len(losses)] * np.exp(anchor - losses))
    within = np.flatnonzero(above - np.exp(np.minimum(losses - anchor, 0.0)) * discounted <= delta)
    if not len(losses) or not within.size:
        return max(0.0, float(losses[0])) if len(losses) else 0.0
    k = int(within[-1])  # losses fall from left to right: from here on delta(epsilon) is above
    lower = float(losses[k + 1]) if k + 1 < len(losses) else 0.0
    if above[k] <= delta or discounted[k] <= 0:
        return lower
    crossing = float(anchor) + math.log((above[k] - delta) / discounted[k])
    return min(max(crossing, lower), float(losses[k]))


def _quantised(pair: AttackPair, interval: float) -> tuple[LossLaw, float]:
    """The pair's cells on a grid, losses rounded down, and the offset of that grid in steps."""
    p, q = _cells(pair, interval)
    kept = (p > -700) & (q > -np.inf)
    steps = (p[kept] - q[kept] - _MASS_ROUNDING) / interval
    mass = np.exp(p[kept])
    offset = _best_offset(steps, mass)
    index = np.floor(steps - offset).astype(np.int64)
    lowest = int(index.min())
    probabilities = np.asarray(np.bincount(index - lowest, weights=mass), dtype=float)
    # Mass that was dropped, or lost to rounding, goes to the lowest loss.
    probabilities[0] += max(0.0, 1.0 - probabilities.sum())
    return LossLaw(spacing=interval, lowest=lowest, masses=probabilities, infinite=0.0), offset


def _best_offset(steps: Floats, mass: Floats) -> float:
    """The offset of the grid that loses least to rounding down: cells sit near half-way between grid points."""
    candidates = np.concatenate([[0.0], 0.5 - np.geomspace(1e-7, 0.49, 60)])
    bins = 10_000
    masses = np.bincount((steps % 1.0 * bins).astype(np.int64), weights=mass, minlength=bins + 1)
    fractions = np.arange(bins + 1) / bins
    # A cell at the fraction f loses f - c of a step, and one more where f < c.
    below = np.concatenate([[0.0], np.cumsum(masses)])[np.searchsorted(fractions, candidates)]
    lost = (masses * fractions).sum() - candidates * masses.sum() + below
    return float(candidates[int(np.argmin(lost))])


def _cells(pair: AttackPair, interval: float) -> tuple[Floats, Floats]:
    """Log masses of both laws in cells bounded where the loss crosses grid points (roughly: any cut is valid)."""
    means = [m for _, m in (*pair.p, *pair.q)]
    x = np.unique(np.concatenate([m + np.linspace(-10, 10, 200_001) for m in set(means)]))
    density = np.exp(log_density(pair.p, x))
    inner = (np.cumsum(density) > _TAIL_MASS) & (np.cumsum(density[::-1])[::-1] > _TAIL_MASS)
    x = x[inner]  # what is beyond goes to the cells at the ends
    loss = pair.loss(x)
    lowest = int(np.argmin(loss))  # zero-out's loss falls before it rises; each side is cut on its own
    grid = np.arange(math.ceil(loss[lowest] / interval), math.floor(loss[-1] / interval) + 1) * interval
    right = np.interp(grid, np.maximum.accumulate(loss[lowest:]), x[lowest:])
    left = np.interp(grid, np.maximum.accumulate(loss[lowest::-1]), x[lowest::-1])
    cuts = np.unique(np.concatenate([[-np.inf], left, right, [np.inf]]))
    return _masses(pair.p, cuts), _masses(pair.q, cuts)


def _masses(mixture: Mixture, cuts: Floats) -> Floats:
    """Logarithm of the mass of every cell, each computed in the tail where it does not cancel or underflow."""
    logs = []
    for weight, mean in mixture:
        low, high = cuts[:-1] - mean, cuts[1:] - mean
        upper_tail = low > 0
        larger = np.where(upper_tail, scipy.special.log_ndtr(-low), scipy.special.log_ndtr(high))
        smaller = np.where(upper_tail, scipy.special.log_ndtr(-high), scipy.special.log_ndtr(low))
        with np.errstate(divide="ignore"):
            logs.append(math.log(weight) + larger + np.log(-np.expm1(smaller - larger)))
    return np.asarray(np.logaddexp.reduce(logs, axis=0))
