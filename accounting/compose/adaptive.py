"""The adaptive account of sampling of fixed size: the tightest epsilon that is proven (docs/theory.md, section 4).

Composing one dominating pair T times takes for granted that neighbours could be the worst in both directions at once.
They cannot: a client is the one that moves the sum or the one that does not. Here the adversary chooses the round's
neighbours by everything released so far, and the account is the value of that game, over a finite cover of all
configurations (`gaussian.configurations`), by a dynamic program (`compose.adaptive_program`). The program of a few
configurations that are really attained gives a lower bound.

Hypothesis: a client's message is a function of what was released before and of coins that do not depend on the rounds
it was drawn in. With error feedback, control variates or any other memory of its own past rounds this is no account.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from accounting.compose import loss_grid, pld
from accounting.compose.adaptive_cover import Groups, divided, kernel_of, watched
from accounting.compose.adaptive_program import Grid, Indices, Kernels, Values, dominated, dominating
from accounting.compose.pld import LossLaws
from accounting.gaussian.configurations import RIGHT, Cell, Round, all_arcs, all_triangles, extremes, shown
from accounting.mechanisms import (
    Composed,
    FixedSizeSampling,
    Gaussian,
    Mechanism,
    SingleRelease,
    Subsampled,
    gaussian_of,
    in_order,
    parts_of,
    sampling_of,
)
from accounting.mechanisms.adjacency import Adjacency

HYPOTHESIS = (
    "fixed-size sampling: holds where what a client sends does not depend on the rounds it was drawn in before "
    "(no error feedback, no control variates)"
)


@dataclass(frozen=True, kw_only=True)
class Fineness:
    """How close to the truth, and how much work for it.

    cover:      what the cover may cost, relative to epsilon
    per_spread: grid points to the standard deviation of one round's loss; fewer where the work would be too much
    growth:     of the distance between losses at which profiles are computed, far from 0
    tail:       what the cut of one round's losses may add to delta, over all rounds, relative
    work:       rounds times length of the transforms, at most; fewer grid points where that needs it
    """

    cover: float
    most_cells: int
    per_spread: float
    growth: float
    tail: float
    work: float


STANDARD = Fineness(cover=3.5e-4, most_cells=150, per_spread=14.0, growth=0.04, tail=1e-4, work=4e6)
FINE = Fineness(cover=1.5e-5, most_cells=1000, per_spread=60.0, growth=0.015, tail=1e-6, work=6e7)
QUICK = Fineness(cover=math.inf, most_cells=0, per_spread=8.0, growth=0.04, tail=1e-4, work=2e6)
"""Attained pairs alone: no bound, but nearly the truth, to solve with before one certified answer."""
_ROUGH = Fineness(cover=math.inf, most_cells=0, per_spread=4.0, growth=0.06, tail=1e-3, work=1e6)
"""The grid on which covers are chosen."""
_BELOW = Fineness(cover=math.inf, most_cells=0, per_spread=80.0, growth=0.004, tail=1e-6, work=1e7)

_LARGEST_LOSS = 200.0
_BEYOND = 1e-3
"""States reach to where delta has fallen by this."""
_NEAR = 6.0
"""Spreads within which every loss of the grid is a node."""
_COARSEST = 1.0
"""Largest spacing of the grid, in spreads."""
_LONGEST = 200_000
MOST_AGAIN = 1000
"""Rounds of different kinds that a running account goes through for every epsilon."""
_PARTS = 10**6
_SHOWN = tuple(int(part * RIGHT) & ~1 for part in (1.4, 1.6, 1.8))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Rounds of fixed size that are all alike."""

    q: float
    s: float

    @classmethod
    def of(cls, release: SingleRelease) -> "Kind | None":
        """None for a release that is no Gaussian sum over a sampled cohort of fixed size."""
        noise, sampling = gaussian_of(release), sampling_of(release)
        if noise is None or sampling.name != "fixed" or not 0 < sampling.probability < 1:
            return None
        return cls(q=sampling.probability, s=1 / noise.noise_multiplier)

    def largest_loss(self, mass: float) -> float:
        """A loss that one round exceeds with at most this probability: of a shift 2s with probability q."""
        shift = 2 * self.s
        tail = float(-scipy.special.ndtri(min(0.5, mass / self.q)))
        return float(np.logaddexp(math.log1p(-self.q), math.log(self.q) + shift * shift / 2 + tail * shift))


