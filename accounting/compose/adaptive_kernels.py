"""Kernels of a round: a cover of all configurations, or a few attained ones.

Every cover is valid. The program of a few attained pairs measures how tight a cover is: its states are weighted by the
effect of a small gain there on the result, so the gain that cells allow beyond the attained pairs adds up to the excess
of the cover. Cells with most of that excess are divided. Cells that no adversary would choose are then joined: the
larger of their profiles is the profile of one pair.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from accounting.arrays import Floats, Ints
from accounting.compose.adaptive_grid import ROUGH, Fineness, Game, RoundKind, grid_of, nodes_of
from accounting.compose.adaptive_program import Kernel, Kernels, StateGrid, Values, dominated, dominating
from accounting.gaussian.configurations import (
    RIGHT,
    Configurations,
    FixedSizeRound,
    Profiles,
    all_arcs,
    all_triangles,
    extremes,
    shown,
)
from accounting.mechanisms import Composed, FixedSizeSampling, Gaussian, Subsampled
from accounting.mechanisms.adjacency import Adjacency

Groups = tuple[tuple[Configurations, ...], ...]
"""Cells that cover all configurations; the cells of a group are one kernel."""

_SLICES = 8
_SHARE, _MOST_AT_ONCE = 0.85, 24
_TRIES = 3
_ALONE, _TOGETHER = 0.02, 0.01
"""Shares of the whole excess: above the first a cell is a group alone; joining two groups adds at most the second."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Watched:
    """Some rounds of the program of attained pairs: V before and after each, and the weights of its states."""

    grid: StateGrid
    before: tuple[Values, ...]
    spectra: tuple[Floats, ...]
    after: Floats
    weights: Floats
    slope: float
    epsilon: float

    def advantage(self, kernel: Kernel) -> Floats:
        """Return the gain of this pair at each state of the recorded rounds; negative if it is worse."""
        kernels = Kernels.of([kernel], self.grid)
        found = [
            values.all_choices(kernels, spectrum)[0] for values, spectrum in zip(self.before, self.spectra, strict=True)
        ]
        return np.asarray(np.array(found) - self.after, dtype=np.float32)


