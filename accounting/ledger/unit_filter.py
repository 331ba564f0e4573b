"""Charging rule of a project: its budget is a number of units; runs that differ from the unit are bought before they
begin.

The state is (K, x, B): K remaining units, remaining reserve x, and B, the releases that were bought but not yet made.
It is determined by the lines of the file. Claim (docs/theory.md, section 10): the composition of everything that these
lines allow is within (epsilon, delta), for any choices by looking at earlier results. Conditions: every run draws its
cohorts, schedules and noise independently, clients keep no state between runs, and all runs have one population and one
adjacency.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from accounting.compose.unit_currency import Currency, Price, currency, is_quieter, with_stream
from accounting.errors import AccountingError, UnsupportedMechanism
from accounting.ledger.entries import Entry, Purchase, Release
from accounting.ledger.terms import (
    RESERVE,
    Plan,
    Rounds,
    Terms,
    bought_rounds,
    charged_as,
    is_in_rounds,
    plan_text,
    priced_plan,
    release_counts,
    rounds_text,
    runs_of_rounds,
    unit_of,
    without_streams,
)
from accounting.mechanisms import Composed, ReleasedRounds, SingleRelease, schedule_of
from accounting.rounding import downwards, upwards


class RefusedRelease(Exception):
    """Release or purchase that the state does not allow, with the reason as its message."""


@dataclass(frozen=True, kw_only=True)
class _StateChange:
    """Change of the project's state by one release."""

    units: int = 0
    reserve: float = 0.0
    outstanding: SingleRelease | None = None
    epoch: tuple[str, int] | None = None


