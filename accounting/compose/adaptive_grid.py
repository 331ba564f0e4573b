"""Game and grid of the adaptive account: order of releases, spacing and range of losses, nodes of profiles."""

import math
from dataclasses import dataclass, replace

import numpy as np

from accounting.arrays import Ints
from accounting.compose import loss_grid, pld
from accounting.compose.adaptive_program import StateGrid
from accounting.mechanisms import (
    Adjacency,
    Composed,
    Mechanism,
    SingleRelease,
    gaussian_of,
    in_order,
    parts_of,
    sampling_of,
)


@dataclass(frozen=True, kw_only=True)
class RoundKind:
    """Kind of fixed-size rounds, with one sampling probability q and one shift s."""

    q: float
    s: float

    @classmethod
    def of(cls, release: SingleRelease) -> "RoundKind | None":
        """Return the kind of a Gaussian sum under fixed-size sampling; None for any other release."""
        noise, sampling = gaussian_of(release), sampling_of(release)
        if noise is None or not sampling.fixed_size or not 0 < sampling.probability < 1:
            return None
        return cls(q=sampling.probability, s=1 / noise.noise_multiplier)

    def largest_loss(self, mass: float) -> float:
        """Return a loss that one round exceeds with probability at most `mass`, by a shift of 2s with probability q."""
        return loss_grid.largest_shift_loss(self.q, 2 * self.s, mass)


@dataclass(frozen=True, kw_only=True)
class Game:
    """Game of the adversary: fixed-size rounds in their order, and releases without a choice of the adversary.

    A release without a choice (an unsampled or Poisson-sampled Gaussian, whose single dominating pair is attained) is
    placed first. An adversary who knows its outcome before choosing is at least as strong.
    """

    runs: tuple[tuple[RoundKind, int], ...]
    fixed: Composed
    without_choice: Composed | None
    mechanism: Mechanism

    @classmethod
    def of(cls, mechanism: Mechanism) -> "Game | None":
        """Return the game of a mechanism.

        Returns None without a choice of the adversary, if a release is not Gaussian, or if the order of fixed-size
        rounds matters and is unknown.
        """
        parts = parts_of(mechanism)
        if mechanism.adjacency is Adjacency.ADD_REMOVE or any(gaussian_of(part) is None for part, _ in parts):
            return None
        one_kind = len({RoundKind.of(part) for part, _ in parts} - {None}) == 1
        sequence = parts if one_kind else in_order(mechanism)
        runs = [(kind, count) for part, count in sequence or () if (kind := RoundKind.of(part))]
        others = tuple((p, n) for p, n in parts if RoundKind.of(p) is None and sampling_of(p).probability > 0)
        if not runs:
            return None
        return cls(
            runs=tuple(runs),
            fixed=Composed(parts=tuple((part, count) for part, count in parts if RoundKind.of(part))),
            without_choice=Composed(parts=others) if others else None,
            mechanism=mechanism,
        )

    @property
    def rounds(self) -> int:
        return sum(count for _, count in self.runs)

    @property
    def kinds(self) -> tuple[RoundKind, ...]:
        return tuple(dict.fromkeys(kind for kind, _ in self.runs))

    @property
    def symmetric(self) -> bool:
        """True if both orders of the neighbours have equal profiles."""
        return self.mechanism.adjacency is Adjacency.REPLACE_ONE


@dataclass(frozen=True, kw_only=True)
class Fineness:
    """Tolerances of the adaptive account, and limits of its work.

    cover_excess: largest excess of the cover, relative to epsilon
    most_cells: largest number of cells of the cover
    per_spread: grid points per standard deviation of one round's loss; fewer if the work would exceed `work`
    points: smallest number of grid points, for losses with a wide spread
    growth:     growth of the distance between losses at which profiles are computed, far from 0
    widest:     largest such distance, in shifts 2s
    arcs: factor by which per_spread, growth and widest are finer under zero-out, whose covers have few cells
    tail: share of delta for the truncated tails of the losses of all rounds
    work:       largest product of rounds and length of the transforms
    """

    per_spread: float
    work: float
    cover_excess: float = math.inf
    most_cells: int = 0
    points: int = 0
    growth: float = 0.06
    widest: float = 0.025
    arcs: float = 1.0
    tail: float = 1e-4

    def of_arcs(self) -> "Fineness":
        """Return these tolerances for zero-out."""
        return replace(
            self, per_spread=self.per_spread * self.arcs, growth=self.growth / self.arcs, widest=self.widest / self.arcs
        )