def watched(grid: StateGrid, attained: Kernels, back: Kernels | None, *, rounds: int, delta: float) -> Watched:
    """Return `rounds` rounds of the attained pairs, with a record of some of them."""
    values, passed, chosen = Values.before(grid, upper=True), [], []
    for _ in range(rounds):
        passed.append(values)
        chosen.append(values.all_choices(attained, values.spectrum()).argmax(axis=0).astype(np.int8))
        values = values.after(attained, back)
    epsilon = min(values.epsilon(delta), grid.states * grid.spacing)
    place = min(max(math.floor(epsilon / grid.spacing), 1), grid.states - 1)
    weights = np.zeros(grid.states + 1)
    weights[place] = 1.0
    every = max(rounds // _SLICES, 1)
    kept, share = [], []
    for number in range(rounds - 1, -1, -1):
        if (rounds - 1 - number) % every == every // 2 or rounds == 1:
            kept.append(number)
            share.append(weights * every)
        weights = _weights_after_round(weights, chosen[number], attained, grid)
    before = tuple(passed[number] for number in kept)
    spectra = tuple(one.spectrum() for one in before)
    after = [one.all_choices(attained, spectrum).max(axis=0) for one, spectrum in zip(before, spectra, strict=True)]
    slope = (values.forth[place - 1] - values.forth[place + 1]) / (2 * grid.spacing)
    return Watched(
        grid=grid, before=before, spectra=spectra, after=np.array(after), weights=np.array(share),
        slope=float(slope), epsilon=epsilon,
    )  # fmt: skip


def _weights_after_round(weights: Floats, chosen: Floats, attained: Kernels, grid: StateGrid) -> Floats:
    """Return the weights of the states after a round of their best attained pairs; gamma < 1 is folded back."""
    from scipy import fft

    moved = np.zeros(grid.states + 1)
    for number in range(len(attained)):
        here = np.where(chosen == number, weights, 0.0)
        spectrum = fft.rfft(np.concatenate([here, np.zeros(grid.size - len(here))]))
        # A loss of l steps takes state i to i - l: the masses mirrored.
        flow = fft.irfft(spectrum * attained.spectra[number].conj(), grid.size)
        flow = np.roll(flow, grid.reach)
        moved += flow[: grid.states + 1]
        left = min(grid.reach, grid.states)
        moved[1 : left + 1] += flow[: -left - 1 : -1] * grid.shrink[::-1][:left]
    return np.maximum(moved, 0.0)


def divided(
    cells: Sequence[Configurations],
    watch: Watched,
    kernel: Callable[[Sequence[Configurations]], Kernel],
    *,
    tolerance: float,
    most: int,
) -> Groups:
    """Return a cover whose excess is about `tolerance`, relative to epsilon, in at most about `most` cells."""
    allowed = tolerance * watch.epsilon * watch.slope
    known: dict[Configurations, Floats] = {}
    current = list(cells)
    while True:
        for cell in current:
            if cell not in known:
                known[cell] = watch.advantage(kernel([cell]))
        costs, total = _excesses([known[cell] for cell in current], watch.weights)
        if total <= allowed or len(current) >= most:
            return _grouped(current, known, costs, watch, kernel)
        parts = [list(cell.parts()) for cell in current]
        split = _largest_losses(np.where([len(some) > 1 for some in parts], costs, 0.0))
        if not split:
            return _grouped(current, known, costs, watch, kernel)
        current = [part for k, cell in enumerate(current) for part in (parts[k] if k in split else [cell])]


def _excesses(advantages: Sequence[Floats], weights: Floats) -> tuple[Floats, float]:
    """Return the excess of each cell at the states where it is the best one, and their sum."""
    stack = np.array(advantages)
    best = stack.argmax(axis=0)
    gain = np.maximum(stack.max(axis=0), 0.0) * weights
    costs = np.asarray(np.bincount(best.ravel(), weights=gain.ravel(), minlength=len(stack)), dtype=float)
    return costs, float(costs.sum())


def _largest_losses(costs: Floats) -> set[int]:
    order = np.argsort(-costs)
    enough = int(np.searchsorted(np.cumsum(costs[order]), _SHARE * costs.sum())) + 1
    return {int(k) for k in order[: min(enough, _MOST_AT_ONCE)] if costs[k] > 0}


def _grouped(
    cells: Sequence[Configurations],
    known: dict[Configurations, Floats],
    costs: Floats,
    watch: Watched,
    kernel: Callable[[Sequence[Configurations]], Kernel],
) -> Groups:
    """Return each chosen cell as a group, and the other cells in groups that add little excess."""
    total = float(costs.sum())
    best = np.maximum(np.array([known[cell] for cell in cells]).max(axis=0), 0.0)
    alone = [(cell,) for cell, cost in zip(cells, costs, strict=True) if cost > _ALONE * total]
    groups: list[tuple[Configurations, ...]] = []
    for cell, cost in zip(cells, costs, strict=True):
        if cost > _ALONE * total:
            continue
        for place, group in list(enumerate(groups))[-_TRIES:]:
            added = np.maximum(watch.advantage(kernel([*group, cell])) - best, 0.0) * watch.weights
            if float(added.sum()) <= _TOGETHER * total:
                groups[place] = (*group, cell)
                break
        else:
            groups.append((cell,))
    return (*alone, *groups)


def kernel_of(cells: Sequence[Configurations], of: FixedSizeRound, nodes: Ints, grid: StateGrid) -> Kernel:
    """Return the one kernel above all configurations in these cells."""
    profiles: list[Profiles] = [cell.profiles(of) for cell in cells]
    forth = np.max([one for one, _ in profiles], axis=0)
    back = np.max([one for _, one in profiles], axis=0)
    return dominating(nodes, forth, back, grid)


_PARTS = 10**6
_SHOWN = tuple(int(part * RIGHT) & ~1 for part in (1.4, 1.6, 1.8))


def kernels_of(
    kind: RoundKind, rounds: int, delta: float, symmetric: bool, fineness: Fineness, grid: StateGrid
) -> tuple[Kernels, Kernels | None]:
    """Return a round's kernels for both orders of the neighbours; None for the second order if it equals the first."""
    nodes = nodes_of(kind, grid, fineness if symmetric else fineness.of_arcs())
    if not fineness.most_cells:
        return attained(kind, symmetric, nodes, grid, below=False)
    of = FixedSizeRound(q=kind.q, s=kind.s, losses=grid.losses(nodes))
    forth, back = (
        None if groups is None else Kernels.of([kernel_of(cells, of, nodes, grid) for cells in groups], grid)
        for groups in _cells_of_orders(*_rounded(kind, rounds, delta), symmetric, fineness)
    )
    assert forth is not None
    return forth, back


def attained(
    kind: RoundKind, symmetric: bool, nodes: Ints, grid: StateGrid, *, below: bool
) -> tuple[Kernels, Kernels | None]:
    """Return attained configurations: for a lower bound, or to choose a cover by."""
    of = FixedSizeRound(q=kind.q, s=kind.s, losses=grid.losses(nodes))
    make = dominated if below else dominating
    pairs = extremes(of) if symmetric else shown(of, _SHOWN)
    forth = Kernels.of([make(nodes, one, two, grid) for one, two in pairs], grid)
    return forth, None if symmetric else Kernels.of([make(nodes, two, one, grid) for one, two in pairs], grid)


def _rounded(kind: RoundKind, rounds: int, delta: float) -> tuple[RoundKind, int, float]:
    """Return rounded settings for which the cover is chosen: it is valid for all settings, and shared by similar
    ones.
    """
    return (
        RoundKind(q=min(2 ** (round(4 * math.log2(kind.q)) / 4), 0.99), s=2 ** (round(8 * math.log2(kind.s)) / 8)),
        round(2 ** (round(2 * math.log2(rounds)) / 2)),
        min(10.0 ** math.floor(math.log10(delta) + 0.5), 0.3),
    )


@lru_cache(maxsize=64)
def _cells_of_orders(
    kind: RoundKind, rounds: int, delta: float, symmetric: bool, fineness: Fineness
) -> tuple[Groups, Groups | None]:
    """Return the cells of both orders of the neighbours, chosen on a rough grid."""
    starts = [all_triangles()] if symmetric else [all_arcs(restored=False), all_arcs(restored=True)]
    noise = Gaussian(noise_multiplier=1 / kind.s, adjacency=Adjacency.REPLACE_ONE if symmetric else Adjacency.ZERO_OUT)
    sampling = FixedSizeSampling(cohort=max(round(kind.q * _PARTS), 1), clients=_PARTS)
    game = Game.of(Composed(parts=((Subsampled(mechanism=noise, sampling=sampling), rounds),)))
    grid = None if game is None else grid_of(game, delta, ROUGH)
    if grid is None:
        return tuple((cell,) for cell in starts[0]), None if symmetric else tuple((cell,) for cell in starts[1])
    nodes = nodes_of(kind, grid, ROUGH)
    of = FixedSizeRound(q=kind.q, s=kind.s, losses=grid.losses(nodes))
    pairs = attained(kind, symmetric, nodes, grid, below=False)

    def chosen(cells: Sequence[Configurations], forth: Kernels, back: Kernels | None) -> Groups:
        watch = watched(grid, forth, back, rounds=rounds, delta=delta)
        return divided(
            cells,
            watch,
            lambda some: kernel_of(some, of, nodes, grid),
            tolerance=fineness.cover,
            most=fineness.most_cells,
        )

    # Zero-out: the order with zero first has by far the smaller epsilon.
    return chosen(starts[0], *pairs), None if symmetric else tuple((cell,) for cell in starts[1])
