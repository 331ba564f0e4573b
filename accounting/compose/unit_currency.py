"""Prices of releases in units of one planned release, for projects in which earlier results decide later releases.

If later releases are chosen by earlier results, composing privacy loss distributions gives no valid stopping rule. A
filter in units is valid (docs/theory.md, section 10): a budget is N units, and a plan of other releases is bought as a
whole for the smallest k that covers it,

    h_(plan, unit^(K-k))(gamma) <= h_(unit^K)(gamma) + slack   for all gamma >= 0, both orders of the neighbours.  (P)
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import scipy

from accounting.arrays import Floats
from accounting.compose import accountant, adaptive_grid, loss_grid, pld
from accounting.compose.adaptive_grid import Game, grid_of
from accounting.compose.adaptive_kernels import kernels_of
from accounting.compose.adaptive_program import Values
from accounting.compose.loss_distribution import LossDistribution, composed
from accounting.compose.pld import LossAccount, LossDistributions
from accounting.compose.twins import Continuous, allowed_loss, continuous, overflow
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import (
    Composed,
    SingleRelease,
    Subsampled,
    gaussian_of,
    parts_of,
    sampling_of,
    schedule_of,
    unsampled,
)
from accounting.roots import smallest_passing

SMALLEST_DELTA = 1e-8
"""Smallest delta for purchases. Below it rounding errors could exceed the slack of a purchase, so that only units
can be charged.
"""
MOST_UNITS = 10**6
_PLANNED = 1000
_LARGEST_RATIO = 1.05
"""Largest ratio of the units by the best account to the units by a dominating Gaussian. Above it no prices are
offered.
"""
_SHARE = 0.1
"""Share of the remaining reserve that one purchase uses as its slack, so that the reserve is never exhausted."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price of a purchase: its units, and the part of the reserve that it uses."""

    units: int
    reserve: float


@dataclass(kw_only=True, eq=False)
class Currency:
    """Currency of a project: its number of units, and prices in units. By default only units can be charged.

    units: largest number of units within (epsilon, delta - reserve), for any rule that chooses later releases
    has_prices: True if releases other than units can be bought
    is_loose: True if the best account of whole units may allow more units
    """

    units: int
    has_prices: bool = False
    is_loose: bool = False

    def price(self, plan: Composed, *, remaining_units: int, reserve: float) -> Price | None:
        """Return the smallest price of a whole plan, given remaining units and remaining reserve; None if they do
        not suffice.

        The price is found by bisection: (P) is monotone in k, because the profile of unit^(K-k) decreases in k.
        """
        found = self.suffices(plan, remaining_units, remaining_units=remaining_units, reserve=reserve)
        if found is None:
            return None

        def is_enough(units: int) -> bool:
            return self.suffices(plan, units, remaining_units=remaining_units, reserve=reserve) is not None

        return replace(found, units=1 + bisect_left(range(1, remaining_units), True, key=is_enough))

    def suffices(self, plan: Composed, units: int, *, remaining_units: int, reserve: float) -> Price | None:
        """Return the purchase for `units` units if (P) holds, else None."""
        account = self._account_of(plan)
        if account is None:
            return None
        # The used part of the reserve in addition to the slack: Lemma P3 of docs/theory.md, section 10.
        failures = account.lost + math.expm1(3 * account.closeness)
        slack = _SHARE * (reserve - failures)
        allowed = slack - _comparison_error(remaining_units)
        if 0 < units <= remaining_units and allowed > 0 and self._price_holds(account, units, remaining_units, allowed):
            return Price(units=units, reserve=failures + slack)
        return None

    def covers(self, release: SingleRelease) -> float | None:
        """Return the part of the reserve that a release charged as one unit uses; None if one unit does not cover it.

        One unit covers the release if its profile is at most the unit's, at every gamma and in both orders of the
        neighbours.
        """
        return None

    def _account_of(self, plan: Composed) -> LossAccount | None:
        """Return the account of a plan on the grid of the units; None if prices are unknown."""
        return None

    def _price_holds(self, plan: LossAccount, units: int, remaining_units: int, slack: float) -> bool:
        """Return True if (P) holds on the grid."""
        return False