STANDARD = Fineness(cover_excess=4.3e-4, most_cells=150, per_spread=11.0, points=3000, arcs=2.0, work=4e6)
"""Tolerances of the default account, for an error within 0.3%."""
FINE = Fineness(
    cover_excess=1.5e-5, most_cells=1000, per_spread=60.0, points=3000, growth=0.015, widest=0.005, tail=1e-6, work=6e7
)
"""Tolerances of a precise account, for an error within 0.05%; it may take minutes."""
QUICK = Fineness(per_spread=8.0, work=2e6)
"""Tolerances for attained pairs alone. The result is not a bound, but nearly exact; solvers use it before one
certified evaluation.
"""
ROUGH = Fineness(per_spread=4.0, growth=0.1, widest=0.06, tail=1e-3, work=1e6)
"""Tolerances of the grid on which covers are chosen."""
BELOW = Fineness(per_spread=56.0, points=12000, growth=0.004, widest=0.01, arcs=0.7, tail=1e-5, work=1e7)
"""Tolerances of lower bounds."""

LARGEST_LOSS = 200.0
_DELTA_AT_LAST_STATE = 0.05
"""Delta at the last state, as a share of the target delta."""
_NEAR = 5.0
"""Number of standard deviations around 0 within which every grid loss is a node."""
_COARSEST = 1.0
"""Largest spacing of the grid, in standard deviations."""
_LONGEST = 200_000
_FEW = 90
"""Number of rounds below which the grid has more points, up to four times as many."""


def grid_of(game: Game, delta: float, fineness: Fineness) -> StateGrid | None:
    """Return the grid of a game; None if the adaptive account is too slow or cannot give a result.

    No result: the one-pair account has no epsilon below 200, or the grid would have less than one point per standard
    deviation of a round's loss.
    """
    rounds = game.rounds
    if not pld.SMALLEST_DELTA <= delta < 1 or rounds > fineness.work / 100:
        return None
    reach = max(kind.largest_loss(fineness.tail * delta / rounds) for kind in game.kinds)
    if reach > LARGEST_LOSS:
        return None
    distributions = pld.distribution(game.mechanism, loss_grid.interval(game.mechanism))
    states = distributions.smallest_epsilon(_DELTA_AT_LAST_STATE * delta)
    if not states + reach <= LARGEST_LOSS:
        return None
    spread = loss_grid.spread(game.fixed)
    length = states + 2 * reach
    tolerances = fineness if game.symmetric else fineness.of_arcs()
    extra_points = min(max(_FEW / rounds, 1.0), 4.0)
    finest = min(spread / tolerances.per_spread, length / max(tolerances.points * extra_points, 1.0))
    spacing = max(finest, rounds * length / tolerances.work, length / _LONGEST)
    if not 0 < spacing <= spread * _COARSEST:
        return None
    near = math.ceil(_NEAR * spread / spacing)
    return StateGrid(
        spacing=spacing,
        states=math.ceil(states / spacing) + 1,
        largest_step=math.ceil(reach / spacing),
        profiled_steps=near,
    )


def nodes_of(kind: RoundKind, grid: StateGrid, fineness: Fineness) -> Ints:
    """Return the losses at which profiles are computed, in grid steps: every step near 0, then with increasing
    distances. Profiles are interpolated by chords.
    """
    found, place = [0], 0
    widest = max(1, int(fineness.widest * 2 * kind.s / grid.spacing))
    while place < grid.largest_step:
        step = max(1, int((place - grid.profiled_steps) * fineness.growth))
        place = min(grid.largest_step, place + min(widest, step))
        found.append(place)
    return np.array(found)
