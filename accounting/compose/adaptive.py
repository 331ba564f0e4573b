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
from collections.abc import Iterator
from functools import lru_cache

from accounting.compose import pld
from accounting.compose.adaptive_grid import FINE, LARGEST_LOSS, QUICK, STANDARD, Fineness, Game, RoundKind, grid_of
from accounting.compose.adaptive_kernels import kernels_of
from accounting.compose.adaptive_program import Kernels, StateGrid, Values
from accounting.compose.pld import LossLaws
from accounting.mechanisms import Composed, Mechanism, SingleRelease, sampling_of
from accounting.mechanisms.adjacency import Adjacency

__all__ = ["FINE", "HYPOTHESIS", "QUICK", "STANDARD", "Adding", "epsilon", "epsilons", "values"]

HYPOTHESIS = (
    "fixed-size sampling: holds where what a client sends does not depend on the rounds it was drawn in before "
    "(no error feedback, no control variates)"
)


MOST_AGAIN = 1000
"""Rounds of different kinds that a running account goes through for every epsilon."""
_LOUD = 10.0
"""Times as much of delta as planned that losses beyond the grid may be."""
_ENDS = 0.3
"""Share of delta that the last state may have; the truth beyond it is not known."""


def values(mechanism: Mechanism, *, delta: float, fineness: Fineness = STANDARD) -> Values | None:
    """V of all rounds on a grid of gamma, an upper bound of H_gamma over all adversaries in both orders of the worlds.

    None where there is no such account or it would be too much work: see `Fineness` and `grid_of`. Between grid points
    a chord in gamma is above V. Adjacency: replace-one or zero-out, as the mechanism says.
    """
    game = Game.of(mechanism)
    return None if game is None else _values(game, delta, fineness)


def epsilon(mechanism: Mechanism, *, delta: float, fineness: Fineness = STANDARD) -> float | None:
    """The epsilon of the adaptive account at `delta`; None where there is none. Direction of error: upper bound.

    Hypothesis: `HYPOTHESIS`.
    """
    found = values(mechanism, delta=delta, fineness=fineness)
    return None if found is None else found.worse_epsilon(delta)


def epsilons(release: SingleRelease, *, delta: float, rounds: int, lost: float = 0.0) -> Iterator[float] | None:
    """Epsilon after 1, 2, ... rounds, on the grid of `rounds` rounds; each an upper bound. None where there is none.

    `lost` is taken off delta for every round: what the account is silent about. One step of the program a round.
    """
    game = Game.of(Composed(parts=((release, rounds),)))
    grid = None if game is None else grid_of(game, delta, STANDARD)
    if game is None or grid is None:
        return None
    kernels = kernels_of(game.kinds[0], rounds, delta, game.symmetric, STANDARD, grid)
    return _stream(Values.before(grid, upper=True), kernels, delta, lost)


def _stream(found: Values, kernels: tuple[Kernels, Kernels | None], delta: float, lost: float) -> Iterator[float]:
    for count in itertools.count(1):
        found = found.after(*kernels)
        target = delta - count * lost
        yield found.worse_epsilon(target) if target > 0 else math.inf