@lru_cache(maxsize=64)
def currency(unit: Composed, declared: Composed | None, *, epsilon: float, delta: float, reserve: float) -> Currency:
    """Return the currency of a project, whose units fit into the budget together with the `declared` releases.

    unit: one release, or an epoch or run of a schedule as a whole. reserve: the part of delta for purchases, as an
    absolute probability. Nothing can be bought without a reserve, for a delta below SMALLEST_DELTA, or for units
    without a loss distribution. In the last two cases the number of units is by the best account of N adaptive rounds.
    Direction of error: fewer units.
    """
    found: Currency | None = None
    with suppress(UnsupportedMechanism):
        if delta >= SMALLEST_DELTA:
            pairs = _PairCurrency.of(unit, declared, epsilon=epsilon, delta=delta, reserve=reserve)
            game = _FixedSizeCurrency.of(unit, declared, epsilon=epsilon, target=delta - reserve, pairs=pairs)
            found = pairs if game is None or game.units <= pairs.units else game
    if found is not None and not found.is_loose:
        return found
    units_only = Currency(
        units=_largest_count(lambda count: _epsilon_together(unit, count, declared, delta) <= epsilon)
    )
    return units_only if found is None or units_only.units > found.units * _LARGEST_RATIO else found


def is_quieter(release: SingleRelease, unit: SingleRelease) -> bool:
    """Return True if the release is the unit, or the unit with more Gaussian noise or a smaller sampling probability.

    Additional noise is post-processing. A smaller probability of Poisson or fixed-size sampling gives a mixture of the
    unit and of no release. Other samplers are compared by their profiles (`Currency.covers`).
    """
    if release == unit:
        return True
    sampling, other = sampling_of(release), sampling_of(unit)
    if release.adjacency is not unit.adjacency or type(sampling) is not type(other):
        return False
    whole = sampling.independent and not sampling.displaces  # no cap leaves clients out
    if not (whole or sampling.fixed_size or sampling.takes_all) or sampling.probability > other.probability:
        return False
    noise, least = gaussian_of(release), gaussian_of(unit)
    if noise is not None and least is not None:
        return noise.noise_multiplier >= least.noise_multiplier
    return unsampled(release) == unsampled(unit)


def _epsilon_together(unit: Composed, count: int, declared: Composed | None, delta: float) -> float:
    """Return the epsilon of `count` units and the declared releases, in any order. Each unit of a schedule is drawn
    independently.
    """
    parts: list[tuple[SingleRelease, int]] = list(declared.parts) if declared is not None else []
    for part, times in unit.parts:
        if schedule_of(part) is None:
            parts.append((part, count * times))
        else:
            parts += [(with_stream(part, f"unit {number}"), times) for number in range(count)]
    return accountant.epsilon(Composed(parts=tuple(parts), order=None if declared else ()), delta=delta)


def with_stream(release: SingleRelease, stream: str) -> SingleRelease:
    """Return the round of a schedule with this stream name. Other releases are returned unchanged."""
    if not isinstance(release, Subsampled) or schedule_of(release) is None:
        return release
    sampling: Any = release.sampling
    return replace(release, sampling=replace(sampling, stream=stream))


