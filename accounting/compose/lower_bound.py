"""Rigorous lower bounds on epsilon from explicit pairs of neighbours, which hold for every accountant.

For each mechanism there is a pair of neighbouring datasets whose output distributions in every round are known mixtures
of Gaussians. Quantising the output into cells is post-processing, so the exact masses of the cells form a pair with
smaller divergence. Rounding their losses down decreases it further.
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

# Rounding error as a share of delta above which a second, tilted composition is computed.
_TILTED_ABOVE = 1e-4
# The grid is finer, because errors of rounding down are proportional to the spacing, those of connecting the dots to
# its square.
_FINER = 16.0
# Rounding error of masses and their sums, which is relevant if 1 - delta is of this size.
_ROUNDING = 1e-12
# Number of rounds above which choosing neighbours by the loss so far gives a larger bound than a fixed pair.
_FEW_ROUNDS = 20


def epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """Return a lower bound on the epsilon of every correct account of the mechanism at `delta`.

    Claim: the neighbours of `attack_pairs`, equal in every round, have at least this epsilon. Under fixed-size sampling
    so do those of `adaptive_lower_bound`, which are chosen in each round by the loss so far and may have a larger
    epsilon. If releases may overflow, with total probability b, both neighbours are within total variation b of those
    without overflow. So H_gamma decreases by at most (1 + gamma) b, and the lower bound without overflow at delta + (1
    + e^epsilon) b holds.
    Direction of error: lower bound. It is exact for unsampled Gaussians. For Poisson sampling the pair is the
    dominating pair, so the bound equals the upper bound up to the grids; for fixed-size sampling it nearly does.
    """
    target = require.open_probability(delta=delta)
    whole = with_whole_noise(mechanism)
    overflow_probability = math.fsum(count * unsampled(part).overflow for part, count in parts_of(mechanism))
    if overflow_probability:
        most = _lower_bound(whole, target)
        target += (1 + math.exp(min(most, 700.0))) * overflow_probability * (1 + 1e-12)
        return _lower_bound(whole, target) if target < 1 else 0.0
    return _lower_bound(whole, target)


@lru_cache(maxsize=256)  # an audit requests the same bound several times
def _lower_bound(mechanism: Mechanism, target: float) -> float:
    public_parts = [(part, count) for part, count in parts_of(mechanism) if not in_secret_lanes(part)]
    parts = [(part, plain_gaussian(part), count) for part, count in public_parts]
    shift_squared = sum(count * noise.mu**2 for _, noise, count in parts if noise is not None)
    shift_squared += sum(_public_shift_squared(part, count) for part, _, count in parts)
    sampled: list[tuple[SingleRelease, int]] = [
        (part, min(count, MOST_ROUNDS))  # the bound of fewer rounds is smaller
        for part, noise, count in parts
        if noise is None
        and gaussian_of(part) is not None
        and sampling_of(part).probability > 0
        and loss_grid.gaussian_in_public_order(part) is None
    ]
    plain = epsilon_from_below(target, mu=math.sqrt(shift_squared) * (1 - 1e-15)) if shift_squared else 0.0
    if not sampled:
        return plain
    adaptive_bound = adaptive_lower_bound(mechanism, delta=target)
    has_many_rounds = sum(count for _, count in sampled) > _FEW_ROUNDS
    if (
        adaptive_bound
        and has_many_rounds
        and not plain
        and all(sampling_of(part).name == "fixed" for part, _ in sampled)
    ):
        return adaptive_bound  # a fixed pair of neighbours gives a smaller bound
    finer = max(1.0, _FINER / len(sampled))  # each distinct part is a separate convolution
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
    return max(0.0, plain, adaptive_bound, *bounds)


def in_secret_lanes(part: SingleRelease) -> bool:
    """Return True for rounds in secret lanes, for which no lower bound is implemented: that of public lanes does not
    hold.
    """
    schedule = schedule_of(part)
    return isinstance(schedule, BallsAndBins) and schedule.secret_lanes


def _public_shift_squared(part: SingleRelease, count: int) -> float:
    """Return mu^2 of the client with the largest shift if the order of participation is public."""
    schedule, noise = schedule_of(part), loss_grid.gaussian_in_public_order(part)
    return 0.0 if schedule is None or noise is None else squared_sensitivity(schedule, count) * noise.mu**2


_Quantised = tuple[LossDistribution, float, int, float]
"""Result of `quantised`: loss distribution, offset of its grid in steps, number of rounds, misplaced mass."""


def _attack_losses(part: SingleRelease, count: int, choice: int, tilt: float, interval: float) -> list[_Quantised]:
    """Return the losses of a fixed attack in one order of the neighbours.

    The first `count` rounds of a schedule depend on each other and are treated jointly.
    """
    schedule, noise = schedule_of(part), gaussian_of(part)
    if schedule is None or noise is None:
        return [quantised(attack_pairs(part)[choice], interval, count)]
    found, shift = [], noise.mu
    if isinstance(schedule, BallsAndBins):  # rounds of the first lane whose columns are not truncated, at least one
        shift *= math.hypot(*schedule.coefficients[:count])
        schedule, count = schedule.lane_schedule, max(count // schedule.lanes, 1)
    for rounds, copies in shown_schedules.independent_blocks(schedule, count):
        masses = shown_schedules.distributions_of_sum(schedule, shift, rounds, tilt)
        first, second = masses if choice == 0 else masses[::-1]
        kept = first > 2 * shown_schedules.MASS_ERROR
        p = np.log(first[kept] - shown_schedules.MASS_ERROR)
        distribution, offset = rounded_down(p, np.log(second[kept] + shown_schedules.MASS_ERROR), 0.0, interval)
        found.append((distribution, offset, copies, 0.0))
    return found


def _composed_epsilon(parts: Sequence[_Quantised], interval: float, delta: float) -> float:
    """Return epsilon of the composition of quantised pairs. The losses of each pair are on the grid shifted by the
    pair's offset.
    """
    offset = sum(count * shift for _, shift, count, _ in parts)
    # The sum of the offsets is added before truncation at 0: whole steps as a certain loss, then the remainder.
    steps = math.floor(offset)
    # The composition truncates its tails, which can wrap around.
    slack = composition_slack(sum(count for _, _, count, _ in parts)) + 2 * CUT
    slack += sum(misplaced for _, _, _, misplaced in parts) + (_ROUNDING if delta > 0.5 else 0.0)
    if delta + slack >= 1:
        return 0.0
    distributions = [(distribution, count) for distribution, _, count, _ in parts]
    distribution = composed(distributions)
    epsilon = _epsilon_of_distribution(
        replace(distribution, lowest=distribution.lowest + steps, infinite=0.0), delta + slack
    )
    if slack > _TILTED_ABOVE * delta:
        epsilon = max(epsilon, _tilted_epsilon(composed(tilted_for(distributions, delta)), steps, delta, slack))
    return epsilon * (1 - 1e-12) + (offset - steps) * interval if epsilon > 0 else 0.0


def _tilted_epsilon(distribution: LossDistribution, steps: int, delta: float, slack: float) -> float:
    """Return a loss, plus `steps`, at which the tilted distribution has a delta above `delta` even if mass `slack` is
    misplaced; 0 if there is no such loss.

    Misplaced mass at losses above epsilon is at most slack e^(scale - tilt epsilon) of delta.
    """
    losses = distribution.losses[::-1]
    logs = distribution.scale - distribution.tilt * losses
    masses = distribution.masses[::-1] * np.exp(np.minimum(logs, 700.0))
    above = np.cumsum(masses)
    anchor = losses[min(int(np.searchsorted(np.maximum.accumulate(above), delta)), len(losses) - 1)]
    with np.errstate(over="ignore", invalid="ignore"):  # far below the anchor the result is not used
        discounted = np.cumsum(masses * np.exp(np.minimum(anchor - losses, 700.0)))
        deltas = above - np.exp(np.minimum(losses - anchor, 0.0)) * discounted
    over = np.flatnonzero((deltas > delta * (1 + LITTLE)) & (logs + math.log(slack / (LITTLE * delta)) < 0))
    return max(0.0, float(losses[over[0]]) + steps * distribution.spacing) if over.size else 0.0


def _epsilon_of_distribution(distribution: LossDistribution, delta: float) -> float:
    """Return an epsilon >= 0 up to which delta(epsilon) of the distribution is above `delta` at every loss.

    This is the lower-bound version of `LossDistribution.smallest_epsilon`. Masses that the transform has rounded below
    zero stay negative, because rounding all of them upwards would increase delta. If rounding makes delta(epsilon)
    cross `delta` more than once, the first crossing is used.
    """
    losses = distribution.spacing * (distribution.lowest + np.arange(len(distribution.masses), dtype=float))[::-1]
    masses = distribution.masses[::-1]
    above = distribution.infinite + np.cumsum(masses)
    most = np.maximum.accumulate(above)
    anchor = losses[min(int(np.searchsorted(most, delta)), len(losses) - 1)]
    representable = losses > max(anchor - 600.0, 0.0)  # so that exponents do not overflow
    losses, above = losses[representable], above[representable]
    discounted = np.cumsum(masses[: len(losses)] * np.exp(anchor - losses))
    within = np.flatnonzero(above - np.exp(np.minimum(losses - anchor, 0.0)) * discounted <= delta)
    if not len(losses) or not within.size:
        return max(0.0, float(losses[0])) if len(losses) else 0.0
    k = int(within[-1])  # losses are in decreasing order: at all following ones delta(epsilon) is above `delta`
    lower = float(losses[k + 1]) if k + 1 < len(losses) else 0.0
    if above[k] <= delta or discounted[k] <= 0:
        return lower
    crossing = float(anchor) + math.log((above[k] - delta) / discounted[k])
    return min(max(crossing, lower), float(losses[k]))


_JUST_BELOW = 1 - 1e-6


def adaptive_lower_bound(mechanism: Mechanism, *, delta: float) -> float:
    """Return a lower bound on the epsilon of the mechanism's fixed-size rounds; 0 if the adaptive program does not
    apply.

    The adversary chooses between a few attained configurations by the loss so far. The result is a state of the grid,
    so the program is run again on a grid with a state at the first result.
    Direction of error: lower bound, up to the grid. Other releases of the mechanism are ignored, which decreases the
    bound.
    """
    game = Game.of(mechanism)
    if game is None:
        return 0.0
    game = replace(game, mechanism=game.fixed, without_choice=None)
    grid = grid_of(game, delta, BELOW)
    if grid is None or grid.largest_step == 0:
        return 0.0
    try:
        found = _adaptive_values(game, grid)
        approximate_epsilon = (
            max(found.approximate_crossing(delta), found.exchanged().approximate_crossing(delta)) * _JUST_BELOW
        )
        steps = math.ceil(approximate_epsilon / grid.spacing)
        refined = _adaptive_values(game, replace(grid, spacing=approximate_epsilon / steps)) if steps else found
    except ValueError:
        return 0.0
    return max(found.worse_epsilon(delta), refined.worse_epsilon(delta))


def _adaptive_values(game: Game, grid: StateGrid) -> Values:
    rounds = {}
    for kind in game.kinds:
        nodes = np.arange(grid.largest_step + 1) if game.symmetric else nodes_of(kind, grid, BELOW)
        rounds[kind] = attained(kind, game.symmetric, nodes, grid, below=True)
    found = Values.for_no_rounds(grid, upper=False)
    for kind, count in reversed(game.runs):
        for _ in range(count):
            found = found.with_another_round(*rounds[kind])
    return found