@dataclass(frozen=True, kw_only=True)
class Game:
    """What the adversary plays: rounds of fixed size in their order, and releases without a choice.

    A release without a choice (a plain Gaussian, a Poisson-sampled one, whose one dominating pair is attained) counts
    as if it came first: the adversary who knows its outcome before choosing can do no worse.
    """

    runs: tuple[tuple[Kind, int], ...]
    fixed: Composed
    others: Composed | None
    whole: Mechanism

    @classmethod
    def of(cls, mechanism: Mechanism) -> "Game | None":
        """None where there is no choice, where a release is not Gaussian, or where it matters and is not known in which
        order rounds of fixed size came."""
        parts = parts_of(mechanism)
        if mechanism.adjacency is Adjacency.ADD_REMOVE or any(gaussian_of(part) is None for part, _ in parts):
            return None
        one_kind = len({Kind.of(part) for part, _ in parts} - {None}) == 1
        sequence = parts if one_kind else in_order(mechanism)
        runs = [(kind, count) for kind, count in ((Kind.of(part), count) for part, count in sequence or ()) if kind]
        others = tuple((p, n) for p, n in parts if Kind.of(p) is None and sampling_of(p).probability > 0)
        if not runs:
            return None
        return cls(
            runs=tuple(runs),
            fixed=Composed(parts=tuple((part, count) for part, count in parts if Kind.of(part))),
            others=Composed(parts=others) if others else None,
            whole=mechanism,
        )

    @property
    def rounds(self) -> int:
        return sum(count for _, count in self.runs)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(dict.fromkeys(kind for kind, _ in self.runs))

    @property
    def symmetric(self) -> bool:
        """Whether both orders of the worlds are alike."""
        return self.whole.adjacency is Adjacency.REPLACE_ONE


def values(mechanism: Mechanism, *, delta: float, fineness: Fineness = STANDARD) -> Values | None:
    """V of all rounds on a grid of gamma, an upper bound of H_gamma over all adversaries in both orders of the worlds.

    None where there is no such account or it would be too much work: see `Fineness` and `_grid`. Between grid points a
    chord in gamma is above V. Adjacency: replace-one or zero-out, as the mechanism says.
    """
    game = Game.of(mechanism)
    return None if game is None else _values(game, delta, fineness)


def epsilon(mechanism: Mechanism, *, delta: float, fineness: Fineness = STANDARD) -> float | None:
    """The epsilon of the adaptive account at `delta`; None where there is none. Direction of error: upper bound.

    Hypothesis: `HYPOTHESIS`.
    """
    found = values(mechanism, delta=delta, fineness=fineness)
    return None if found is None else _epsilon(found, delta)


def epsilons(release: SingleRelease, *, delta: float, rounds: int, lost: float = 0.0) -> Iterator[float] | None:
    """Epsilon after 1, 2, ... rounds, on the grid of `rounds` rounds; each an upper bound. None where there is none.

    `lost` is taken off delta for every round: what the account is silent about. One step of the program a round.
    """
    game = Game.of(Composed(parts=((release, rounds),)))
    grid = None if game is None else _grid(game, delta, STANDARD)
    if game is None or grid is None:
        return None
    kernels = _kernels(game.kinds[0], rounds, delta, game.symmetric, STANDARD, grid)
    return _stream(Values.before(grid, upper=True), kernels, delta, lost)


def _stream(found: Values, kernels: tuple[Kernels, Kernels | None], delta: float, lost: float) -> Iterator[float]:
    for count in itertools.count(1):
        found = found.after(*kernels)
        target = delta - count * lost
        yield _epsilon(found, target) if target > 0 else math.inf


