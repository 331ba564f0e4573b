"""Kernels of a round for the adaptive account: a cover of all configurations, or a few attained configurations.

Every cover gives a valid bound. The program of a few attained pairs measures its tightness: each state is weighted by
the effect of a small gain in this state on the result. So the weighted gains of cells beyond the attained pairs add up
to the excess of the cover. Cells with most of that excess are divided. Cells that no adversary would choose are then
merged: the maximum of their profiles is the profile of one pair.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from accounting.arrays import Floats, Ints
from accounting.compose.adaptive_grid import ROUGH, Fineness, Game, RoundKind, grid_of, nodes_of
from accounting.compose.adaptive_program import Kernel, Kernels, StateGrid, Values, dominated_kernel, dominating_kernel
from accounting.gaussian.configurations import (
    RIGHT,
    Configurations,
    FixedSizeRound,
    Profiles,
    all_arcs,
    all_triangles,
    attained_profiles,
    extremes,
)
from accounting.mechanisms import Adjacency, Composed, FixedSizeSampling, Gaussian, Subsampled

Groups = tuple[tuple[Configurations, ...], ...]
"""Groups of cells that together cover all configurations; the cells of one group form one kernel."""

_SLICES = 8
_SHARE, _MOST_AT_ONCE = 0.85, 24
_TRIES = 3
_ALONE, _TOGETHER = 0.02, 0.01
"""Shares of the total excess. A cell above the first share is a separate group; merging two groups may add at most
the second share.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedRounds:
    """Recorded rounds of the program of attained pairs: the values V before and after each round, and the weights of
    its states.
    """

    grid: StateGrid
    values_before: tuple[Values, ...]
    spectra: tuple[Floats, ...]
    values_after: Floats
    weights: Floats
    slope: float
    epsilon: float

    def advantage(self, kernel: Kernel) -> Floats:
        """Return the gain of a kernel over the attained pairs at each state of the recorded rounds; negative if it
        is worse.
        """
        kernels = Kernels.of([kernel], self.grid)
        found = [
            values.all_choices(kernels, spectrum)[0]
            for values, spectrum in zip(self.values_before, self.spectra, strict=True)
        ]
        return np.asarray(np.array(found) - self.values_after, dtype=np.float32)


