"""Adaptive account of fixed-size sampling, with the tightest proven epsilon (docs/theory.md, section 4).

Composing one dominating pair T times assumes neighbours that are the worst in both directions at once. Such neighbours
do not exist, because a client either moves the sum or does not. In this account the adversary chooses the neighbours of
each round by everything released so far, and epsilon follows from the value of this game. A dynamic program
(`compose.adaptive_program`) computes it over a finite cover of all configurations (`gaussian.configurations`). The
program of a few attained configurations gives a lower bound.

Hypothesis: a client's message is a function of earlier releases and of randomness independent of the rounds in which it
was drawn. With error feedback, control variates or other memory of earlier participation the account does not hold.
"""

import math
from functools import lru_cache

from accounting.compose import pld
from accounting.compose.adaptive_grid import FINE, LARGEST_LOSS, QUICK, STANDARD, Fineness, Game, RoundKind, grid_of
from accounting.compose.adaptive_kernels import kernels_of
from accounting.compose.adaptive_program import Kernels, StateGrid, Values
from accounting.compose.pld import LossDistributions
from accounting.mechanisms import Adjacency, Composed, Mechanism, SingleRelease, sampling_of
from accounting.mechanisms.samplings.independent import HYPOTHESIS

__all__ = ["FINE", "HYPOTHESIS", "QUICK", "STANDARD", "Adding", "epsilon", "values"]


MOST_AGAIN = 1000
"""Largest number of rounds of several kinds that a running account composes again for every epsilon."""
_LARGE_LOSS_FACTOR = 10.0
"""Factor on the planned part of delta. If losses beyond the grid need a larger part, a new grid is made."""
_SHARE_AT_LAST_STATE = 0.3
"""Largest value at the last state, as a share of delta; exact values beyond this state are unknown."""


def values(mechanism: Mechanism, *, delta: float, fineness: Fineness = STANDARD) -> Values | None:
    """Return the values V of all rounds on a grid of gamma; None if the account does not apply or takes too long.

    Claim: V is at least H_gamma for all adversaries, in both orders of the neighbours. Between grid points a chord in
    gamma is an upper bound.
    Source: docs/theory.md, Theorem 7.
    Adjacency: replace-one or zero-out, as the mechanism has it.
    Direction of error: upper bound, except with QUICK.
    Errors: none.

    >>> from accounting import FixedSizeSampling, Gaussian, subsample
    >>> noise = Gaussian(noise_multiplier=2.0, adjacency="replace-one")
    >>> found = values(subsample(noise, FixedSizeSampling(cohort=10, clients=100)), delta=1e-5)
    >>> round(found.worse_epsilon(1e-5), 2)
    1.68
    """
    game = Game.of(mechanism)
    return None if game is None else _values(game, delta, fineness)


def epsilon(mechanism: Mechanism, *, delta: float, fineness: Fineness = STANDARD) -> float | None:
    """Return the epsilon of the adaptive account at `delta`; None if the account does not apply.

    Claim: (epsilon, delta)-DP against all adaptive adversaries under `HYPOTHESIS`.
    Source: docs/theory.md, Theorem 7.
    Adjacency: replace-one or zero-out.
    Direction of error: upper bound, except with QUICK.
    Errors: none.

    >>> from accounting import FixedSizeSampling, Gaussian, subsample
    >>> noise = Gaussian(noise_multiplier=2.0, adjacency="replace-one")
    >>> round(epsilon(subsample(noise, FixedSizeSampling(cohort=10, clients=100)), delta=1e-5), 2)
    1.68
    """
    found = values(mechanism, delta=delta, fineness=fineness)
    return None if found is None else found.worse_epsilon(delta)


