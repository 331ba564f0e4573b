"""Rigorous lower bounds: no accountant can state an epsilon below that of an explicit pair of neighbours.

For each mechanism a pair of neighbouring datasets is named whose output distribution is a known mixture of Gaussians in
every round. Quantising the output into cells is post-processing, so the cells' exact masses are a pair of lower
divergence; rounding their losses down lowers it further.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from accounting import require
from accounting.compose import loss_grid, shown_schedules
from accounting.compose.adaptive_grid import BELOW, Game, grid_of, nodes_of
from accounting.compose.adaptive_kernels import attained
from accounting.compose.adaptive_program import StateGrid, Values
from accounting.compose.loss_distribution import CUT, LITTLE, LossDistribution, composed, tilted_for
from accounting.compose.pld import MOST_ROUNDS, composition_slack
from accounting.compose.quantised import quantised, rounded_down
from accounting.factorisation.toeplitz import squared_sensitivity
from accounting.gaussian import epsilon_from_below
from accounting.gaussian.attacks import attack_pairs
from accounting.mechanisms import (
    BallsAndBins,
    Composed,
    Mechanism,
    SingleRelease,
    gaussian_of,
    parts_of,
    plain_gaussian,
    sampling_of,
    schedule_of,
    unsampled,
    with_whole_noise,
)

# Share of delta from which on rounding is worth a second, tilted composition.
_NOTICED = 1e-4
# Errors of rounding down are proportional to the spacing, those of connecting the dots to its square.
_FINER = 16.0
# Rounding of masses and of their sums, which matters for 1 - delta of that size.
_ROUNDING = 1e-12
# Rounds from which on the choice of neighbours by the loss so far shows more than the finer grid of a fixed pair.
_MANY = 20


def epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """Return an epsilon below which no correct account of the mechanism can be at `delta`.

    Claim: the neighbours of `attack_pairs`, the same in every round, are at least this far apart; under fixed-size
    sampling so are those of `shown_epsilon`, which are chosen in each round by the loss so far and may be farther
    apart. If
    releases may overflow, with probability b in all: both neighbours are within b, in total variation, of those without
    overflow, so H_gamma is at least theirs minus (1 + gamma) b, and their lower bound at delta + (1 + e^epsilon) b
    holds.
    Direction of error: lower bound. Equal to the exact value for plain Gaussians; for Poisson sampling the pair is the
    dominating one, so the bound meets the upper bound up to the grids; for fixed-size sampling nearly.
    """
    target = require.open_probability(delta=delta)
    whole = with_whole_noise(mechanism)
    lost = math.fsum(count * unsampled(part).overflow for part, count in parts_of(mechanism))
    if lost:
        most = _epsilon(whole, target)
        target += (1 + math.exp(min(most, 700.0))) * lost * (1 + 1e-12)
        return _epsilon(whole, target) if target < 1 else 0.0
    return _epsilon(whole, target)


@lru_cache(maxsize=256)  # an audit requests the same bound several times
def _epsilon(mechanism: Mechanism, target: float) -> float:
    shown_parts = [(part, count) for part, count in parts_of(mechanism) if not in_secret_lanes(part)]
    parts = [(part, plain_gaussian(part), count) for part, count in shown_parts]
    shift_squared = sum(count * noise.mu**2 for _, noise, count in parts if noise is not None)
    shift_squared += sum(_public_shift_squared(part, count) for part, _, count in parts)
    sampled: list[tuple[SingleRelease, int]] = [
        (part, min(count, MOST_ROUNDS))  # fewer rounds show less
        for part, noise, count in parts
        if noise is None
        and gaussian_of(part) is not None
        and sampling_of(part).probability > 0
        and loss_grid.public_order(part) is None
    ]
    plain = epsilon_from_below(target, mu=math.sqrt(shift_squared) * (1 - 1e-15)) if shift_squared else 0.0
    if not sampled:
        return plain
    shown = shown_epsilon(mechanism, delta=target)
    many = sum(count for _, count in sampled) > _MANY
    if shown and many and not plain and all(sampling_of(part).name == "fixed" for part, _ in sampled):
        return shown  # a fixed pair of neighbours shows less
    finer = max(1.0, _FINER / len(sampled))  # each distinct part is a convolution of its own
    interval = loss_grid.interval(Composed(parts=tuple(sampled)), finer=finer)
    tilts = shown_schedules.TILTS if any(schedule_of(part) for part, _ in sampled) else (1.0,)
    bounds = [
        _composed_epsilon(
            [one for part, count in sampled for one in _attack_losses(part, count, choice, tilt, interval)],
            interval,
            target,
        )
        for choice in range(min(2 if schedule_of(part) else len(attack_pairs(part)) for part, _ in sampled))
        for tilt in tilts
    ]
    return max(0.0, plain, shown, *bounds)


def in_secret_lanes(part: SingleRelease) -> bool:
    """Return True for rounds in secret lanes, which have no lower bound: they hide what a public lane shows."""
    schedule = schedule_of(part)
    return isinstance(schedule, BallsAndBins) and schedule.secret_lanes


def _public_shift_squared(part: SingleRelease, count: int) -> float:
    """Return mu^2 of the client with the largest shift if the order of participation is public."""
    schedule, noise = schedule_of(part), loss_grid.public_order(part)
    return 0.0 if schedule is None or noise is None else squared_sensitivity(schedule, count) * noise.mu**2


_Quantised = tuple[LossDistribution, float, int, float]
"""Loss distribution (as of `quantised`), offset of its grid in steps, number of times, misplaced mass."""


def _attack_losses(part: SingleRelease, count: int, choice: int, tilt: float, interval: float) -> list[_Quantised]:
    """Return the losses of a fixed attack in one order of the neighbours.

    The first `count` rounds of a schedule depend on each other and are taken together.
    """
    schedule, noise = schedule_of(part), gaussian_of(part)
    if schedule is None or noise is None:
        return [quantised(attack_pairs(part)[choice], interval, count)]
    found, shift = [], noise.mu
    if isinstance(schedule, BallsAndBins):  # rounds of the first lane whose columns are not cut off, or its first one
        shift *= math.hypot(*schedule.coefficients[:count])
        schedule, count = schedule.lane_schedule, max(count // schedule.lanes, 1)
    for rounds, often in shown_schedules.independent(schedule, count):
        masses = shown_schedules.shown_pair(schedule, shift, rounds, tilt)
        first, second = masses if choice == 0 else masses[::-1]
        kept = first > 2 * shown_schedules.MASS_ERROR
        p = np.log(first[kept] - shown_schedules.MASS_ERROR)
        law, offset = rounded_down(p, np.log(second[kept] + shown_schedules.MASS_ERROR), 0.0, interval)
        found.append((law, offset, often, 0.0))
    return found


def _composed_epsilon(parts: Sequence[_Quantised], interval: float, delta: float) -> float:
    """Return epsilon of the composed quantised pairs; each pair's losses are on the grid plus its own offset."""
    offset = sum(count * shift for _, shift, count, _ in parts)
    # The summed offset is put back before anything is cut off at 0: whole steps as a certain loss, then the rest.
    steps = math.floor(offset)
    # The composition cuts its tails, which can wrap around.
    slack = composition_slack(sum(count for _, _, count, _ in parts)) + 2 * CUT
    slack += sum(misplaced for _, _, _, misplaced in parts) + (_ROUNDING if delta > 0.5 else 0.0)
    if delta + slack >= 1:
        return 0.0
    laws = [(law, count) for law, _, count, _ in parts]
    law = composed(laws)
    epsilon = _shown_epsilon(replace(law, lowest=law.lowest + steps, infinite=0.0), delta + slack)
    if slack > _NOTICED * delta:
        epsilon = max(epsilon, _tilted_epsilon(composed(tilted_for(laws, delta)), steps, delta, slack))
    return epsilon * (1 - 1e-12) + (offset - steps) * interval if epsilon > 0 else 0.0


