"""Prices of releases in units of one planned release, for projects in which results decide the next releases.

Composing privacy loss distributions is no stopping rule if later releases are chosen by earlier results. A filter in
units is one (docs/theory.md, section 10): a budget is N units, and a plan of other releases is bought whole for the
least k that covers it,

    h_(plan, unit^(K-k))(gamma) <= h_(unit^K)(gamma) + slack   for all gamma >= 0, both orders of the neighbours.  (P)
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np

from accounting.arrays import Floats
from accounting.compose import accountant, adaptive_grid, loss_grid, pld
from accounting.compose.adaptive_grid import Game, grid_of
from accounting.compose.adaptive_kernels import kernels_of
from accounting.compose.adaptive_program import Values
from accounting.compose.loss_distribution import LossDistribution, composed
from accounting.compose.pld import LossDistributions
from accounting.compose.twins import allowed_loss, continuous, overflow
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import (
    Composed,
    Gaussian,
    SingleRelease,
    Subsampled,
    parts_of,
    sampling_of,
    schedule_of,
    unsampled,
)
from accounting.roots import smallest_passing

SMALLEST_DELTA = 1e-8
"""Delta below which the slack of a purchase is not large against rounding errors: only units can be charged."""
MOST_UNITS = 10**6
_PLANNED = 1000
_LOOSE = 1.05
"""Ratio of the units by the best account to those by a dominating Gaussian above which no prices are offered."""
_SHARE = 0.1
"""Share of the remaining reserve that one purchase takes as its slack, so that the reserve is never used up."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """Units of a purchase, and the part of the reserve that it takes."""

    units: int
    reserve: float


class Currency(Protocol):
    """Currency of a project: its N units, and prices in them."""

    @property
    def units(self) -> int:
        """The most units within (epsilon, delta - reserve), for any rule that chooses later releases."""
        ...

    @property
    def has_prices(self) -> bool:
        """True if releases other than units can be bought."""
        ...

    def price(self, plan: Composed, *, remaining_units: int, reserve: float) -> Price | None:
        """Return the least price of a whole plan with `left` units and `reserve` left; None if they do not suffice."""
        ...

    def suffices(self, plan: Composed, units: int, *, remaining_units: int, reserve: float) -> Price | None:
        """Return the purchase at this price if (P) holds for it, else None."""
        ...

    def covers(self, release: SingleRelease) -> float | None:
        """Return the part of the reserve for a release at the price of one unit; None if one unit does not cover it.

        One unit covers it if its profile is below the unit's at every gamma in both orders of the neighbours.
        """
        ...


@lru_cache(maxsize=64)
def currency(unit: Composed, declared: Composed | None, *, epsilon: float, delta: float, reserve: float) -> Currency:
    """Return the currency of a project: units that fit beside the `declared` releases.

    unit: one release, or an epoch or run of a schedule as a whole. reserve: the part of delta, absolute, for purchases.
    Without a reserve, below SMALLEST_DELTA and for units without a loss distribution nothing can be bought; in the last
    two cases the units are counted by the best account of N adaptive rounds. Direction of error: fewer units.
    """
    found: _Pairs | _FixedSize | None = None
    if delta >= SMALLEST_DELTA:
        try:
            pairs = _Pairs.of(unit, declared, epsilon=epsilon, delta=delta, reserve=reserve)
            game = _FixedSize.of(unit, declared, epsilon=epsilon, target=delta - reserve, pairs=pairs)
            found = pairs if game is None or game.units <= pairs.units else game
        except UnsupportedMechanism:
            pass
    if found is not None and not found.is_loose:
        return found
    counted = _Counted(units=_most(lambda count: _epsilon_together(unit, count, declared, delta) <= epsilon))
    return counted if found is None or counted.units > found.units * _LOOSE else found


def is_quieter(release: SingleRelease, unit: SingleRelease) -> bool:
    """Return True for the unit, or the unit with more Gaussian noise or a smaller sampling probability.

    Added noise is post-processing. A smaller probability of Poisson sampling, fixed-size sampling or of all clients is
    a mixture of the unit and of no release; other samplers are compared by their profiles (`Currency.covers`).
    """
    if release == unit:
        return True
    sampling, other = sampling_of(release), sampling_of(unit)
    if release.adjacency is not unit.adjacency or type(sampling) is not type(other):
        return False
    if sampling.name not in ("poisson", "fixed", "all") or sampling.probability > other.probability:
        return False
    noise, least = unsampled(release), unsampled(unit)
    if isinstance(noise, Gaussian) and isinstance(least, Gaussian):
        return noise.noise_multiplier >= least.noise_multiplier
    return noise == least


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """Currency in which only units can be charged."""

    units: int
    has_prices: ClassVar[bool] = False

    def price(self, plan: Composed, *, remaining_units: int, reserve: float) -> Price | None:
        return None

    def suffices(self, plan: Composed, units: int, *, remaining_units: int, reserve: float) -> Price | None:
        return None

    def covers(self, release: SingleRelease) -> float | None:
        return None


def _epsilon_together(unit: Composed, count: int, declared: Composed | None, delta: float) -> float:
    """Return epsilon of units and declared releases in any order; each unit of a schedule is drawn independently."""
    parts: list[tuple[SingleRelease, int]] = list(declared.parts) if declared is not None else []
    for part, times in unit.parts:
        if schedule_of(part) is None:
            parts.append((part, count * times))
        else:
            parts += [(with_stream(part, f"unit {number}"), times) for number in range(count)]
    return accountant.epsilon(Composed(parts=tuple(parts), order=None if declared else ()), delta=delta)


def with_stream(release: SingleRelease, stream: str) -> SingleRelease:
    """Return a round of a schedule with another stream name; any other release unchanged."""
    if not isinstance(release, Subsampled) or schedule_of(release) is None:
        return release
    sampling: Any = release.sampling
    return replace(release, sampling=replace(sampling, stream=stream))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Near:
    """Loss distributions on a grid, the log-ratio of the true ones to them, and the probability outside the account."""

    laws: LossDistributions
    closeness: float
    lost: float

    @classmethod
    def of(cls, mechanism: Composed, interval: float, lost: float) -> "_Near":
        """Return the loss distributions of a composition. `lost`: delta that dominating Gaussians of all releases may
        take.
        """
        releases = sum(count for _, count in mechanism.parts)
        near = continuous(mechanism, lost=allowed_loss(lost, releases))
        beside = near.lost + overflow(mechanism)
        return cls(laws=pld.distribution(near.mechanism, interval), closeness=near.closeness, lost=beside)

    @property
    def failures(self) -> float:
        """Return the delta that a purchase takes beside its slack: Lemma P3 of docs/theory.md, section 10."""
        return self.lost + math.expm1(3 * self.closeness)


class _Pairs:
    """Unit as the pair of distributions on a grid that connects the dots of its profile.

    This pair dominates the release and *is* the currency: prices compare pairs on the grid alone, whose profiles are
    linear between grid points, so (P) for all gamma is (P) at the grid points.
    """

    def __init__(self, unit: Composed, declared: Composed | None, rounds: int, *, delta: float) -> None:
        scheduled = any(schedule_of(part) is not None for part, _ in unit.parts)
        times = 1 if scheduled else rounds  # the twin of integer noise is chosen for `rounds` releases, valid for all
        many = tuple((part, times * count) for part, count in unit.parts)
        releases = sum(count for _, count in unit.parts)
        near = continuous(Composed(parts=many), lost=allowed_loss(delta, rounds * releases))
        one = tuple((part, count // times) for part, count in parts_of(near.mechanism))
        least = loss_grid.least_interval(Composed(parts=tuple((part, times * count) for part, count in one)))
        self.interval = max(loss_grid.interval(Composed(parts=one)), least)
        self.one = _Near(
            laws=pld.distribution(Composed(parts=one), self.interval),
            closeness=near.closeness / times,
            lost=near.lost / times + overflow(unit),
        )
        self.declared = None if declared is None else _Near.of(declared, self.interval, _SHARE**2 * delta)
        self._delta = delta
        self._powers: dict[int, list[LossDistribution]] = {}
        self.units, self.has_prices, self.is_loose = 0, True, near.pairwise

    @classmethod
    def of(cls, unit: Composed, declared: Composed | None, *, epsilon: float, delta: float, reserve: float) -> "_Pairs":
        rounds = _PLANNED
        while True:
            made = cls(unit, declared, rounds, delta=delta)
            made.has_prices = reserve > 0
            limit = min(4 * rounds, MOST_UNITS)
            made.units = _most(made._budget_test(epsilon, delta, reserve), limit=limit)
            if made.units < limit or limit == MOST_UNITS:
                return made
            rounds *= 16

    def _budget_test(self, epsilon: float, delta: float, reserve: float) -> Callable[[int], bool]:
        """Return the test of h_(unit^N)(e^(epsilon - 2 N k)) + reserve <= e^(-N k) (delta - N o) for N units.

        k is the closeness of a unit, o its failures: the used part of the reserve grows with the closeness, too.
        """
        before = self.declared

        def fits(count: int) -> bool:
            closeness = count * self.one.closeness + (before.closeness if before else 0.0)
            lost = count * self.one.lost + (before.lost if before else 0.0)
            remaining_units = (delta - lost) * math.exp(-closeness) - reserve
            laws = self._power(count) if before is None else self._composed(before.laws, count)
            found = LossDistributions(orders=tuple(laws)).charged_epsilon(
                remaining_units, 2 * pld.composition_slack(count)
            )
            return found + 2 * closeness <= epsilon

        return fits

    def price(self, plan: Composed, *, remaining_units: int, reserve: float) -> Price | None:
        """Bisect the price: (P) is monotone in k, since unit^(K-k) falls with k."""
        near = self._near(plan)
        slack = _SHARE * (reserve - near.failures)
        if (
            not remaining_units
            or slack <= _rounding(remaining_units)
            or not self._price_holds(near, remaining_units, remaining_units, slack)
        ):
            return None
        units = 1 + bisect_left(
            range(1, remaining_units), True, key=lambda units: self._price_holds(near, units, remaining_units, slack)
        )
        return Price(units=units, reserve=near.failures + slack)

    def suffices(self, plan: Composed, units: int, *, remaining_units: int, reserve: float) -> Price | None:
        near = self._near(plan)
        slack = _SHARE * (reserve - near.failures)
        held = (
            0 < units <= remaining_units
            and slack > _rounding(remaining_units)
            and self._price_holds(near, units, remaining_units, slack)
        )
        return Price(units=units, reserve=near.failures + slack) if held else None

    def covers(self, release: SingleRelease) -> float | None:
        near = self._near(Composed(parts=((release, 1),)))
        if near.closeness > self.one.closeness or near.lost > self.one.lost:
            return None
        gap = max(_worst_gap(a, b) for a, b in self._orders(near.laws, self.one.laws))
        return _rounding(1) if gap <= 1e-14 else None

    def _near(self, plan: Composed) -> _Near:
        return _near(plan, self.interval, _SHARE**2 * self._delta / 10)

    def _price_holds(self, plan: _Near, units: int, remaining_units: int, slack: float) -> bool:
        """Return True if (P) holds on the grid; errors of transforms and cut ends of both sides are subtracted from the
        slack.
        """
        one = self._composed(plan.laws, remaining_units - units)
        two = self._power(remaining_units)
        return all(_worst_gap(a, b) <= slack - _rounding(remaining_units) for a, b in zip(one, two, strict=True))

    def _power(self, count: int) -> list[LossDistribution]:
        if count not in self._powers:
            if len(self._powers) > 32:
                self._powers.clear()
            self._powers[count] = [composed([(law, count)]) for law, _ in self._orders(self.one.laws, self.one.laws)]
        return self._powers[count]

    def _composed(self, laws: LossDistributions, count: int) -> list[LossDistribution]:
        pairs = self._orders(laws, self.one.laws)
        return [composed([(law, 1), (unit, count)]) if count else law for law, unit in pairs]

    def _orders(
        self, one: LossDistributions, two: LossDistributions
    ) -> list[tuple[LossDistribution, LossDistribution]]:
        """Return both orders of the neighbours, also for distributions that are equal in both."""
        return [(one.orders[-k], two.orders[-k]) for k in (0, 1)]


@lru_cache(maxsize=16)
def _near(plan: Composed, interval: float, lost: float) -> _Near:
    return _Near.of(plan, interval, lost)


def _rounding(count: int) -> float:
    """Return the error of comparing `rounds` composed units: transforms and cut ends of both sides
    (`pld.composition_slack`, twice each), and sums of profiles, 4e-14 against 40 digits.
    """
    return 2e-13 + 4 * pld.composition_slack(count)


def _worst_gap(one: LossDistribution, two: LossDistribution) -> float:
    """Return the largest H_gamma of the first minus that of the second over all gamma >= 0, for distributions on one
    grid.

    Both are linear in gamma between grid points, from 0 to the lowest and beyond the highest.
    """
    first = min(one.lowest, two.lowest) - 1
    last = max(one.lowest + len(one.masses), two.lowest + len(two.masses))
    return float((_profile(one, first, last) - _profile(two, first, last)).max())


def _profile(law: LossDistribution, first: int, last: int) -> Floats:
    """Return H at gamma = e^(j d), j = first..last: p_inf + sum over i > j of p_i (1 - e^((j-i)d)).

    By two recursions whose terms are positive, so that nothing cancels:
        B_j = e^-d (p_(j+1) + B_(j+1)),      h_j = h_(j+1) + (1 - e^-d) (p_(j+1) + B_(j+1))
    """
    from scipy.signal import lfilter

    masses = np.zeros(last - first + 2)
    masses[law.lowest - first : law.lowest - first + len(law.masses)] = np.maximum(law.masses, 0.0)
    shrink, width = math.exp(-law.spacing), -math.expm1(-law.spacing)
    falling = lfilter([0.0, shrink], [1.0, -shrink], masses[::-1])[::-1]
    steps = width * (masses[1:] + falling[1:])
    return np.asarray(law.infinite + np.cumsum(steps[::-1])[::-1])


class _FixedSize:
    """Fixed-size rounds by the adaptive account.

    R_K = V_K of Theorem 7 of docs/theory.md replaces the profile of unit^K, and T_plan V_(K-k) <= V_K + slack replaces
    (P). V_K is kept at the points of its grid, T_plan V is computed from above, and the adversary's kernels are on the
    grid, so the inequality at the grid points suffices (docs/theory.md, section 10).
    """

    def __init__(self, pairs: _Pairs, values: list[Values]) -> None:
        self._pairs, self._values = pairs, values
        self.units, self.has_prices, self.is_loose = len(values) - 1, pairs.has_prices, False

    @classmethod
    def of(
        cls, unit: Composed, declared: Composed | None, *, epsilon: float, target: float, pairs: _Pairs
    ) -> "_FixedSize | None":
        """Return the currency by the adaptive account; None if the unit has none.

        Twins of integer noise keep the account of one pair.
        """
        fixed = all(sampling_of(part).name == "fixed" for part, _ in unit.parts)
        if not fixed or declared is not None or continuous(unit).mechanism is not unit or not pairs.units:
            return None
        rounds = pairs.units + pairs.units // 4 + 10
        game = Game.of(Composed(parts=tuple((part, rounds * count) for part, count in unit.parts)))
        grid = None if game is None or len(game.kinds) != 1 else grid_of(game, target, adaptive_grid.STANDARD)
        if game is None or grid is None or game.others is not None:
            return None
        kernels = kernels_of(game.kinds[0], rounds, target, game.symmetric, adaptive_grid.STANDARD, grid)
        values = [Values.before(grid, upper=True)]
        while len(values) <= rounds:
            after = values[-1].after(*kernels)
            if after.worse_epsilon(target) > epsilon:
                break
            values.append(after)
        return cls(pairs, values)

    def price(self, plan: Composed, *, remaining_units: int, reserve: float) -> Price | None:
        found = self.suffices(plan, remaining_units, remaining_units=remaining_units, reserve=reserve)
        if found is None:
            return None

        def enough(units: int) -> bool:
            return self.suffices(plan, units, remaining_units=remaining_units, reserve=reserve) is not None

        return replace(found, units=1 + bisect_left(range(1, remaining_units), True, key=enough))

    def suffices(self, plan: Composed, units: int, *, remaining_units: int, reserve: float) -> Price | None:
        grid = self._values[0].grid
        near = _near(plan, grid.spacing, _SHARE**2 * self._pairs._delta / 10)
        slack = _SHARE * (reserve - near.failures)
        if not 0 < units <= remaining_units or slack <= _rounding(remaining_units):
            return None
        after = self._values[remaining_units - units].with_losses(near.laws.orders[0], near.laws.orders[-1])
        before = self._values[remaining_units]
        gap = max(float((after.forth - before.forth).max()), float((after.back - before.back).max()))
        return Price(units=units, reserve=near.failures + slack) if gap <= slack - _rounding(remaining_units) else None

    def covers(self, release: SingleRelease) -> float | None:
        return None


def _most(fits: Callable[[int], bool], limit: int = MOST_UNITS) -> int:
    """Return the most units that fit, up to `limit`, for a test that is monotone."""
    return smallest_passing(lambda units: units > limit or not fits(units)) - 1