class Adding:
    """Running adaptive account, to which releases are added one after the other.

    typical, rounds, delta: the grid is made for `rounds` rounds of `typical`. A new grid is made for a release with
    much larger losses, and at the first fixed-size round if `typical` is of another kind. If all fixed-size rounds are
    equal, one more round is one step of the program. Otherwise every epsilon composes all of them again, up to
    MOST_AGAIN rounds.
    Claim: `epsilon` is that of the adaptive account, or infinity if the account does not apply. Direction of error:
    upper bound.

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
        self._not_applicable = False
        if RoundKind.of(typical) is not None:
            self._make_grid(typical)

    def _make_grid(self, newest: SingleRelease) -> None:
        """Make a grid for all releases so far and `rounds` rounds of `newest`, and add the releases so far."""
        game = Game.of(Composed.of_runs((*self._added, (newest, self._rounds))))
        self._grid = None if game is None else grid_of(game, self._delta, STANDARD)
        self._not_applicable = self._grid is None
        self._kernels: dict[RoundKind, tuple[Kernels, Kernels | None]] = {}
        self._runs: list[tuple[RoundKind, int]] = []
        self._kinds: set[RoundKind] = set()
        self._others: LossDistributions | None = None
        self._values = None if self._grid is None else Values.for_no_rounds(self._grid, upper=True)
        for release, count in self._added if self._grid is not None else ():
            self._add_to_grid(release, count)

    def add(self, release: SingleRelease, count: int) -> None:
        """Add `count` releases."""
        if self._not_applicable:
            return
        kind = RoundKind.of(release)
        if kind is not None and (self._grid is None or self._exceeds_grid(kind)):
            self._make_grid(release)
        earlier_count = self._added.pop()[1] if self._added and self._added[-1][0] == release else 0
        self._added.append((release, earlier_count + count))
        if self._grid is not None:
            self._add_to_grid(release, count)

    def _exceeds_grid(self, kind: RoundKind) -> bool:
        """Return True if losses of this kind of round beyond the grid need a larger part of delta than allowed."""
        assert self._grid is not None
        largest = kind.largest_loss(_LARGE_LOSS_FACTOR * STANDARD.tail * self._delta / self._rounds)
        return largest > self._grid.largest_step * self._grid.spacing

    def _add_to_grid(self, release: SingleRelease, count: int) -> None:
        kind = RoundKind.of(release)
        if kind is None:
            self._others = self._with_other(release, count)
            return
        self._values = self._after_rounds(self._values, kind, count) if self._kinds <= {kind} else None
        self._kinds.add(kind)
        before = self._runs.pop()[1] if self._runs and self._runs[-1][0] == kind else 0
        self._runs.append((kind, before + count))

    def epsilon(
        self, delta: float, further_release: SingleRelease | None = None, *, scheduled: Mechanism | None = None
    ) -> float:
        """Return epsilon of all releases, of `further_release` after them, and of `scheduled` rounds; infinite if the
        account does not apply.
        """
        if self._grid is None:
            return math.inf
        found = self._composed_values(further_release, scheduled)
        at_last_state = 0.0 if found is None else max(found.forward[-1], found.reverse[-1])
        if scheduled is None and at_last_state > _SHARE_AT_LAST_STATE * delta:
            self._make_grid(further_release or self._added[-1][0])  # the states end before delta is small enough
            found = None if self._grid is None else self._composed_values(further_release, scheduled)
        return math.inf if found is None else found.worse_epsilon(delta)

    def _composed_values(self, further_release: SingleRelease | None, scheduled: Mechanism | None) -> Values | None:
        assert self._grid is not None
        kind = None if further_release is None else RoundKind.of(further_release)
        others = self._others if further_release is None or kind is not None else self._with_other(further_release, 1)
        if scheduled is not None:
            distributions = pld.distribution(scheduled, self._grid.spacing)
            others = distributions if others is None else others.plus(distributions)
        if kind is not None and self._kinds <= {kind}:
            found = self._after_rounds(self._values, kind, 1)
        else:
            found = self._value_of_rounds(*(() if kind is None else ((kind, 1),)))
        return found if found is None or others is None else found.with_losses(others.orders[0], others.orders[-1])

    def _value_of_rounds(self, *last: tuple[RoundKind, int]) -> Values | None:
        """Return the values V of all fixed-size rounds, followed by the rounds `last`."""
        if len(self._kinds) == 1 and not last:
            return self._values
        if self._grid is None or sum(count for _, count in self._runs) > MOST_AGAIN:
            return None
        found: Values | None = Values.for_no_rounds(self._grid, upper=True)
        for kind, count in reversed((*self._runs, *last)):
            found = self._after_rounds(found, kind, count)
        return found

    def _after_rounds(self, found: Values | None, kind: RoundKind, count: int) -> Values | None:
        assert self._grid is not None
        if found is None or kind.largest_loss(STANDARD.tail * self._delta / self._rounds) > LARGEST_LOSS:
            return None
        if kind not in self._kernels:
            self._kernels[kind] = kernels_of(kind, self._rounds, self._delta, self._symmetric, STANDARD, self._grid)
        for _ in range(count):
            found = found.with_another_round(*self._kernels[kind])
        return found

    def _with_other(self, release: SingleRelease, count: int) -> LossDistributions | None:
        assert self._grid is not None
        if sampling_of(release).probability == 0:
            return self._others
        distributions = pld.distribution(Composed(parts=((release, count),)), self._grid.spacing)
        return distributions if self._others is None else self._others.plus(distributions)


@lru_cache(maxsize=32)
def _values(game: Game, delta: float, fineness: Fineness) -> Values | None:
    grid = grid_of(game, delta, fineness)
    if grid is None:
        return None
    rounds = {kind: kernels_of(kind, game.rounds, delta, game.symmetric, fineness, grid) for kind in game.kinds}
    found = Values.for_no_rounds(grid, upper=True).with_rounds(game.runs, rounds)
    if game.without_choice is not None:
        distributions = pld.distribution(game.without_choice, grid.spacing).orders
        found = found.with_losses(distributions[0], distributions[-1])
    return found
