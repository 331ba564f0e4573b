"""The grid of the adaptive account: how fine, how far, and at which losses profiles are computed."""

import math
from dataclasses import dataclass, replace

import numpy as np

from accounting.compose import loss_grid, pld
from accounting.compose.adaptive_game import Game, RoundKind
from accounting.compose.adaptive_program import Indices, StateGrid


@dataclass(frozen=True, kw_only=True)
class Fineness:
    """How close to the truth, and how much work for it.

    cover:      what the cover may cost, relative to epsilon
    per_spread: grid points to the standard deviation of one round's loss; fewer where the work would be too much
    points:     of the grid, at least: where a round's loss is widely spread
    growth:     of the distance between losses at which profiles are computed, far from 0
    widest:     that distance, at most, in shifts 2s
    arcs:       how much finer both are under zero-out, whose covers have few cells
    tail:       what the cut of one round's losses may add to delta, over all rounds, relative
    work:       rounds times length of the transforms, at most; fewer grid points where that needs it
    """

    cover: float
    most_cells: int
    per_spread: float
    points: int
    growth: float
    widest: float
    arcs: float
    tail: float
    work: float

    def of_arcs(self) -> "Fineness":
        """The same under zero-out."""
        return replace(
            self, per_spread=self.per_spread * self.arcs, growth=self.growth / self.arcs, widest=self.widest / self.arcs
        )


STANDARD = Fineness(
    cover=4.3e-4, most_cells=150, per_spread=11.0, points=3000, growth=0.06, widest=0.025, arcs=2.0, tail=1e-4, work=4e6
)
FINE = Fineness(
    cover=1.5e-5,
    most_cells=1000,
    per_spread=60.0,
    points=3000,
    growth=0.015,
    widest=0.005,
    arcs=1.0,
    tail=1e-6,
    work=6e7,
)
QUICK = Fineness(
    cover=math.inf, most_cells=0, per_spread=8.0, points=0, growth=0.06, widest=0.025, arcs=1.0, tail=1e-4, work=2e6
)
"""Attained pairs alone: no bound, but nearly the truth, to solve with before one certified answer."""
ROUGH = Fineness(
    cover=math.inf, most_cells=0, per_spread=4.0, points=0, growth=0.1, widest=0.06, arcs=1.0, tail=1e-3, work=1e6
)
"""The grid on which covers are chosen."""
BELOW = Fineness(
    cover=math.inf,
    most_cells=0,
    per_spread=56.0,
    points=12000,
    growth=0.004,
    widest=0.01,
    arcs=0.7,
    tail=1e-5,
    work=1e7,
)

LARGEST_LOSS = 200.0
_BEYOND = 0.05
"""States reach to where delta has fallen by this."""
_NEAR = 5.0
"""Spreads within which every loss of the grid is a node."""
_COARSEST = 1.0
"""Largest spacing of the grid, in spreads."""
_LONGEST = 200_000
_FEW = 90
"""With fewer rounds than these more points are cheap, up to four times as many."""


def grid_of(game: Game, delta: float, fineness: Fineness) -> StateGrid | None:
    """The grid, or None where the adaptive account is too much work or of no use: where the one-pair account has no
    epsilon below 200, or fewer grid points fit than one to the spread of a round's loss."""
    rounds = game.rounds
    if not pld.SMALLEST_DELTA <= delta < 1 or rounds > fineness.work / 100:
        return None
    reach = max(kind.largest_loss(fineness.tail * delta / rounds) for kind in game.kinds)
    if reach > LARGEST_LOSS:
        return None
    laws = pld.distribution(game.whole, loss_grid.interval(game.whole))
    states = laws.smallest_epsilon(_BEYOND * delta)
    if not states + reach <= LARGEST_LOSS:
        return None
    spread = loss_grid.spread(game.fixed)
    length = states + 2 * reach
    of = fineness if game.symmetric else fineness.of_arcs()
    few = min(max(_FEW / rounds, 1.0), 4.0)
    finest = min(spread / of.per_spread, length / max(of.points * few, 1.0))
    spacing = max(finest, rounds * length / of.work, length / _LONGEST)
    if not 0 < spacing <= spread * _COARSEST:
        return None
    near = math.ceil(_NEAR * spread / spacing)
    return StateGrid(
        spacing=spacing, states=math.ceil(states / spacing) + 1, reach=math.ceil(reach / spacing), near=near
    )


def nodes_of(kind: RoundKind, grid: StateGrid, fineness: Fineness) -> Indices:
    """Losses at which profiles are computed, in steps: all of the near ones, then ever fewer; between them, chords."""
    found, place = [0], 0
    widest = max(1, int(fineness.widest * 2 * kind.s / grid.spacing))
    while place < grid.reach:
        place = min(grid.reach, place + min(widest, max(1, int((place - grid.near) * fineness.growth))))
        found.append(place)
    return np.array(found)