class _PairCurrency(Currency):
    """Currency whose unit is a pair of distributions on a grid, which connects the dots of the unit's profile.

    This pair dominates the unit and replaces it. Prices compare only pairs on the grid. Their profiles are linear
    between grid points, so (P) at the grid points implies (P) for all gamma.
    """

    def __init__(self, unit: Composed, declared: Composed | None, rounds: int, *, delta: float) -> None:
        scheduled = any(schedule_of(part) is not None for part, _ in unit.parts)
        # The twin of integer noise is chosen for `rounds` releases, and is valid for any number.
        times = 1 if scheduled else rounds
        all_units = tuple((part, times * count) for part, count in unit.parts)
        releases = sum(count for _, count in unit.parts)
        replacement = continuous(Composed(parts=all_units), lost=allowed_loss(delta, rounds * releases))
        one = tuple((part, count // times) for part, count in parts_of(replacement.mechanism))
        least = loss_grid.least_interval(Composed(parts=tuple((part, times * count) for part, count in one)))
        self.interval = max(loss_grid.interval(Composed(parts=one)), least)
        per_unit = Continuous(
            mechanism=Composed(parts=one),
            closeness=replacement.closeness / times,
            lost=replacement.lost / times + overflow(unit),
        )
        self.one = LossAccount.of(per_unit, self.interval)
        self.declared = None if declared is None else _loss_account(declared, self.interval, _SHARE**2 * delta)
        self._delta = delta
        self._composed_units_cache: dict[int, list[LossDistribution]] = {}
        super().__init__(units=0, has_prices=True, is_loose=replacement.pairwise)

    @classmethod
    def of(
        cls, unit: Composed, declared: Composed | None, *, epsilon: float, delta: float, reserve: float
    ) -> "_PairCurrency":
        rounds = _PLANNED
        while True:
            pair_currency = cls(unit, declared, rounds, delta=delta)
            pair_currency.has_prices = reserve > 0
            limit = min(4 * rounds, MOST_UNITS)
            fits = partial(pair_currency._fits_budget, epsilon=epsilon, delta=delta, reserve=reserve)
            pair_currency.units = _largest_count(fits, limit=limit)
            if pair_currency.units < limit or limit == MOST_UNITS:
                return pair_currency
            rounds *= 16

    def _fits_budget(self, count: int, *, epsilon: float, delta: float, reserve: float) -> bool:
        """Return True if N units fit: h_(unit^N)(e^(epsilon - 2 N k)) + reserve <= e^(-N k) (delta - N o).

        k is the closeness of a unit and o its failure probability. The used part of the reserve also grows with the
        closeness.
        """
        closeness, lost = count * self.one.closeness, count * self.one.lost
        distributions = self._composed_units(count)
        if self.declared is not None:
            closeness, lost = closeness + self.declared.closeness, lost + self.declared.lost
            distributions = self._with_units(self.declared.distributions, count)
        remaining_delta = (delta - lost) * math.exp(-closeness) - reserve
        laws = LossDistributions(orders=tuple(distributions))
        found = laws.charged_epsilon(remaining_delta, 2 * pld.composition_slack(count))
        return found + 2 * closeness <= epsilon

    def covers(self, release: SingleRelease) -> float | None:
        account = self._account_of(Composed(parts=((release, 1),)))
        if account.closeness > self.one.closeness or account.lost > self.one.lost:
            return None
        pairs = _pairs_of_orders(account.distributions, self.one.distributions)
        return _comparison_error(1) if max(_largest_excess(a, b) for a, b in pairs) <= 1e-14 else None

    def _account_of(self, plan: Composed) -> LossAccount:
        return _loss_account(plan, self.interval, _SHARE**2 * self._delta / 10)

    def _price_holds(self, plan: LossAccount, units: int, remaining_units: int, slack: float) -> bool:
        one = self._with_units(plan.distributions, remaining_units - units)
        two = self._composed_units(remaining_units)
        return all(_largest_excess(a, b) <= slack for a, b in zip(one, two, strict=True))

    def _composed_units(self, count: int) -> list[LossDistribution]:
        if count not in self._composed_units_cache:
            if len(self._composed_units_cache) > 32:
                self._composed_units_cache.clear()
            orders = self.one.distributions.orders
            self._composed_units_cache[count] = [composed([(orders[-k], count)]) for k in (0, 1)]
        return self._composed_units_cache[count]

    def _with_units(self, distributions: LossDistributions, count: int) -> list[LossDistribution]:
        pairs = _pairs_of_orders(distributions, self.one.distributions)
        return [composed([(distribution, 1), (unit, count)]) if count else distribution for distribution, unit in pairs]


def _pairs_of_orders(one: LossDistributions, two: LossDistributions) -> list[tuple[LossDistribution, LossDistribution]]:
    """Return the pairs of distributions for both orders of the neighbours, even if both orders are equal."""
    return [(one.orders[-k], two.orders[-k]) for k in (0, 1)]


@lru_cache(maxsize=16)
def _loss_account(mechanism: Composed, interval: float, lost: float) -> LossAccount:
    """Return the account of a composition on a grid. lost: part of delta for dominating Gaussians of all releases."""
    releases = sum(count for _, count in mechanism.parts)
    replacement = continuous(mechanism, lost=allowed_loss(lost, releases))
    return LossAccount.of(replace(replacement, lost=replacement.lost + overflow(mechanism)), interval)


def _comparison_error(count: int) -> float:
    """Return a bound on the error of comparing `count` composed units. It covers transforms and truncation on both
    sides (`pld.composition_slack`, twice each), and sums of profiles (4e-14, compared with 40 digits).
    """
    return 2e-13 + 4 * pld.composition_slack(count)


def _largest_excess(one: LossDistribution, two: LossDistribution) -> float:
    """Return sup over gamma >= 0 of H_gamma of the first minus H_gamma of the second, for distributions on one grid.

    Both profiles are linear in gamma between grid points, below the lowest and above the highest grid point.
    """
    first = min(one.lowest, two.lowest) - 1
    last = max(one.lowest + len(one.masses), two.lowest + len(two.masses))
    return float((_profile_on_grid(one, first, last) - _profile_on_grid(two, first, last)).max())


def _profile_on_grid(distribution: LossDistribution, first: int, last: int) -> Floats:
    """Return H_gamma at gamma = e^(j d), j = first..last: p_inf + sum over i > j of p_i (1 - e^((j-i)d)).

    Two recursions with positive terms avoid cancellation:
        B_j = e^-d (p_(j+1) + B_(j+1)),      h_j = h_(j+1) + (1 - e^-d) (p_(j+1) + B_(j+1))
    """
    masses = np.zeros(last - first + 2)
    masses[distribution.lowest - first : distribution.lowest - first + len(distribution.masses)] = np.maximum(
        distribution.masses, 0.0
    )
    shrink, width = math.exp(-distribution.spacing), -math.expm1(-distribution.spacing)
    falling = scipy.signal.lfilter([0.0, shrink], [1.0, -shrink], masses[::-1])[::-1]
    steps = width * (masses[1:] + falling[1:])
    return np.asarray(distribution.infinite + np.cumsum(steps[::-1])[::-1])


class _FixedSizeCurrency(Currency):
    """Currency of fixed-size rounds, by the adaptive account.

    R_K = V_K of Theorem 7 of docs/theory.md replaces the profile of unit^K, and T_plan V_(K-k) <= V_K + slack replaces
    (P). V_K is stored at its grid points, T_plan V is an upper bound, and the adversary's kernels are on the grid. So
    the inequality at the grid points suffices (docs/theory.md, section 10).
    """

    def __init__(self, pairs: _PairCurrency, values: list[Values]) -> None:
        super().__init__(units=len(values) - 1, has_prices=pairs.has_prices)
        self._pairs, self._values = pairs, values

    @classmethod
    def of(
        cls, unit: Composed, declared: Composed | None, *, epsilon: float, target: float, pairs: _PairCurrency
    ) -> "_FixedSizeCurrency | None":
        """Return the currency by the adaptive account; None if that account does not apply to the unit.

        Integer noise with a twin uses the account of one pair instead.
        """
        fixed = all(sampling_of(part).fixed_size for part, _ in unit.parts)
        if not fixed or declared is not None or continuous(unit).mechanism is not unit or not pairs.units:
            return None
        rounds = pairs.units + pairs.units // 4 + 10
        game = Game.of(Composed(parts=tuple((part, rounds * count) for part, count in unit.parts)))
        grid = None if game is None or len(game.kinds) != 1 else grid_of(game, target, adaptive_grid.STANDARD)
        if game is None or grid is None or game.without_choice is not None:
            return None
        kernels = kernels_of(game.kinds[0], rounds, target, game.symmetric, adaptive_grid.STANDARD, grid)
        values = [Values.for_no_rounds(grid, upper=True)]
        while len(values) <= rounds:
            after = values[-1].with_another_round(*kernels)
            if after.worse_epsilon(target) > epsilon:
                break
            values.append(after)
        return cls(pairs, values)

    def _account_of(self, plan: Composed) -> LossAccount:
        return _loss_account(plan, self._values[0].grid.spacing, _SHARE**2 * self._pairs._delta / 10)

    def _price_holds(self, plan: LossAccount, units: int, remaining_units: int, slack: float) -> bool:
        laws, before = plan.distributions.orders, self._values[remaining_units]
        after = self._values[remaining_units - units].with_losses(laws[0], laws[-1])
        gap = max(float((after.forward - before.forward).max()), float((after.reverse - before.reverse).max()))
        return gap <= slack


def _largest_count(fits_budget: Callable[[int], bool], limit: int = MOST_UNITS) -> int:
    """Return the largest number of units, up to `limit`, that passes a monotone test."""
    return smallest_passing(lambda units: units > limit or not fits_budget(units)) - 1