def recorded_program(
    grid: StateGrid, attained: Kernels, back: Kernels | None, *, rounds: int, delta: float
) -> RecordedRounds:
    """Run the program of the attained pairs for `rounds` rounds, and record some of the rounds."""
    values, passed, chosen = Values.for_no_rounds(grid, upper=True), [], []
    for _ in range(rounds):
        passed.append(values)
        chosen.append(values.all_choices(attained, values.spectrum()).argmax(axis=0).astype(np.int8))
        values = values.with_another_round(attained, back)
    epsilon = min(values.epsilon(delta), grid.states * grid.spacing)
    place = min(max(math.floor(epsilon / grid.spacing), 1), grid.states - 1)
    weights = np.zeros(grid.states + 1)
    weights[place] = 1.0
    interval = max(rounds // _SLICES, 1)
    recorded, share = [], []
    for number in range(rounds - 1, -1, -1):
        if (rounds - 1 - number) % interval == interval // 2 or rounds == 1:
            recorded.append(number)
            share.append(weights * interval)
        weights = _weights_after(weights, chosen[number], attained, grid)
    before = tuple(passed[number] for number in recorded)
    spectra = tuple(one.spectrum() for one in before)
    after = [one.all_choices(attained, spectrum).max(axis=0) for one, spectrum in zip(before, spectra, strict=True)]
    slope = (values.forward[place - 1] - values.forward[place + 1]) / (2 * grid.spacing)
    return RecordedRounds(
        grid=grid, values_before=before, spectra=spectra, values_after=np.array(after), weights=np.array(share),
        slope=float(slope), epsilon=epsilon,
    )  # fmt: skip


def _weights_after(weights: Floats, chosen: Floats, attained: Kernels, grid: StateGrid) -> Floats:
    """Return the weights of the states after one round of the best attained pairs. States with gamma < 1 are
    mirrored to gamma > 1.
    """
    moved = np.zeros(grid.states + 1)
    for number, masses in enumerate(attained.spectra):
        spectrum = scipy.fft.rfft(np.where(chosen == number, weights, 0.0), grid.size)
        # A loss of l steps moves state i to i - l, so the masses are mirrored.
        flow = np.roll(scipy.fft.irfft(spectrum * masses.conj(), grid.size), grid.largest_step)
        moved += flow[: grid.states + 1]
        left = min(grid.largest_step, grid.states)
        moved[1 : left + 1] += flow[: -left - 1 : -1] * grid.shrink[::-1][:left]
    return np.maximum(moved, 0.0)


def refined_cover(
    cells: Sequence[Configurations],
    recording: RecordedRounds,
    kernel: Callable[[Sequence[Configurations]], Kernel],
    *,
    tolerance: float,
    most: int,
) -> Groups:
    """Return a cover with an excess of about `tolerance`, relative to epsilon, and at most about `most` cells."""
    allowed = tolerance * recording.epsilon * recording.slope
    advantages: dict[Configurations, Floats] = {}
    cover = list(cells)
    while True:
        for cell in cover:
            if cell not in advantages:
                advantages[cell] = recording.advantage(kernel([cell]))
        costs = _excess_of_cells([advantages[cell] for cell in cover], recording.weights)
        parts: list[list[Configurations]] = [list(cell.parts()) for cell in cover]
        split = _cells_to_divide(np.where([len(some) > 1 for some in parts], costs, 0.0))
        if costs.sum() <= allowed or len(cover) >= most or not split:
            return _merged_groups(cover, advantages, costs, recording, kernel)
        cover = [part for k, cell in enumerate(cover) for part in (parts[k] if k in split else [cell])]


def _excess_of_cells(advantages: Sequence[Floats], weights: Floats) -> Floats:
    """Return the weighted excess of each cell over the states at which it is the best cell."""
    stack = np.array(advantages)
    best = stack.argmax(axis=0)
    gain = np.maximum(stack.max(axis=0), 0.0) * weights
    return np.asarray(np.bincount(best.ravel(), weights=gain.ravel(), minlength=len(stack)), dtype=float)


def _cells_to_divide(costs: Floats) -> set[int]:
    order = np.argsort(-costs)
    number_needed = int(np.searchsorted(np.cumsum(costs[order]), _SHARE * costs.sum())) + 1
    return {int(k) for k in order[: min(number_needed, _MOST_AT_ONCE)] if costs[k] > 0}


def _merged_groups(
    cells: Sequence[Configurations],
    advantages: dict[Configurations, Floats],
    costs: Floats,
    recording: RecordedRounds,
    kernel: Callable[[Sequence[Configurations]], Kernel],
) -> Groups:
    """Return each cell with large excess as a separate group, and the remaining cells in groups that add little
    excess.
    """
    total = float(costs.sum())
    best = np.maximum(np.array([advantages[cell] for cell in cells]).max(axis=0), 0.0)
    separate = [(cell,) for cell, cost in zip(cells, costs, strict=True) if cost > _ALONE * total]
    groups: list[tuple[Configurations, ...]] = []
    for cell, cost in zip(cells, costs, strict=True):
        if cost > _ALONE * total:
            continue
        for place, group in list(enumerate(groups))[-_TRIES:]:
            added = np.maximum(recording.advantage(kernel([*group, cell])) - best, 0.0) * recording.weights
            if float(added.sum()) <= _TOGETHER * total:
                groups[place] = (*group, cell)
                break
        else:
            groups.append((cell,))
    return (*separate, *groups)


def kernel_of(cells: Sequence[Configurations], sampled_round: FixedSizeRound, nodes: Ints, grid: StateGrid) -> Kernel:
    """Return one kernel that dominates all configurations in these cells."""
    profiles: list[Profiles] = [cell.profiles(sampled_round) for cell in cells]
    forth = np.max([one for one, _ in profiles], axis=0)
    back = np.max([one for _, one in profiles], axis=0)
    return dominating_kernel(nodes, forth, back, grid)


_PARTS = 10**6
_ATTAINED_ANGLES = tuple(int(part * RIGHT) & ~1 for part in (1.4, 1.6, 1.8))


def kernels_of(
    kind: RoundKind, rounds: int, delta: float, symmetric: bool, fineness: Fineness, grid: StateGrid
) -> tuple[Kernels, Kernels | None]:
    """Return the kernels of a round for both orders of the neighbours; the second is None if it equals the first."""
    nodes = nodes_of(kind, grid, fineness if symmetric else fineness.of_arcs())
    if not fineness.most_cells:
        return attained(kind, symmetric, nodes, grid, below=False)
    sampled_round = FixedSizeRound(q=kind.q, s=kind.s, losses=grid.losses(nodes))

    def kernels(groups: Groups) -> Kernels:
        return Kernels.of([kernel_of(cells, sampled_round, nodes, grid) for cells in groups], grid)

    forth, back = _covers_of_orders(*_rounded_settings(kind, rounds, delta), symmetric, fineness)
    return kernels(forth), None if back is None else kernels(back)


def attained(
    kind: RoundKind, symmetric: bool, nodes: Ints, grid: StateGrid, *, below: bool
) -> tuple[Kernels, Kernels | None]:
    """Return kernels of attained configurations, for a lower bound (`below`) or for choosing a cover."""
    sampled_round = FixedSizeRound(q=kind.q, s=kind.s, losses=grid.losses(nodes))
    make = dominated_kernel if below else dominating_kernel
    pairs = extremes(sampled_round) if symmetric else attained_profiles(sampled_round, _ATTAINED_ANGLES)
    forth = Kernels.of([make(nodes, one, two, grid) for one, two in pairs], grid)
    return forth, None if symmetric else Kernels.of([make(nodes, two, one, grid) for one, two in pairs], grid)


def _rounded_settings(kind: RoundKind, rounds: int, delta: float) -> tuple[RoundKind, int, float]:
    """Return rounded settings, for which a cover is chosen. The cover is valid for all settings, so similar settings
    share it.
    """
    return (
        RoundKind(q=min(2 ** (round(4 * math.log2(kind.q)) / 4), 0.99), s=2 ** (round(8 * math.log2(kind.s)) / 8)),
        round(2 ** (round(2 * math.log2(rounds)) / 2)),
        min(10.0 ** math.floor(math.log10(delta) + 0.5), 0.3),
    )


@lru_cache(maxsize=64)
def _covers_of_orders(
    kind: RoundKind, rounds: int, delta: float, symmetric: bool, fineness: Fineness
) -> tuple[Groups, Groups | None]:
    """Return the groups of cells for both orders of the neighbours, chosen on a coarse grid."""
    cells = all_triangles() if symmetric else all_arcs(restored=False)
    # Under zero-out the order with the zeroed neighbour first has by far the smaller epsilon.
    back = None if symmetric else tuple((cell,) for cell in all_arcs(restored=True))
    noise = Gaussian(noise_multiplier=1 / kind.s, adjacency=Adjacency.REPLACE_ONE if symmetric else Adjacency.ZERO_OUT)
    sampling = FixedSizeSampling(cohort=max(round(kind.q * _PARTS), 1), clients=_PARTS)
    game = Game.of(Composed(parts=((Subsampled(mechanism=noise, sampling=sampling), rounds),)))
    grid = None if game is None else grid_of(game, delta, ROUGH)
    if grid is None:
        return tuple((cell,) for cell in cells), back
    nodes = nodes_of(kind, grid, ROUGH)
    sampled_round = FixedSizeRound(q=kind.q, s=kind.s, losses=grid.losses(nodes))
    pairs = attained(kind, symmetric, nodes, grid, below=False)
    cover = refined_cover(
        cells,
        recorded_program(grid, *pairs, rounds=rounds, delta=delta),
        lambda some: kernel_of(some, sampled_round, nodes, grid),
        tolerance=fineness.cover_excess,
        most=fineness.most_cells,
    )
    return cover, back