class Adding:
    """The account of releases that are added one after the other; each is the last so far.

    typical, rounds, delta: what the grid is laid out for. One step of the program for a round more as long as all
    rounds of fixed size are alike; where they are not, all of them again for every epsilon, up to MOST_AGAIN.
    """

    def __init__(self, typical: SingleRelease, *, rounds: int, delta: float) -> None:
        self._delta, self._rounds = delta, rounds
        game = Game.of(Composed(parts=((typical, rounds),)))
        self._grid = None if game is None else _grid(game, delta, STANDARD)
        self._symmetric = typical.adjacency is Adjacency.REPLACE_ONE
        self._kernels: dict[Kind, tuple[Kernels, Kernels | None]] = {}
        self._runs: list[tuple[Kind, int]] = []
        self._kinds: set[Kind] = set()
        self._others: LossLaws | None = None
        self._values: Values | None = None if self._grid is None else Values.before(self._grid, upper=True)

    def add(self, release: SingleRelease, count: int) -> None:
        """`count` releases more."""
        kind = Kind.of(release)
        if self._grid is None:
            return
        if kind is None:
            self._others = self._with_other(release, count)
            return
        self._values = self._after(self._values, kind, count) if self._kinds <= {kind} else None
        self._kinds.add(kind)
        before = self._runs.pop()[1] if self._runs and self._runs[-1][0] == kind else 0
        self._runs.append((kind, before + count))

    def epsilon(self, delta: float, also: SingleRelease | None = None) -> float:
        """Of everything so far, and of `also` after it; infinite where there is no account."""
        if self._grid is None:
            return math.inf
        if also is None:
            return self._stated(self._played(), self._others, delta)
        kind = Kind.of(also)
        if kind is None:
            return self._stated(self._played(), self._with_other(also, 1), delta)
        found = self._after(self._values, kind, 1) if self._kinds <= {kind} else self._played((kind, 1))
        return self._stated(found, self._others, delta)

    def _played(self, *last: tuple[Kind, int]) -> Values | None:
        """V of all rounds of fixed size, and of these after them."""
        if len(self._kinds) == 1 and not last:
            return self._values
        if self._grid is None or sum(count for _, count in self._runs) > MOST_AGAIN:
            return None
        found: Values | None = Values.before(self._grid, upper=True)
        for kind, count in reversed((*self._runs, *last)):
            found = self._after(found, kind, count)
        return found

    def _after(self, found: Values | None, kind: Kind, count: int) -> Values | None:
        assert self._grid is not None
        if found is None or kind.largest_loss(STANDARD.tail * self._delta / self._rounds) > _LARGEST_LOSS:
            return None
        if kind not in self._kernels:
            self._kernels[kind] = _kernels(kind, self._rounds, self._delta, self._symmetric, STANDARD, self._grid)
        for _ in range(count):
            found = found.after(*self._kernels[kind])
        return found

    def _with_other(self, release: SingleRelease, count: int) -> LossLaws | None:
        assert self._grid is not None
        if sampling_of(release).probability == 0:
            return self._others
        laws = pld.distribution(Composed(parts=((release, count),)), self._grid.spacing)
        return laws if self._others is None else self._others.plus(laws)

    def _stated(self, found: Values | None, others: LossLaws | None, delta: float) -> float:
        if found is None:
            return math.inf
        return _epsilon(found if others is None else found.with_laws(others.orders[0], others.orders[-1]), delta)


def quick_epsilon(mechanism: Mechanism, *, delta: float) -> float | None:
    """Nearly the truth, at a fraction of the work, for solvers: the attained pairs alone. No bound."""
    return epsilon(mechanism, delta=delta, fineness=QUICK)


def shown_epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """An epsilon that no account of the mechanism's rounds of fixed size can go below: what an adversary shows who
    chooses between a few attained configurations by the loss so far. 0 where the program is not run.

    Direction of error: lower bound, to the grid. Other releases of the mechanism only add to it.
    """
    game = Game.of(mechanism)
    grid = None if game is None else _grid(game, delta, _BELOW)
    if game is None or grid is None or grid.reach == 0:
        return 0.0
    nodes = np.arange(grid.reach + 1) if game.symmetric else _nodes(grid, _BELOW)
    try:
        rounds = {kind: _attained(kind, game.symmetric, nodes, grid, below=True) for kind in game.kinds}
    except ValueError:
        return 0.0
    found = Values.before(grid, upper=False)
    for kind, count in reversed(game.runs):
        for _ in range(count):
            found = found.after(*rounds[kind])
    return _epsilon(found, delta)


def _epsilon(found: Values, delta: float) -> float:
    return max(found.epsilon(delta), found.exchanged().epsilon(delta))


@lru_cache(maxsize=32)
def _values(game: Game, delta: float, fineness: Fineness) -> Values | None:
    grid = _grid(game, delta, fineness)
    if grid is None:
        return None
    rounds = {kind: _kernels(kind, game.rounds, delta, game.symmetric, fineness, grid) for kind in game.kinds}
    found = Values.before(grid, upper=True)
    for kind, count in reversed(game.runs):
        for _ in range(count):
            found = found.after(*rounds[kind])
    if game.others is not None:
        laws = pld.distribution(game.others, grid.spacing).orders
        found = found.with_laws(laws[0], laws[-1])
    return found