class Adding:
    """The account of releases that are added one after the other; each is the last so far.

    typical, rounds, delta: what the grid is laid out for; anew for a release that is much louder, and with the first
    round of fixed size where `typical` is none. One step of the program for a round more as long as all rounds of fixed
    size are alike; where they are not, all of them again for every epsilon, up to MOST_AGAIN.
    """

    def __init__(self, typical: SingleRelease, *, rounds: int, delta: float) -> None:
        self._delta, self._rounds = delta, rounds
        self._symmetric = typical.adjacency is Adjacency.REPLACE_ONE
        self._added: list[tuple[SingleRelease, int]] = []
        self._grid: StateGrid | None = None
        self._hopeless = False
        if RoundKind.of(typical) is not None:
            self._lay_out(typical)

    def _lay_out(self, newest: SingleRelease) -> None:
        """The grid for all so far and `rounds` rounds like the newest, and the account of all so far on it."""
        so_far = itertools.chain.from_iterable(itertools.repeat(*run) for run in self._added)
        game = Game.of(Composed.of(itertools.chain(so_far, itertools.repeat(newest, self._rounds))))
        self._grid = None if game is None else grid_of(game, self._delta, STANDARD)
        self._hopeless = self._grid is None
        self._kernels: dict[RoundKind, tuple[Kernels, Kernels | None]] = {}
        self._runs: list[tuple[RoundKind, int]] = []
        self._kinds: set[RoundKind] = set()
        self._others: LossLaws | None = None
        self._values = None if self._grid is None else Values.before(self._grid, upper=True)
        for release, count in self._added if self._grid is not None else ():
            self._add(release, count)

    def add(self, release: SingleRelease, count: int) -> None:
        """`count` releases more."""
        if self._hopeless:
            return
        kind = RoundKind.of(release)
        if kind is not None and (self._grid is None or self._is_loud(kind)):
            self._lay_out(release)
        same = self._added.pop()[1] if self._added and self._added[-1][0] == release else 0
        self._added.append((release, same + count))
        if self._grid is not None:
            self._add(release, count)

    def _is_loud(self, kind: RoundKind) -> bool:
        """True if losses of this round beyond the grid are more of delta than they may be."""
        assert self._grid is not None
        largest = kind.largest_loss(_LOUD * STANDARD.tail * self._delta / self._rounds)
        return largest > self._grid.reach * self._grid.spacing

    def _add(self, release: SingleRelease, count: int) -> None:
        kind = RoundKind.of(release)
        if kind is None:
            self._others = self._with_other(release, count)
            return
        self._values = self._after(self._values, kind, count) if self._kinds <= {kind} else None
        self._kinds.add(kind)
        before = self._runs.pop()[1] if self._runs and self._runs[-1][0] == kind else 0
        self._runs.append((kind, before + count))

    def epsilon(self, delta: float, also: SingleRelease | None = None, *, scheduled: Mechanism | None = None) -> float:
        """Return epsilon of all releases, `also` after them, and rounds of schedules; infinite without an account."""
        if self._grid is None:
            return math.inf
        found = self._found(also, scheduled)
        if found is not None and scheduled is None and max(found.forth[-1], found.back[-1]) > _ENDS * delta:
            self._lay_out(also or self._added[-1][0])  # states end before delta has fallen
            found = None if self._grid is None else self._found(also, scheduled)
        return math.inf if found is None else found.worse_epsilon(delta)

    def _found(self, also: SingleRelease | None, scheduled: Mechanism | None) -> Values | None:
        assert self._grid is not None
        kind = None if also is None else RoundKind.of(also)
        others = self._others if also is None or kind is not None else self._with_other(also, 1)
        if scheduled is not None:
            laws = pld.distribution(scheduled, self._grid.spacing)
            others = laws if others is None else others.plus(laws)
        if kind is None:
            found = self._played()
        else:
            found = self._after(self._values, kind, 1) if self._kinds <= {kind} else self._played((kind, 1))
        return found if found is None or others is None else found.with_laws(others.orders[0], others.orders[-1])

    def _played(self, *last: tuple[RoundKind, int]) -> Values | None:
        """V of all rounds of fixed size, and of these after them."""
        if len(self._kinds) == 1 and not last:
            return self._values
        if self._grid is None or sum(count for _, count in self._runs) > MOST_AGAIN:
            return None
        found: Values | None = Values.before(self._grid, upper=True)
        for kind, count in reversed((*self._runs, *last)):
            found = self._after(found, kind, count)
        return found

    def _after(self, found: Values | None, kind: RoundKind, count: int) -> Values | None:
        assert self._grid is not None
        if found is None or kind.largest_loss(STANDARD.tail * self._delta / self._rounds) > LARGEST_LOSS:
            return None
        if kind not in self._kernels:
            self._kernels[kind] = kernels_of(kind, self._rounds, self._delta, self._symmetric, STANDARD, self._grid)
        for _ in range(count):
            found = found.after(*self._kernels[kind])
        return found

    def _with_other(self, release: SingleRelease, count: int) -> LossLaws | None:
        assert self._grid is not None
        if sampling_of(release).probability == 0:
            return self._others
        laws = pld.distribution(Composed(parts=((release, count),)), self._grid.spacing)
        return laws if self._others is None else self._others.plus(laws)


@lru_cache(maxsize=32)
def _values(game: Game, delta: float, fineness: Fineness) -> Values | None:
    grid = grid_of(game, delta, fineness)
    if grid is None:
        return None
    rounds = {kind: kernels_of(kind, game.rounds, delta, game.symmetric, fineness, grid) for kind in game.kinds}
    found = Values.before(grid, upper=True)
    for kind, count in reversed(game.runs):
        for _ in range(count):
            found = found.after(*rounds[kind])
    if game.others is not None:
        laws = pld.distribution(game.others, grid.spacing).orders
        found = found.with_laws(laws[0], laws[-1])
    return found
