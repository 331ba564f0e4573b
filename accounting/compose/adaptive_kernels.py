"""The kernels of a round: a cover of all configurations, or a few that are really attained."""

import math
from collections.abc import Sequence
from functools import lru_cache

from accounting.compose.adaptive_cover import Groups, divided, kernel_of, watched
from accounting.compose.adaptive_game import Game, RoundKind
from accounting.compose.adaptive_grid import ROUGH, Fineness, grid_of, nodes_of
from accounting.compose.adaptive_program import Indices, Kernels, StateGrid, dominated, dominating
from accounting.gaussian.configurations import (
    RIGHT,
    Configurations,
    FixedSizeRound,
    all_arcs,
    all_triangles,
    extremes,
    shown,
)
from accounting.mechanisms import Composed, FixedSizeSampling, Gaussian, Subsampled
from accounting.mechanisms.adjacency import Adjacency

_PARTS = 10**6
_SHOWN = tuple(int(part * RIGHT) & ~1 for part in (1.4, 1.6, 1.8))


def kernels_of(
    kind: RoundKind, rounds: int, delta: float, symmetric: bool, fineness: Fineness, grid: StateGrid
) -> tuple[Kernels, Kernels | None]:
    """A round's kernels, of both orders of the worlds; None for the second where they are alike."""
    nodes = nodes_of(kind, grid, fineness if symmetric else fineness.of_arcs())
    if not fineness.most_cells:
        return attained(kind, symmetric, nodes, grid, below=False)
    of = FixedSizeRound(q=kind.q, s=kind.s, losses=grid.losses(nodes))
    forth, back = (
        None if groups is None else Kernels.of([kernel_of(cells, of, nodes, grid) for cells in groups], grid)
        for groups in _cover(*_rounded(kind, rounds, delta), symmetric, fineness)
    )
    assert forth is not None
    return forth, back


def attained(
    kind: RoundKind, symmetric: bool, nodes: Indices, grid: StateGrid, *, below: bool
) -> tuple[Kernels, Kernels | None]:
    """Configurations that are really attained: from below, or to choose a cover by."""
    of = FixedSizeRound(q=kind.q, s=kind.s, losses=grid.losses(nodes))
    make = dominated if below else dominating
    pairs = extremes(of) if symmetric else shown(of, _SHOWN)
    forth = Kernels.of([make(nodes, one, two, grid) for one, two in pairs], grid)
    return forth, None if symmetric else Kernels.of([make(nodes, two, one, grid) for one, two in pairs], grid)


def _rounded(kind: RoundKind, rounds: int, delta: float) -> tuple[RoundKind, int, float]:
    """Settings near these for which the cover is chosen: it is valid for all, and the same for those close by."""
    return (
        RoundKind(q=min(2 ** (round(4 * math.log2(kind.q)) / 4), 0.99), s=2 ** (round(8 * math.log2(kind.s)) / 8)),
        round(2 ** (round(2 * math.log2(rounds)) / 2)),
        min(10.0 ** math.floor(math.log10(delta) + 0.5), 0.3),
    )


@lru_cache(maxsize=64)
def _cover(
    kind: RoundKind, rounds: int, delta: float, symmetric: bool, fineness: Fineness
) -> tuple[Groups, Groups | None]:
    """The cells of both orders of the worlds, chosen on a rough grid."""
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

    # Zero-out: the order in which zero comes first is the one with the smaller epsilon by far.
    return chosen(starts[0], *pairs), None if symmetric else tuple((cell,) for cell in starts[1])