def _tilted_epsilon(law: LossDistribution, steps: int, delta: float, slack: float) -> float:
    """Return a loss of the tilted distribution, plus `steps`, at which its delta is above `delta` even if `slack` of it
    was misplaced; 0 if there is none.

    Misplaced mass at losses above epsilon is at most slack e^(scale - tilt epsilon) of delta.
    """
    losses = law.losses[::-1]
    logs = law.scale - law.tilt * losses
    masses = law.masses[::-1] * np.exp(np.minimum(logs, 700.0))
    above = np.cumsum(masses)
    anchor = losses[min(int(np.searchsorted(np.maximum.accumulate(above), delta)), len(losses) - 1)]
    with np.errstate(over="ignore", invalid="ignore"):  # far below the anchor, where nothing is shown then
        discounted = np.cumsum(masses * np.exp(np.minimum(anchor - losses, 700.0)))
        shown = above - np.exp(np.minimum(losses - anchor, 0.0)) * discounted
    over = np.flatnonzero((shown > delta * (1 + LITTLE)) & (logs + math.log(slack / (LITTLE * delta)) < 0))
    return max(0.0, float(losses[over[0]]) + steps * law.spacing) if over.size else 0.0


def _shown_epsilon(law: LossDistribution, delta: float) -> float:
    """Return an epsilon >= 0 up to which the distribution's delta(epsilon) is above `delta` at every loss.

    The lower-bound version of `LossDistribution.smallest_epsilon`: masses that the transform has rounded below zero
    stay negative, since all masses rounded upwards would add up to a delta; and if rounding makes delta(epsilon) cross
    `delta` more than once, the first crossing counts.
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


_JUST_BELOW = 1 - 1e-6


def shown_epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """Return an epsilon below which no account of the mechanism's fixed-size rounds can be; 0 if the program is not
    run.

    The adversary chooses between a few attained configurations by the loss so far. The answer is a state of the grid,
    so the program is run again on a grid with a state where the first suggests. Direction of error: lower bound, to the
    grid. Other releases of the mechanism only add to it.
    """
    game = Game.of(mechanism)
    if game is None:
        return 0.0
    game = replace(game, whole=game.fixed, others=None)
    grid = grid_of(game, delta, BELOW)
    if grid is None or grid.reach == 0:
        return 0.0
    try:
        found = _adaptive_values(game, grid)
        near = max(found.crossing(delta), found.exchanged().crossing(delta)) * _JUST_BELOW
        steps = math.ceil(near / grid.spacing)
        again = _adaptive_values(game, replace(grid, spacing=near / steps)) if steps else found
    except ValueError:
        return 0.0
    return max(found.worse_epsilon(delta), again.worse_epsilon(delta))


def _adaptive_values(game: Game, grid: StateGrid) -> Values:
    rounds = {}
    for kind in game.kinds:
        nodes = np.arange(grid.reach + 1) if game.symmetric else nodes_of(kind, grid, BELOW)
        rounds[kind] = attained(kind, game.symmetric, nodes, grid, below=True)
    found = Values.before(grid, upper=False)
    for kind, count in reversed(game.runs):
        for _ in range(count):
            found = found.after(*rounds[kind])
    return found