class UnitFilter:
    """State of a project after its lines, and the releases that it allows next.

    - A round equal to the unit, or with more noise, a smaller sampling probability or a smaller profile
      (`is_quieter`, `Currency.covers`), is charged one unit.
    - An epoch of balls-and-bins or of a public order, if that is the unit, is charged one unit at its first round.
    - A release that was bought or declared, but not yet made, is charged nothing, for any run. Such releases are used
      before units. Rounds of a schedule are bought by their numbers; a purchase without numbers is of the first ones.
    - A round of a schedule has one release, a schedule belongs to one run, and a run has one schedule.
    - Any other plan with a loss distribution is bought as a whole (`price`), without refunds.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms, self.unit = terms, terms.unit
        self.used_units = 0
        self.outstanding: Counter[SingleRelease] = release_counts(terms.declared)
        self._reserve = (RESERVE if terms.reserve is None else terms.reserve) * terms.delta
        self._reserve_of_release: dict[SingleRelease, float | None] = {}
        self._bought = bought_rounds(terms.declared, None)
        self._released = ReleasedRounds()
        self._stream_owners: dict[str, str] = {}
        self._charged_epochs: set[tuple[str, int]] = set()
        self.runs: set[str] = set()

    @property
    def currency(self) -> Currency:
        """Prices in units of this project. Errors: RefusedRelease if the project has no unit yet."""
        if self.unit is None:
            raise RefusedRelease("the project has no unit yet: the first charged release defines it.")
        share = RESERVE if self.terms.reserve is None else self.terms.reserve
        declared = Composed(parts=self.terms.declared) if self.terms.declared else None
        delta = self.terms.delta
        found = currency(
            Composed(parts=self.unit), declared, epsilon=self.terms.epsilon, delta=delta, reserve=share * delta
        )
        if not found.units:
            raise RefusedRelease(
                f"{plan_text(self.unit)}: one unit exceeds epsilon {downwards(self.terms.epsilon)} at delta "
                f"{upwards(delta)}. The budget allows no such round; raise the noise or the budget."
            )
        return found

    @property
    def bought_schedules(self) -> dict[SingleRelease, Rounds]:
        """Bought or declared rounds of each schedule, made or not."""
        return dict(self._bought)

    @property
    def remaining_units(self) -> int:
        """Remaining units. Errors: RefusedRelease if the project has no unit yet."""
        return self.currency.units - self.used_units

    def refusal(self, release: SingleRelease, *, run: str, number: int) -> str | None:
        """Return the reason for which round `number` of a run must not make this release now; None if it may."""
        try:
            with self._unit_from(unit_of(release), keep=False):
                self._step_of_release(release, run, number)
        except RefusedRelease as refused:
            return str(refused)
        return None

    @contextmanager
    def _unit_from(self, first: Plan | None, *, keep: bool) -> Iterator[None]:
        """Use `first` as the unit inside the context if the project has no unit. With `keep` it stays the unit after
        the body succeeds.
        """
        before, kept = self.unit, False
        self.unit = before or first
        try:
            yield
            kept = keep
        finally:
            if before is None and not kept:
                self.unit = None
                self._reserve_of_release.clear()

    def apply_line(self, line: Release | Purchase) -> None:
        """Update the state with a line of the file. Errors: RefusedRelease, with the state unchanged."""
        run = str(line.detail.get("run"))
        if isinstance(line, Purchase):
            self._apply_purchase(line)
        else:
            self._apply_release(charged_as(line), run, line.round)
        self.runs.add(run)

    def _apply_release(self, release: SingleRelease, run: str, number: int) -> None:
        with self._unit_from(unit_of(release), keep=True):
            step = self._step_of_release(release, run, number)
        self.used_units += step.units
        self._reserve -= step.reserve
        if step.outstanding is not None:
            self.outstanding[step.outstanding] -= 1
        if step.epoch is not None:
            self._charged_epochs.add(step.epoch)
        if (schedule := schedule_of(release)) is not None:
            self._stream_owners[schedule.stream] = run
            self._released.add(release, number)

    def _step_of_release(self, release: SingleRelease, run: str, number: int) -> _StateChange:
        if schedule_of(release) is not None:
            step = self._step_of_schedule(release, run, number)
        elif self.outstanding[release] > 0:
            return _StateChange(outstanding=release)
        else:
            reserve = self._reserve_as_unit(release)
            if reserve is None or reserve > self._reserve:
                raise RefusedRelease(
                    f"its rounds ({plan_text(((release, 1),))}) differ from this project's unit "
                    f"({plan_text(self._required_unit())}), and they were not bought before the first round, or all "
                    "bought rounds are used."
                )
            step = _StateChange(units=1, reserve=reserve)
        if step.units > self.remaining_units:
            raise RefusedRelease(
                f"all {self.currency.units} units of the project ({plan_text(self._required_unit())}) are used."
            )
        return step

    def _step_of_schedule(self, release: SingleRelease, run: str, number: int) -> _StateChange:
        """Return the state change by one round of a schedule. Each round of a stream is covered once, by a purchase or
        by its epoch.
        """
        schedule = schedule_of(release)
        assert schedule is not None
        owner = self._stream_owners.get(schedule.stream, run)
        if owner != run:
            raise RefusedRelease(
                f"its schedule is drawn from {schedule.stream!r} like that of run {owner}, but every run must "
                "draw a new schedule. Use another run.seed."
            )
        other = next((name for name, of in self._stream_owners.items() if of == run and name != schedule.stream), None)
        if other is not None:
            raise RefusedRelease(
                f"its schedule is drawn from {schedule.stream!r}, earlier rounds of the run are of {other!r}: a run "
                "has one schedule. Charge the rounds of another schedule to another run."
            )
        if why := self._released.refusal(release, number) or self._other_release_of(schedule.stream, release):
            raise RefusedRelease(why)
        if release in self._bought:
            if is_in_rounds(number, self._bought[release]):
                return _StateChange()
            raise RefusedRelease(
                f"rounds {rounds_text(self._bought[release])} of its schedule were bought. A longer schedule needs a "
                "separate purchase."
            )
        if self._required_unit() != unit_of(release):
            raise RefusedRelease(
                f"a schedule ({plan_text(((release, 1),))}) is not part of this project's units "
                f"({plan_text(self._required_unit())}), and the run was not bought before its first round."
            )
        epoch = schedule.stream, number // self._required_unit()[0][1]
        return _StateChange(units=int(epoch not in self._charged_epochs), epoch=epoch)

    def _other_release_of(self, stream: str, release: SingleRelease) -> str | None:
        """Return an error text if another release of this stream was bought, else None."""
        if any(one != release and with_stream(one, stream) == one for one in self._bought):
            return f"rounds of {stream!r} with another release were bought, and a schedule has one release."
        return None

    def price(self, plan: Plan, rounds: Rounds | None = None) -> int:
        """Return the price in units of buying this plan as a whole. Errors: RefusedRelease if the project has too few
        units.

        rounds: the rounds of its schedule; None: the first ones
        """
        plan = _priced(plan, rounds)
        with self._unit_from(self.unit_for(plan), keep=False):
            self._check_streams(plan)
            if without_streams(plan) == self._required_unit():
                found = [1]
            else:
                by_rounds, whole = self._price_by_rounds(plan), self._price_as_whole(plan)
                found = [one.units for one in (by_rounds, whole) if one is not None]
            cheapest = min(found, default=None)
            if cheapest is not None and cheapest <= self.remaining_units:
                return cheapest
            raise RefusedRelease(
                f"the {self.remaining_units} remaining units ({plan_text(self._required_unit())}) do not suffice for "
                f"{plan_text(plan)}"
                + (
                    ": its privacy loss is too large. Raise the noise, or plan fewer rounds."
                    if self.currency.has_prices
                    else ". Only rounds with at least the unit's noise and at most its sampling probability can be "
                    "charged, because the reserve is 0, delta is below 1e-8, or the unit has no privacy loss "
                    "distribution."
                )
            )

    def _price_as_whole(self, plan: Plan) -> Price | None:
        try:
            return self.currency.price(
                Composed(parts=plan), remaining_units=self.remaining_units, reserve=self._reserve
            )
        except UnsupportedMechanism:
            return None

    def _price_by_rounds(self, plan: Plan) -> Price | None:
        """Return the price if every round is charged as a unit; None if a round cannot be charged as a unit."""
        reserves = [(self._reserve_as_unit(release), count) for release, count in plan if schedule_of(release) is None]
        if len(reserves) < len(plan) or any(one is None for one, _ in reserves):
            return None
        reserve = sum((one or 0.0) * count for one, count in reserves)
        return Price(units=sum(count for _, count in plan), reserve=reserve) if reserve <= self._reserve else None

    def required_purchase(
        self, rounds: Sequence[tuple[SingleRelease, int]], *, run: str, pay: int | None
    ) -> tuple[Plan, Rounds | None, int] | None:
        """Return the plan that a run must buy before these rounds, the rounds of its schedule, and its price; None if
        the run need not buy anything.

        rounds: pairs (release, round). Rounds that are outstanding or units need no purchase. A run that has begun buys
        nothing; it ends when a round is not covered. If rounds may be charged as units but differ from the unit (more
        noise, smaller sampling probability), `pay` requests the price of all rounds together.
        Errors: RefusedRelease for a price above `pay`.
        """
        remaining_releases, others, numbers = Counter(self.outstanding), list[SingleRelease](), list[int]()
        for release, number in rounds:
            if remaining_releases[release] > 0:
                remaining_releases[release] -= 1
            elif not is_in_rounds(number, self._bought.get(release, ())):
                others.append(release)
                numbers += [number] * (schedule_of(release) is not None)
        if not others or (pay is None and run in self.runs):
            return None
        plan, named = Composed.of(others).parts, runs_of_rounds(sorted(numbers)) or None
        with self._unit_from(unit_of(others[0]), keep=False):
            units = self.unit is not None and all(self._is_unit(release) for release, _ in plan)
            if units and (pay is None or all(unit_of(release) == self.unit for release, _ in plan)):
                return None
        price = self.price(plan, named)
        priced = _priced(plan, named)
        if without_streams(priced) != self.unit_for(priced) and (pay is None or price > pay):
            with self._unit_from(self.unit_for(priced), keep=False):
                raise RefusedRelease(
                    f"the price is {price} of the {self.remaining_units} remaining units "
                    f"({plan_text(self._required_unit())}), because the run differs from the unit ({plan_text(plan)}). "
                    f"Nothing was charged. Give --pay {price} to spend these units; they are spent when the run "
                    "begins, even if it ends early."
                )
        return plan, named, price

    def _is_unit(self, release: SingleRelease) -> bool:
        if schedule_of(release) is None:
            return self._reserve_as_unit(release) is not None
        return self._required_unit() == unit_of(release) and release not in self._bought

    def unit_for(self, plan: Plan) -> Plan:
        """Return the project's unit; if it has none, the unit that this first plan defines: a round, an epoch, or the
        whole plan.
        """
        return self.unit or unit_of(plan[0][0]) or without_streams(plan)

    def _apply_purchase(self, line: Purchase) -> None:
        plan = _priced(line.plan, line.rounds)
        with self._unit_from(self.unit_for(plan), keep=True):
            self._check_streams(plan)
            reserve = self._paid_reserve(plan, line.units)
        self.used_units += line.units
        self._reserve -= reserve
        self.outstanding += release_counts(line.plan)
        self._bought |= bought_rounds(line.plan, line.rounds)

    def _check_streams(self, plan: Plan) -> None:
        bought = {one.stream for release in self._bought if (one := schedule_of(release)) is not None}
        for release, _ in plan:
            schedule = schedule_of(release)
            if schedule is not None and schedule.stream in self._stream_owners.keys() | bought:
                raise RefusedRelease(
                    f"the schedule drawn from {schedule.stream!r} is already charged: a further run must draw a new "
                    "schedule, with another run.seed, and a longer schedule needs a separate purchase."
                )

    def _paid_reserve(self, plan: Plan, units: int) -> float:
        """Return the part of the reserve that a purchase uses. Errors: RefusedRelease if its price is too low."""
        if units <= self.remaining_units:
            if without_streams(plan) == self._required_unit():
                return 0.0
            by_rounds = self._price_by_rounds(plan)
            if by_rounds is not None and by_rounds.units <= units:
                return by_rounds.reserve
            composed, reserve = Composed(parts=plan), self._reserve
            with suppress(UnsupportedMechanism):
                found = self.currency.suffices(composed, units, remaining_units=self.remaining_units, reserve=reserve)
                if found is not None:
                    return found.reserve
        raise RefusedRelease(f"{units} of {self.remaining_units} units do not suffice for {plan_text(plan)}.")

    def _reserve_as_unit(self, release: SingleRelease) -> float | None:
        """Return the part of the reserve that a release charged as one unit uses; None if it cannot be charged as one
        unit.
        """
        if release not in self._reserve_of_release:
            ((unit, count), *more) = self._required_unit()
            one_round, found = not more and count == 1 and schedule_of(unit) is None, None
            if one_round and release.adjacency is unit.adjacency:
                if release == unit or (self.terms.reserve is not None and is_quieter(release, unit)):
                    found = 0.0
                elif self.terms.reserve is not None:
                    with suppress(UnsupportedMechanism):
                        found = self.currency.covers(release)
            self._reserve_of_release[release] = found
        return self._reserve_of_release[release]

    def _required_unit(self) -> Plan:
        if self.unit is None:
            raise RefusedRelease(
                "the project has no unit yet, and a single round of this schedule cannot be the unit: the run is "
                "charged as a whole when it begins."
            )
        return self.unit


def _priced(plan: Plan, rounds: Rounds | None) -> Plan:
    try:
        return Composed(parts=priced_plan(plan, rounds)).parts
    except AccountingError as error:
        raise RefusedRelease(str(error)) from None


def budget_covers(terms: Mapping[str, object], entries: Iterable[Entry]) -> bool:
    """Return True if the charging rule accepts every line of a project, so that its budget covers them."""
    try:
        state = UnitFilter(Terms.of(terms))
        for line in entries:
            if isinstance(line, Release | Purchase):
                state.apply_line(line)
    except (RefusedRelease, AccountingError):
        return False
    return True
