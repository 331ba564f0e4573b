"""Adaptive account of fixed-size sampling: the tightest epsilon that is proven (docs/theory.md, section 4).

Composing one dominating pair T times assumes that neighbours can be the worst in both directions at once. They cannot:
a client either moves the sum or does not. Here the adversary chooses the round's neighbours by everything released so
far, and the account is the value of that game, over a finite cover of all configurations (`gaussian.configurations`),
by a dynamic program (`compose.adaptive_program`). The program of a few attained configurations gives a lower bound.

Hypothesis: a client's message is a function of earlier releases and of randomness that does not depend on the rounds it
was drawn in. With error feedback, control variates or any other memory of earlier participation this is no account.
"""

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

from accounting.compose import pld
from accounting.compose.adaptive_grid import FINE, LARGEST_LOSS, QUICK, STANDARD, Fineness, Game, RoundKind, grid_of
from accounting.compose.adaptive_kernels import kernels_of
from accounting.compose.adaptive_program import Kernels, StateGrid, Values
from accounting.compose.pld import LossDistributions
from accounting.mechanisms import Composed, Mechanism, SingleRelease, sampling_of
from accounting.mechanisms.adjacency import Adjacency

__all__ = ["FINE", "HYPOTHESIS", "QUICK", "STANDARD", "Adding", "epsilon", "epsilons", "values"]

HYPOTHESIS = (
    "fixed-size sampling: holds where what a client sends does not depend on the rounds it was drawn in before "
    "(no error feedback, no control variates)"
)
"""Note on every guarantee under fixed-size sampling."""


MOST_AGAIN = 1000
"""Most rounds of different kinds that a running account composes again for every epsilon."""
_LOUD = 10.0
"""Factor on the planned part of delta above which losses beyond the grid make a new grid necessary."""
_ENDS = 0.3
"""Share of delta that the last state may have; the exact value beyond it is unknown."""


def values(mechanism: Mechanism, *, delta: float, fineness: Fineness = STANDARD) -> Values | None:
    """Return V of all rounds on a grid of gamma; None without such an account, or if it is too much work.

    Claim: V is at least H_gamma over all adversaries in both orders of the neighbours; between grid points a chord in
    gamma is above V. Source: docs/theory.md, Theorem 7. Adjacency: replace-one or zero-out, as the mechanism has it.
    Direction of error: upper bound, except with QUICK. Errors: none of its own.

    >>> from accounting import FixedSizeSampling, Gaussian, subsample
    >>> noise = Gaussian(noise_multiplier=2.0, adjacency="replace-one")
    >>> found = values(subsample(noise, FixedSizeSampling(cohort=10, clients=100)), delta=1e-5)
    >>> round(found.worse_epsilon(1e-5), 2)
    1.68
    """
    game = Game.of(mechanism)
    return None if game is None else _values(game, delta, fineness)


def epsilon(mechanism: Mechanism, *, delta: float, fineness: Fineness = STANDARD) -> float | None:
    """Return the epsilon of the adaptive account at `delta`; None without one.

    Claim: an (epsilon, delta)-bound against all adaptive adversaries under `HYPOTHESIS`. Source: docs/theory.md,
    Theorem 7.
    Adjacency: replace-one or zero-out. Direction of error: upper bound, except with QUICK. Errors: none of its own.

    >>> from accounting import FixedSizeSampling, Gaussian, subsample
    >>> noise = Gaussian(noise_multiplier=2.0, adjacency="replace-one")
    >>> round(epsilon(subsample(noise, FixedSizeSampling(cohort=10, clients=100)), delta=1e-5), 2)
    1.68
    """
    found = values(mechanism, delta=delta, fineness=fineness)
    return None if found is None else found.worse_epsilon(delta)


def epsilons(release: SingleRelease, *, delta: float, rounds: int, lost: float = 0.0) -> Iterator[float] | None:
    """Return an iterator of epsilon after 1, 2, ... rounds, on the grid of `rounds` rounds; None without an account.

    `lost` is subtracted from delta for every round: the part of a release outside the account. One step of the program
    per round. Claim: each is the epsilon of the adaptive account. Source: docs/theory.md, Theorem 7.
    Adjacency: replace-one or zero-out. Direction of error: upper bound. Errors: none of its own.

    >>> from accounting import FixedSizeSampling, Gaussian, subsample
    >>> noise = Gaussian(noise_multiplier=2.0, adjacency="replace-one")
    >>> found = epsilons(subsample(noise, FixedSizeSampling(cohort=10, clients=100)), delta=1e-5, rounds=2)
    >>> round(next(found), 2)
    1.68
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
    """Running account of releases that are added one after the other.

    typical, rounds, delta: the grid is laid out for them; again for a release that is much louder, and with the first
    round of fixed size if `typical` is none. If all rounds of fixed size are alike, one more round is one step of the
    program; else every epsilon composes all of them again, up to MOST_AGAIN.
    Claim: `epsilon` is that of the adaptive account, infinite without one. Direction of error: upper bound.

    >>> from accounting import FixedSizeSampling, Gaussian, subsample
    >>> noise = Gaussian(noise_multiplier=2.0, adjacency="replace-one")
    >>> release = subsample(noise, FixedSizeSampling(cohort=10, clients=100))
    >>> account = Adding(release, rounds=2, delta=1e-5)
    >>> account.add(release, 1)
    >>> round(account.epsilon(1e-5), 2)
    1.68
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
        """Lay out the grid for all releases so far and `rounds` rounds like the newest, and account for the former."""
        so_far = itertools.chain.from_iterable(itertools.repeat(*run) for run in self._added)
        game = Game.of(Composed.of(itertools.chain(so_far, itertools.repeat(newest, self._rounds))))
        self._grid = None if game is None else grid_of(game, self._delta, STANDARD)
        self._hopeless = self._grid is None
        self._kernels: dict[RoundKind, tuple[Kernels, Kernels | None]] = {}
        self._runs: list[tuple[RoundKind, int]] = []
        self._kinds: set[RoundKind] = set()
        self._others: LossDistributions | None = None
        self._values = None if self._grid is None else Values.before(self._grid, upper=True)
        for release, count in self._added if self._grid is not None else ():
            self._add(release, count)

    def add(self, release: SingleRelease, count: int) -> None:
        """Add `count` releases."""
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
        """Return True if losses of this round beyond the grid take more of delta than allowed."""
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
            found = self._value_of_rounds()
        else:
            found = self._after(self._values, kind, 1) if self._kinds <= {kind} else self._value_of_rounds((kind, 1))
        return found if found is None or others is None else found.with_losses(others.orders[0], others.orders[-1])

    def _value_of_rounds(self, *last: tuple[RoundKind, int]) -> Values | None:
        """Return V of all rounds of fixed size, and of these after them."""
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

    def _with_other(self, release: SingleRelease, count: int) -> LossDistributions | None:
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
        found = found.with_losses(laws[0], laws[-1])
    return found