def _grid(game: Game, delta: float, fineness: Fineness) -> Grid | None:
    """The grid, or None where the adaptive account is too much work or of no use: where the one-pair account has no
    epsilon below 200, or fewer grid points fit than one to the spread of a round's loss."""
    rounds = game.rounds
    if not pld.SMALLEST_DELTA <= delta < 1 or rounds > fineness.work / 100:
        return None
    reach = max(kind.largest_loss(fineness.tail * delta / rounds) for kind in game.kinds)
    if reach > _LARGEST_LOSS:
        return None
    laws = pld.distribution(game.whole, loss_grid.interval(game.whole))
    states = laws.smallest_epsilon(_BEYOND * delta)
    if not states + reach <= _LARGEST_LOSS:
        return None
    spread = loss_grid.spread(game.fixed)
    length = states + 2 * reach
    spacing = max(spread / fineness.per_spread, rounds * length / fineness.work, length / _LONGEST)
    if spacing > spread * _COARSEST:
        return None
    return Grid(spacing=spacing, states=math.ceil(states / spacing) + 1, reach=math.ceil(reach / spacing))


def _kernels(
    kind: Kind, rounds: int, delta: float, symmetric: bool, fineness: Fineness, grid: Grid
) -> tuple[Kernels, Kernels | None]:
    """A round's kernels, of both orders of the worlds; None for the second where they are alike."""
    nodes = _nodes(grid, fineness)
    if not fineness.most_cells:
        return _attained(kind, symmetric, nodes, grid, below=False)
    of = Round(q=kind.q, s=kind.s, losses=grid.losses(nodes))
    forth, back = (
        None if groups is None else Kernels.of([kernel_of(cells, of, nodes, grid) for cells in groups], grid)
        for groups in _cover(*_rounded(kind, rounds, delta), symmetric, fineness)
    )
    assert forth is not None
    return forth, back


def _attained(
    kind: Kind, symmetric: bool, nodes: Indices, grid: Grid, *, below: bool
) -> tuple[Kernels, Kernels | None]:
    """Configurations that are really attained: from below, or to choose a cover by."""
    of = Round(q=kind.q, s=kind.s, losses=grid.losses(nodes))
    make = dominated if below else dominating
    pairs = extremes(of) if symmetric else shown(of, _SHOWN)
    forth = Kernels.of([make(nodes, one, two, grid) for one, two in pairs], grid)
    return forth, None if symmetric else Kernels.of([make(nodes, two, one, grid) for one, two in pairs], grid)


def _nodes(grid: Grid, fineness: Fineness) -> Indices:
    """Losses at which profiles are computed, in steps: all of the near ones, then ever fewer; between them, chords."""
    found, place, near = [0], 0, _NEAR * fineness.per_spread
    while place < grid.reach:
        place = min(grid.reach, place + max(1, int((place - near) * fineness.growth)))
        found.append(place)
    return np.array(found)


def _rounded(kind: Kind, rounds: int, delta: float) -> tuple[Kind, int, float]:
    """Settings near these for which the cover is chosen: it is valid for all, and the same for those close by."""
    return (
        Kind(q=min(2 ** (round(4 * math.log2(kind.q)) / 4), 0.99), s=2 ** (round(8 * math.log2(kind.s)) / 8)),
        round(2 ** (round(2 * math.log2(rounds)) / 2)),
        min(10.0 ** math.floor(math.log10(delta) + 0.5), 0.3),
    )


@lru_cache(maxsize=64)
def _cover(kind: Kind, rounds: int, delta: float, symmetric: bool, fineness: Fineness) -> tuple[Groups, Groups | None]:
    """The cells of both orders of the worlds, chosen on a rough grid."""
    starts = [all_triangles()] if symmetric else [all_arcs(restored=False), all_arcs(restored=True)]
    noise = Gaussian(noise_multiplier=1 / kind.s, adjacency=Adjacency.REPLACE_ONE if symmetric else Adjacency.ZERO_OUT)
    sampling = FixedSizeSampling(cohort=max(round(kind.q * _PARTS), 1), clients=_PARTS)
    game = Game.of(Composed(parts=((Subsampled(mechanism=noise, sampling=sampling), rounds),)))
    grid = None if game is None else _grid(game, delta, _ROUGH)
    if grid is None:
        return tuple((cell,) for cell in starts[0]), None if symmetric else tuple((cell,) for cell in starts[1])
    nodes = _nodes(grid, _ROUGH)
    of = Round(q=kind.q, s=kind.s, losses=grid.losses(nodes))
    attained = _attained(kind, symmetric, nodes, grid, below=False)

    def chosen(cells: Sequence[Cell], forth: Kernels, back: Kernels | None) -> Groups:
        watch = watched(grid, forth, back, rounds=rounds, delta=delta)
        return divided(
            cells,
            watch,
            lambda some: kernel_of(some, of, nodes, grid),
            tolerance=fineness.cover,
            most=fineness.most_cells,
        )

    # Zero-out: the order in which zero comes first is the one with the smaller epsilon by far.
    return chosen(starts[0], *attained), None if symmetric else tuple((cell,) for cell in starts[1])
