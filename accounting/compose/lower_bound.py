"""Rigorous lower bounds on epsilon from explicit pairs of neighbours, which hold for every accountant.

Participation schedules: a test statistic has exactly known distributions. In the attack of `accounting.participation`
all other clients send zero, and the differing client sends C u in each of
its rounds. An observer of the rounds x_t
computes the sum of phi(x_t). phi is the loss of one round of Poisson sampling at some probability, rounded down to a
grid. At the client's participation probability p this is nearly the loss if rounds reveal little. At a much smaller
probability phi is nearly p e^(s x - s^2 / 2), whose sum is the loss of a client that takes part in one uniform round.
Every probability gives a bound, and the largest is used (`TILTS`). The sum depends only on the number K of
participations, not on their rounds. Given K, phi(x) has the distribution of x ~ N(s, 1) in K rounds and of x ~ N(0, 1)
in all others, and the sum is their convolution. The sum is post-processing: the divergence of its two distributions is
at most that of all rounds.

For each mechanism there is a pair of neighbouring datasets whose output distributions in every round are known mixtures
of Gaussians. Quantising the output into cells is post-processing, so the exact masses of the cells form a pair with
smaller divergence. Rounding their losses down decreases it further.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
import scipy

from accounting import require
from accounting.arrays import Floats
from accounting.compose import loss_grid
from accounting.compose.adaptive_grid import BELOW, Game, grid_of, nodes_of
from accounting.compose.adaptive_kernels import attained
from accounting.compose.adaptive_program import StateGrid, Values
from accounting.compose.loss_distribution import CUT, LITTLE, LossDistribution, chernoff_window, composed, tilted_for
from accounting.compose.pld import MOST_ROUNDS, composition_slack
from accounting.compose.quantised import quantised, rounded_down
from accounting.compose.twins import overflow
from accounting.gaussian import epsilon_from_below
from accounting.gaussian.attacks import attack_pairs
from accounting.mechanisms import (
    Adjacency,
    Allocation,
    BallsAndBins,
    Composed,
    Mechanism,
    MinSeparation,
    Schedule,
    Shuffled,
    SingleRelease,
    gaussian_of,
    parts_of,
    sampling_of,
    schedule_of,
    with_whole_noise,
)
from accounting.participation.ratio_distribution import normal_cell_masses

TILTS = (1.0, 0.3, 0.1, 0.03)
"""Probabilities for phi, as multiples of p."""
_PER_SPREAD = 25.0
_FARTHEST = 12.0
_LARGEST_PHI = 200.0
"""Value at which phi is truncated. Larger values identify the neighbour, and cells up to s^2 / 2 would not fit in
memory.
"""
MASS_ERROR = 1e-14
"""Largest mass that rounding of the transform and wrapped tails can misplace in a group of cells."""
_GROUP = 1e-9
"""Smallest mass of a group of cells; cells with less mass are merged."""
_FINE_GROUP = 1e-12
_CUT = 1e-15


def independent_blocks(schedule: Schedule, count: int) -> tuple[tuple[int, int], ...]:
    """Return the first `count` rounds as independent blocks: pairs (rounds of a block, number of identically
    distributed blocks).
    """
    epoch = schedule.epoch or count
    whole, remaining = divmod(count, epoch)
    return tuple((rounds, copies) for rounds, copies in ((epoch, whole), (remaining, 1)) if rounds and copies)


@lru_cache(maxsize=64)
def distributions_of_sum(schedule: Schedule, shift: float, count: int, tilt: float) -> tuple[Floats, Floats]:
    """Return the masses of the cells of the sum over the first `count` rounds, with the client and without it.

    shift: s; tilt: the probability of phi over p. Error of a mass: at most MASS_ERROR.
    """
    without, with_ = _distributions_of_phi(tilt * schedule.probability, shift)
    probabilities = counts_distribution(schedule, count)
    numbers = np.flatnonzero(probabilities > 1e-18)
    spread = [chernoff_window([(without, count)], _CUT)]
    spread += [chernoff_window([(without, count - k), (with_, k)], _CUT) for k in {int(numbers[0]), int(numbers[-1])}]
    first, last = min(low for low, _ in spread), max(high for _, high in spread)
    length = scipy.fft.next_fast_len(max(last - first + 1, len(with_.masses)), real=True)
    transform_without, transform_with = scipy.fft.rfft(without.masses, length), scipy.fft.rfft(with_.masses, length)
    mixed = sum(probabilities[k] * transform_with**k * transform_without ** (count - k) for k in numbers)
    q, p = (np.roll(scipy.fft.irfft(part, length), -(first % length)) for part in (transform_without**count, mixed))
    return _merged_cells(np.maximum(p, 0.0), np.maximum(q, 0.0))


@lru_cache(maxsize=64)
def distributions_of_largest_round(schedule: Shuffled, means: tuple[float, float], count: int) -> tuple[Floats, Floats]:
    """Return the masses of the cells of the largest of the first `count` rounds of one epoch, for both neighbours.

    Under shuffled epochs all other clients send -C, which is subtracted; so the batch of the differing client reveals
    itself. means: mean of that batch over the noise, for each neighbour. Its probability to be in these rounds is count
    * cohort / clients. Error of a mass: at most MASS_ERROR.
    Source: Chua et al. 2024, arXiv 2411.04205.
    """
    takes_part = min(count * schedule.probability, 1.0)
    x = np.linspace(-_FARTHEST, max(means) + _FARTHEST, 400_001)
    one_round = scipy.special.log_ndtr(x)

    def masses(mean: float) -> Floats:
        log_cdf = math.log(takes_part) + scipy.special.log_ndtr(x - mean) + (count - 1) * one_round
        if takes_part < 1:
            log_cdf = np.logaddexp(log_cdf, math.log1p(-takes_part) + count * one_round)
        below, above = np.exp(log_cdf), -np.expm1(log_cdf)
        inner = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
        return np.asarray(np.maximum(np.concatenate([below[:1], inner, above[-1:]]), 0.0))

    return _merged_cells(masses(means[0]), masses(means[1]), _FINE_GROUP)


def _distributions_of_phi(chance: float, shift: float) -> tuple[LossDistribution, LossDistribution]:
    """Return the distributions of phi on one grid, without and with the client."""
    spread = chance * math.sqrt(math.expm1(min(shift * shift, 50.0)))
    spacing = min(max(spread, 1e-6), 0.5) / _PER_SPREAD
    x = np.linspace(-_FARTHEST, _FARTHEST + shift, 400_001)
    phi = np.logaddexp(math.log1p(-chance), math.log(chance) + shift * x - shift * shift / 2)
    phi = np.minimum(phi, _LARGEST_PHI)
    cells = np.floor(phi / spacing).astype(np.int64)
    lowest, edges = int(cells[0]), np.concatenate([[-np.inf], x[1:], [np.inf]])

    def phi_under(mean: float) -> LossDistribution:
        summed = np.bincount(cells - lowest, weights=normal_cell_masses(edges - mean))
        return LossDistribution(spacing=spacing, lowest=lowest, masses=np.asarray(summed / summed.sum()), infinite=0.0)

    return phi_under(0.0), phi_under(shift)


def _merged_cells(p: Floats, q: Floats, least: float = _GROUP) -> tuple[Floats, Floats]:
    """Merge consecutive cells until their mass is about `least`."""
    group = np.floor(np.cumsum(np.minimum(p, q)) / least).astype(np.int64)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return np.add.reduceat(p, starts), np.add.reduceat(q, starts)


def counts_distribution(schedule: Schedule, count: int) -> Floats:
    """Return the probabilities of 0, 1, 2, ... participations of one client in the first `count` rounds.

    They are exact up to rounding; for a cyclic order they are those of the first client.
    """
    if schedule.name in _COUNTS:
        return _COUNTS[schedule.name](schedule, count)
    probabilities = np.zeros(schedule.most_participations(count) + 1)
    probabilities[-1] = 1.0
    return probabilities


def _epoch_counts(schedule: BallsAndBins, count: int) -> Floats:
    probabilities = np.zeros(count // schedule.bins + 2)
    probabilities[-1] = (count % schedule.bins) / schedule.bins
    probabilities[-2] = 1 - probabilities[-1]
    return probabilities


def _shuffled_counts(schedule: Shuffled, count: int) -> Floats:
    takes_part = count * schedule.probability  # of one epoch
    return np.array([max(1 - takes_part, 0.0), min(takes_part, 1.0)])


def _allocation_counts(schedule: Allocation, count: int) -> Floats:
    """Return hypergeometric probabilities by their ratios; those of scipy have errors of 1e-8 at 10^8 rounds."""
    inside, outside = schedule.participations, schedule.rounds - schedule.participations
    least = max(count - outside, 0)
    k = np.arange(float(least), schedule.most_participations(count))
    logs = np.append(0.0, np.cumsum(np.log((inside - k) * (count - k) / ((k + 1) * (outside - count + k + 1)))))
    weights = np.exp(logs - logs.max())
    return np.concatenate([np.zeros(least), weights / weights.sum()])


def _renewal_counts(schedule: MinSeparation, count: int) -> Floats:
    """Return the probabilities by a Markov chain over (remaining rest, participations so far), with a stationary
    start.
    """
    if count <= schedule.separation:  # at most one participation
        return np.array([1 - count * schedule.probability, count * schedule.probability])
    rest_rounds, coin = schedule.separation - 1, schedule.coin
    state = np.zeros((rest_rounds + 1, schedule.most_participations(count) + 2))
    state[:, 0] = schedule.probability
    state[0, 0] = 1 - rest_rounds * schedule.probability
    for _ in range(count):
        free = state[0]
        state = np.vstack([state[1:], np.append(0.0, coin * free[:-1])])  # clients that participate rest longest
        state[0] += (1 - coin) * free
    return np.asarray(state.sum(axis=0))


_COUNTS: dict[str, Callable[[Any, int], Floats]] = {
    "balls-and-bins": _epoch_counts,
    "allocation": _allocation_counts,
    "shuffled": _shuffled_counts,
    "min-separation": _renewal_counts,
}


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
    target, whole, failure = require.open_probability(delta=delta), with_whole_noise(mechanism), overflow(mechanism)
    if failure:
        target += (1 + math.exp(min(_lower_bound(whole, target), 700.0))) * failure * (1 + 1e-12)
    return _lower_bound(whole, target) if target < 1 else 0.0


@lru_cache(maxsize=256)  # an audit requests the same bound several times
def _lower_bound(mechanism: Mechanism, target: float) -> float:
    shift_squared, sampled = 0.0, list[tuple[SingleRelease, int]]()
    for part, count in parts_of(mechanism):
        if sampling_of(part).secret_lanes or gaussian_of(part) is None:
            continue  # the lower bound of public lanes does not hold for secret ones
        shift = None if sampling_of(part).attack_is_weaker else loss_grid.squared_shift(part, count)
        if shift is not None:
            shift_squared += shift
        elif sampling_of(part).probability > 0:
            sampled.append((part, min(count, MOST_ROUNDS)))  # the bound of fewer rounds is smaller
    plain = epsilon_from_below(target, mu=math.sqrt(shift_squared) * (1 - 1e-15)) if shift_squared else 0.0
    if not sampled:
        return plain
    adaptive_bound = adaptive_lower_bound(mechanism, delta=target)
    has_many_rounds = sum(count for _, count in sampled) > _FEW_ROUNDS
    if adaptive_bound and has_many_rounds and not plain and all(sampling_of(part).fixed_size for part, _ in sampled):
        return adaptive_bound  # a fixed pair of neighbours gives a smaller bound
    finer = max(1.0, _FINER / len(sampled))  # each distinct part is a separate convolution
    interval = loss_grid.interval(Composed(parts=tuple(sampled)), finer=finer)
    tilts: tuple[float | None, ...] = TILTS if any(schedule_of(part) for part, _ in sampled) else (1.0,)
    if any(sampling_of(part).name == "shuffled" for part, _ in sampled):
        tilts = (*tilts, None)
    bounds = [plain, adaptive_bound]
    choices = range(min(2 if schedule_of(part) else len(attack_pairs(part)) for part, _ in sampled))
    for choice, tilt in itertools.product(choices, tilts):
        losses = [one for part, count in sampled for one in _attack_losses(part, count, choice, tilt, interval)]
        bounds.append(_composed_epsilon(losses, interval, target))
    return max(0.0, *bounds)


_Quantised = tuple[LossDistribution, float, int, float]
"""Result of `quantised`: loss distribution, offset of its grid in steps, number of rounds, misplaced mass."""


def _attack_losses(
    part: SingleRelease, count: int, choice: int, tilt: float | None, interval: float
) -> list[_Quantised]:
    """Return the losses of a fixed attack in one order of the neighbours.

    The first `count` rounds of a schedule depend on each other and are treated jointly. tilt: that of
    `distributions_of_sum`; None for the largest round of a shuffled epoch.
    """
    schedule, noise = schedule_of(part), gaussian_of(part)
    if schedule is None or noise is None:
        return [quantised(attack_pairs(part)[choice], interval, count)]
    found, shift = [], noise.mu * schedule.norm(count)
    # Rounds of the first lane whose columns are not truncated, at least one.
    schedule, count = schedule.lane_schedule, max(count // schedule.lanes, 1)
    for rounds, copies in independent_blocks(schedule, count):
        if tilt is None and schedule.name == "shuffled":
            other = 0.0 if part.adjacency is Adjacency.REPLACE_ONE else shift
            masses = distributions_of_largest_round(cast(Shuffled, schedule), (shift + other, other), rounds)
        else:
            masses = distributions_of_sum(schedule, shift, rounds, tilt or 1.0)
        first, second = masses if choice == 0 else masses[::-1]
        kept = first > 2 * MASS_ERROR
        p = np.log(first[kept] - MASS_ERROR)
        distribution, offset = rounded_down(p, np.log(second[kept] + MASS_ERROR), 0.0, interval)
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
    total = composed(distributions)
    epsilon = _epsilon_of_distribution(replace(total, lowest=total.lowest + steps, infinite=0.0), delta + slack)
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
    losses, masses = distribution.losses[::-1], distribution.masses[::-1]
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
        near = max(one.approximate_crossing(delta) for one in (found, found.exchanged())) * _JUST_BELOW
        steps = math.ceil(near / grid.spacing)
        refined = _adaptive_values(game, replace(grid, spacing=near / steps)) if steps else found
    except ValueError:
        return 0.0
    return max(found.worse_epsilon(delta), refined.worse_epsilon(delta))


def _adaptive_values(game: Game, grid: StateGrid) -> Values:
    rounds = {}
    for kind in game.kinds:
        nodes = np.arange(grid.largest_step + 1) if game.symmetric else nodes_of(kind, grid, BELOW)
        rounds[kind] = attained(kind, game.symmetric, nodes, grid, below=True)
    return Values.for_no_rounds(grid, upper=False).with_rounds(game.runs, rounds)
