"""Epsilon during a run whose rounds differ: one convolution per round, instead of a new composition."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from accounting import require
from accounting.arrays import Floats
from accounting.compose import accountant as accountants
from accounting.compose import adaptive, loss_grid, pld, rdp
from accounting.compose.accountant import Accountant
from accounting.compose.pld import LossDistributions
from accounting.compose.twins import Continuous, allowed_loss, continuous, overflow
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import Composed, SingleRelease, parts_of, schedule_of

_ROOM = 4.0
"""Factor on the planned width of the losses that still fits on the grid."""


class Running:
    """Composition of releases that are added one by one, and its epsilon at `delta`.

    typical: a release like the planned ones, about `rounds` of them: it sets grid and orders. Every value is an upper
    bound, equal to that of `compose.accountant.epsilon` within the tolerance of the grid. "best" takes the smallest of
    the privacy loss distribution, the adaptive account of fixed-size sampling and the Renyi account; the first two for
    noise that is Gaussian or nearly. Rounds of a participation schedule belong together: they are accounted anew for
    every epsilon, an epoch in progress by its rounds so far.
    """

    def __init__(self, *, delta: float, typical: SingleRelease, rounds: int, accountant: Accountant = "best") -> None:
        schedule = schedule_of(typical)
        rounds = rounds if schedule is None or schedule.ends_after is None else min(rounds, schedule.ends_after)
        self._delta, self._rounds = require.open_probability(delta=delta), require.count(rounds=rounds)
        self._scheduled: Counter[SingleRelease] = Counter()
        self._lost = 0.0
        self._curve: Floats | None = None
        self._uncapped: tuple[Floats, float] | None = None  # without caps, and what that loses of delta
        self._losses: _Losses | None = None
        lost = allowed_loss(delta, rounds)
        losses = [name for name in ("pld", "adaptive") if accountant in ("best", name)]
        if (
            losses
            and delta >= pld.SMALLEST_DELTA
            and (near := _release_near_gaussian(typical, rounds, lost)) is not None
        ):
            if near.pairwise and losses == ["adaptive"]:
                raise UnsupportedMechanism(accountants.without_bound(accountant, typical, delta))
            self._losses = _Losses(typical, rounds, delta=delta, lost=lost, accountants=losses)
        if accountant in ("best", "rdp"):
            self._orders = rdp.orders(typical)
            self._curve = np.zeros_like(self._orders)
            self._uncapped = self._curve, 0.0
        if self._losses is None and self._curve is None:
            raise UnsupportedMechanism(accountants.without_bound(accountant, typical, delta))
        self._count = 0

    def add(self, release: SingleRelease, count: int = 1) -> None:
        """Add `count` equal releases."""
        self._count += require.count(count=count)
        if schedule_of(release) is not None:
            self._scheduled[release] += count
            return
        self._lost += count * overflow(release)
        if self._losses is not None:
            try:
                self._losses.add(release, count)
            except UnsupportedMechanism:
                if self._curve is None:
                    raise
                self._losses = None  # the other account remains
        if self._curve is not None and self._uncapped is not None:
            self._curve = self._curve + count * self._renyi_curve(release)
            self._uncapped = self._without_caps(release, count)

    def epsilon(self, also: SingleRelease | None = None) -> float:
        """Return epsilon of everything added so far and `also`."""
        if also is None and not self._count:
            return 0.0
        scheduled = self._scheduled
        if also is not None and schedule_of(also) is not None:
            scheduled, also = self._scheduled + Counter([also]), None
        together = Composed(parts=tuple(scheduled.items())) if scheduled else None
        target = self._delta - self._lost - (overflow(also) if also is not None else 0.0)
        if target <= 0:
            return math.inf
        bounds = []
        if self._losses is not None:
            try:
                bounds.append(self._losses.epsilon(target, also, together))
            except UnsupportedMechanism:
                if self._curve is None:
                    raise
        if self._curve is not None and self._uncapped is not None:
            curve = self._curve + (self._renyi_curve(also) if also is not None else 0.0)
            free, lost = self._uncapped if also is None else self._without_caps(also, 1)
            schedules = rdp.curve(together, self._orders) if together is not None else 0.0
            bounds.append(rdp.epsilon_from_curve(self._orders, curve + schedules, delta=target).epsilon)
            if 0 < lost < target:
                bounds.append(rdp.epsilon_from_curve(self._orders, free + schedules, delta=target - lost).epsilon)
        return min(bounds)

    def _without_caps(self, release: SingleRelease, count: int) -> tuple[Floats, float]:
        """Return the Renyi curve without caps, of all releases so far and these, and the part of delta that this
        takes.
        """
        assert self._uncapped is not None
        before, lost = self._uncapped
        free, more = rdp.choices(Composed(parts=((release, count),)))[-1]
        ((one, _),) = parts_of(free)
        return before + count * self._renyi_curve(one), lost + more

    def _renyi_curve(self, release: SingleRelease) -> Floats:
        # A discrete Gaussian's Renyi curve is that of the whole composition over its number of rounds.
        many = Composed(parts=((release, self._rounds),))
        try:
            return np.asarray(rdp.curve(many, self._orders) / self._rounds)
        except UnsupportedMechanism:
            if self._losses is None:
                raise
            return np.full_like(self._orders, np.inf)  # replace-one under Poisson: the other account remains


@dataclass(frozen=True, kw_only=True, eq=False)
class _AccountedRelease:
    """One release: its privacy loss distributions, its dominating Gaussian, their closeness, and the part of delta it
    takes.
    """

    laws: LossDistributions
    near: SingleRelease
    closeness: float
    lost: float
    pairwise: bool


class _Losses:
    """Composed privacy loss distribution on the grid of the planned rounds, with the adaptive account."""

    def __init__(
        self, typical: SingleRelease, rounds: int, *, delta: float, lost: float, accountants: Sequence[str]
    ) -> None:
        self._rounds, self._delta, self._lost, self._accountants = rounds, delta, lost, accountants
        near = _release_near_gaussian(typical, rounds, lost)
        assert near is not None  # the caller has asked
        (planned, _), *_ = parts_of(near.mechanism)
        self._lay_out(Composed(parts=((planned, rounds),)), pairwise=near.pairwise)

    def _lay_out(self, mechanism: Composed, *, pairwise: bool) -> None:
        """Lay out an empty account on the grid of `mechanism`."""
        planned, _ = mechanism.parts[0]
        self._interval = loss_grid.interval(mechanism)
        adapts = "adaptive" in self._accountants and not pairwise
        self._adding = adaptive.Adding(planned, rounds=self._rounds, delta=self._delta) if adapts else None
        self._known: dict[SingleRelease, _AccountedRelease] = {}
        self._runs: list[tuple[SingleRelease, int]] = []
        self._tilt = pld.tilt(planned, self._rounds, self._interval, self._delta)
        self._total: _AccountedRelease | None = None
        self._held: LossDistributions | None = None
        self._count = 0

    def _make_room(self, mechanism: Composed, *, pairwise: bool) -> None:
        """Compose everything again on the grid of `mechanism` if its losses do not fit in memory on that of quieter
        rounds.

        Every grid gives an upper bound.
        """
        if loss_grid.least_interval(mechanism) <= _ROOM * self._interval:
            return
        runs = self._runs
        self._lay_out(mechanism, pairwise=pairwise)
        for release, count in runs:
            self.add(release, count)

    def add(self, release: SingleRelease, count: int) -> None:
        one = self._accounted(release)
        before = self._runs.pop()[1] if self._runs and self._runs[-1][0] == release else 0
        self._runs.append((release, before + count))
        if self._tilt:
            self._held = self._tilted_with(release, count)
        self._total = self._with_release(release, count)
        if one.pairwise:  # domination of pairs is not enough for three vectors (docs/theory.md, section 4)
            self._adding = None
        if self._adding is not None:
            self._adding.add(one.near, count)
        # The ends that a self-composition cuts may wrap around, too: 1e-15, twice the slack of five.
        self._count += count + (5 if count > 1 else 0)

    def epsilon(self, delta: float, also: SingleRelease | None, scheduled: Composed | None) -> float:
        last = None if also is None else self._accounted(also)
        if scheduled is not None:
            near = continuous(scheduled, lost=self._lost)
            if not pld.supports(near.mechanism):
                raise UnsupportedMechanism("a schedule's rounds have no privacy loss distribution.")
            self._make_room(Composed(parts=parts_of(near.mechanism)), pairwise=near.pairwise)
        total = self._total if also is None else self._with_release(also)
        held = self._held if also is None or not self._tilt else self._tilted_with(also)
        count = self._count + (also is not None)
        if scheduled is not None:
            total, held = self._with_schedules(total, held, scheduled)
            count += sum(rounds for _, rounds in scheduled.parts) + 5
        if total is None:
            return 0.0
        left = (delta - total.lost) * math.exp(-total.closeness)
        slack = 2 * pld.composition_slack(count)
        bounds = [total.laws.charged_epsilon(left, slack, held) if "pld" in self._accountants else math.inf]
        pairwise = (last is not None and last.pairwise) or (scheduled is not None and near.pairwise)
        if self._adding is not None and left > 0 and not pairwise:
            together = None if scheduled is None else near.mechanism
            bounds.append(self._adding.epsilon(left, None if last is None else last.near, scheduled=together))
        return min(bounds) + 2 * total.closeness

    def _with_schedules(
        self, total: "_AccountedRelease | None", held: LossDistributions | None, scheduled: Composed
    ) -> tuple["_AccountedRelease", LossDistributions | None]:
        """Return all other releases, plain and tilted, together with the rounds of schedules, in both forms."""
        near = continuous(scheduled, lost=self._lost)
        laws = pld.distribution(near.mechanism, self._interval)
        tilted = pld.distribution(near.mechanism, self._interval, tilt=self._tilt) if self._tilt else None
        if held is not None and tilted is not None:
            tilted = held.plus(tilted)
        (first, _), *_ = parts_of(near.mechanism)
        if total is None:
            one = _AccountedRelease(
                laws=laws, near=first, closeness=near.closeness, lost=near.lost, pairwise=near.pairwise
            )
            return one, tilted
        closeness, lost = total.closeness + near.closeness, total.lost + near.lost
        return replace(total, laws=total.laws.plus(laws), closeness=closeness, lost=lost), tilted

    def _with_release(self, release: SingleRelease, count: int = 1) -> _AccountedRelease:
        one = self._accounted(release)
        laws = one.laws.repeated(count) if count > 1 else one.laws
        before = self._total
        return replace(
            one,
            laws=laws if before is None else before.laws.plus(laws),
            closeness=count * one.closeness + (before.closeness if before else 0.0),
            lost=count * one.lost + (before.lost if before else 0.0),
        )

    def _tilted_with(self, release: SingleRelease, count: int = 1) -> LossDistributions:
        """Return the sum so far and these, tilted so that rounding is small against a small delta."""
        laws = self._accounted(release).laws.tilted(self._tilt)
        laws = laws.repeated(count) if count > 1 else laws
        return laws if self._held is None else self._held.plus(laws)

    def _accounted(self, release: SingleRelease) -> _AccountedRelease:
        """Return (PLDs, dominating Gaussian, closeness, part of delta) of one release."""
        if release not in self._known:
            near = _release_near_gaussian(release, self._rounds, self._lost)
            if near is None:
                raise UnsupportedMechanism(f"{type(release).__name__}: no privacy loss distribution is implemented.")
            (stands_for, _), *_ = parts_of(near.mechanism)
            self._make_room(Composed(parts=((stands_for, self._rounds),)), pairwise=near.pairwise)
            laws = pld.distribution(stands_for, self._interval)
            self._known[release] = _AccountedRelease(
                laws=laws, near=stands_for, closeness=near.closeness, lost=near.lost, pairwise=near.pairwise
            )
        return self._known[release]


def _release_near_gaussian(release: SingleRelease, rounds: int, lost: float) -> Continuous | None:
    """Return one of `rounds` releases with continuous noise and its closeness; None without such a form."""
    try:
        near = continuous(Composed(parts=((release, rounds),)), lost=lost)
    except UnsupportedMechanism:
        return None
    ((twin, _),) = parts_of(near.mechanism)
    if not pld.supports(twin):
        return None
    return replace(near, mechanism=twin, closeness=near.closeness / rounds, lost=near.lost / rounds)
