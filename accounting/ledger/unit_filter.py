"""Rule of a project: its budget is a number of units, and other releases are bought whole before they begin.

State (K, x, B): K units left, x of the reserve left, B the releases that were bought and not yet made. It follows from
the file's lines alone. Claim (docs/theory.md, section 10): for any choices by looking at earlier results, everything
that these lines allow is within (epsilon, delta) together, if every run draws its cohorts, schedules and noise anew, a
client's memory is cleared between runs, and the runs have one population and one adjacency.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from accounting.compose.unit_currency import Currency, Price, currency, is_quieter
from accounting.errors import UnsupportedMechanism
from accounting.ledger.entries import Purchase, Release
from accounting.ledger.terms import RESERVE, Plan, Terms, charged_as, counted, unit_of, without_streams, words
from accounting.mechanisms import Composed, SingleRelease, schedule_of
from accounting.rounding import downwards, upwards


class Refused(Exception):
    """Release or purchase that the state does not allow, with the reason as its message."""


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Change of the state by one release."""

    units: int = 0
    reserve: float = 0.0
    bought: SingleRelease | None = None
    epoch: tuple[str, int] | None = None


class UnitFilter:
    """State of a project after the given lines, and the releases that it allows next.

    - A round of the unit's kind, or a quieter one (`is_quieter`, `Currency.covers`): one unit.
    - An epoch of balls-and-bins or of a public order, if that is the unit: one unit, at its first round.
    - A release that was bought or declared and not yet made: nothing more, for any run. Such releases are used before
    units;
      those of a schedule belong to its one stream.
    - A plan of anything else with a loss distribution: bought whole (`price`). No refunds.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms, self.unit = terms, terms.unit
        self.used = 0
        self.outstanding: Counter[SingleRelease] = counted(terms.declared)
        self._reserve = (RESERVE if terms.reserve is None else terms.reserve) * terms.delta
        self._covered: dict[SingleRelease, float | None] = {}
        self._streams: dict[str, tuple[str, bool]] = {}
        self._scheduled: set[tuple[str, int]] = set()
        self._epochs: set[tuple[str, int]] = set()
        self.runs: set[str] = set()

    @property
    def currency(self) -> Currency:
        """Prices in the unit. Errors: Refused before there is a unit."""
        if self.unit is None:
            raise Refused("the project has no unit yet: the first release that is charged is one.")
        share = RESERVE if self.terms.reserve is None else self.terms.reserve
        declared = Composed(parts=self.terms.declared) if self.terms.declared else None
        delta = self.terms.delta
        found = currency(
            Composed(parts=self.unit), declared, epsilon=self.terms.epsilon, delta=delta, reserve=share * delta
        )
        if not found.units:
            raise Refused(
                f"{words(self.unit)}: alone is more than epsilon {downwards(self.terms.epsilon)} at delta "
                f"{upwards(delta)}. No project can be made of such rounds; raise the noise or the budget."
            )
        return found

    @property
    def left(self) -> int:
        """Remaining units. Errors: Refused before there is a unit."""
        return self.currency.units - self.used

    def refusal(self, release: SingleRelease, *, run: str, number: int) -> str | None:
        """Return the reason why round `number` of a run may not release this now; None if it may."""
        try:
            with self._unit_from(unit_of(release), keep=False):
                self._step(release, run, number)
        except Refused as refused:
            return str(refused)
        return None

    @contextmanager
    def _unit_from(self, first: Plan | None, *, keep: bool) -> Iterator[None]:
        """Yield the project's unit, or this one if it has none; stored if the body succeeds."""
        before = self.unit
        self.unit = before or first
        try:
            yield
        except BaseException:
            keep = False
            raise
        finally:
            if before is None and not keep:
                self.unit = None
                self._covered.clear()

    def take(self, line: Release | Purchase) -> None:
        """Change the state by a line of the file. Errors: Refused, with the state unchanged."""
        run = str(line.detail.get("run"))
        if isinstance(line, Purchase):
            self._take_purchase(line)
        else:
            self._take_release(charged_as(line), run, line.round)
        self.runs.add(run)

    def _take_release(self, release: SingleRelease, run: str, number: int) -> None:
        with self._unit_from(unit_of(release), keep=True):
            step = self._step(release, run, number)
        self.used += step.units
        self._reserve -= step.reserve
        if step.bought is not None:
            self.outstanding[step.bought] -= 1
        if step.epoch is not None:
            self._epochs.add(step.epoch)
        if (schedule := schedule_of(release)) is not None:
            self._streams[schedule.stream] = run, step.bought is not None
            self._scheduled.add((run, number))

    def _step(self, release: SingleRelease, run: str, number: int) -> _Step:
        if schedule_of(release) is not None:
            step = self._step_of_schedule(release, run, number)
        elif self.outstanding[release] > 0:
            return _Step(bought=release)
        else:
            reserve = self._covers(release)
            if reserve is None or reserve > self._reserve:
                raise Refused(
                    f"its rounds ({words(((release, 1),))}) are not this project's ({words(self._unit())}), and they "
                    "were not paid for as a whole before the first of them, or all that were are used."
                )
            step = _Step(units=1, reserve=reserve)
        if step.units > self.left:
            raise Refused(f"all {self.currency.units} units of the project ({words(self._unit())}) are used.")
        return step

    def _step_of_schedule(self, release: SingleRelease, run: str, number: int) -> _Step:
        """Return the step of a schedule's round: rounds of one stream are covered once each, by a purchase or by
        epochs.
        """
        schedule = schedule_of(release)
        assert schedule is not None
        owner, by_purchase = self._streams.get(schedule.stream, (run, self.outstanding[release] > 0))
        if owner != run:
            raise Refused(
                f"its schedule is drawn from {schedule.stream!r} like that of run {owner}: every run draws its own "
                "anew. Give it another run.seed."
            )
        if (run, number) in self._scheduled:
            raise Refused("this round of a schedule is charged already: it has no second release.")
        if by_purchase:
            if self.outstanding[release] > 0:
                return _Step(bought=release)
            raise Refused("all rounds that were paid for are used. More rounds of a schedule are another plan.")
        if self._unit() != unit_of(release):
            raise Refused(
                f"a schedule ({words(((release, 1),))}) is no part of this project's units ({words(self._unit())}), "
                "and the run was not paid for as a whole before its first round."
            )
        epoch = run, number // self._unit()[0][1]
        return _Step(units=int(epoch not in self._epochs), epoch=epoch)

    def price(self, plan: Plan) -> int:
        """Return the units of this plan, bought whole now. Errors: Refused if the project has too few."""
        with self._unit_from(self.unit_for(plan), keep=False):
            self._check_streams(plan)
            if without_streams(plan) == self._unit():
                found = [1]
            else:
                each, whole = self._price_by_rounds(plan), self._whole(plan)
                found = [one.units for one in (each, whole) if one is not None]
            cheapest = min(found, default=None)
            if cheapest is not None and cheapest <= self.left:
                return cheapest
            raise Refused(
                f"the {self.left} units that are left ({words(self._unit())}) do not pay for {words(plan)}"
                + (
                    ": it shows too much at once. Raise the noise, or make fewer rounds."
                    if self.currency.has_prices
                    else ". Only rounds like the unit can be charged: nothing of delta is kept for other kinds, delta "
                    "is below 1e-8, or the unit has no privacy loss distribution."
                )
            )

    def _whole(self, plan: Plan) -> Price | None:
        try:
            return self.currency.price(Composed(parts=plan), left=self.left, reserve=self._reserve)
        except UnsupportedMechanism:
            return None

    def _price_by_rounds(self, plan: Plan) -> Price | None:
        """Return the price round by round; None if a round is no unit."""
        reserves = [(self._covers(release), count) for release, count in plan if schedule_of(release) is None]
        if len(reserves) < len(plan) or any(one is None for one, _ in reserves):
            return None
        reserve = sum((one or 0.0) * count for one, count in reserves)
        return Price(units=sum(count for _, count in plan), reserve=reserve) if reserve <= self._reserve else None

    def to_buy(self, rounds: Sequence[SingleRelease], *, run: str, pay: int | None) -> tuple[Plan, int] | None:
        """Return the purchase that a run must make before these rounds, and the price; None if it need not buy.

        It need not for rounds that are outstanding or units, nor for a run that has begun and ends when it is not paid.
        If rounds are quieter than the unit, `pay` requests the price of all together. Errors: Refused for a price above
        `pay`.
        """
        left, others = Counter(self.outstanding), list[SingleRelease]()
        for release in rounds:
            if left[release] > 0:
                left[release] -= 1
            else:
                others.append(release)
        if not others or (pay is None and run in self.runs):
            return None
        plan = Composed.of(others).parts
        with self._unit_from(unit_of(others[0]), keep=False):
            units = self.unit is not None and all(self._is_unit(release, run) for release, _ in plan)
            if units and (pay is None or all(unit_of(release) == self.unit for release, _ in plan)):
                return None
        price = self.price(plan)
        if without_streams(plan) != self.unit_for(plan) and (pay is None or price > pay):
            with self._unit_from(self.unit_for(plan), keep=False):
                raise Refused(
                    f"costs {price} of the {self.left} units that are left ({words(self._unit())}), since it is of "
                    f"another kind ({words(plan)}). Nothing was charged. Give --pay {price} to spend them; all of them "
                    "are spent when the run begins, also if it ends early."
                )
        return plan, price

    def _is_unit(self, release: SingleRelease, run: str) -> bool:
        schedule = schedule_of(release)
        if schedule is None:
            return self._covers(release) is not None
        return self._unit() == unit_of(release) and not self._streams.get(schedule.stream, (run, False))[1]

    def unit_for(self, plan: Plan) -> Plan:
        """Return the project's unit, or its unit with this plan as its first: a round, an epoch, or the whole plan."""
        return self.unit or unit_of(plan[0][0]) or without_streams(plan)

    def _take_purchase(self, line: Purchase) -> None:
        with self._unit_from(self.unit_for(line.plan), keep=True):
            self._check_streams(line.plan)
            reserve = self._paid_reserve(line)
        self.used += line.units
        self._reserve -= reserve
        self.outstanding += counted(line.plan)

    def _check_streams(self, plan: Plan) -> None:
        for release, _ in plan:
            schedule = schedule_of(release)
            if schedule is not None and (schedule.stream in self._streams or self.outstanding[release] > 0):
                raise Refused(
                    f"the schedule that is drawn from {schedule.stream!r} is charged already: a further run draws "
                    "anew, with another run.seed, and more rounds of one schedule are another plan."
                )

    def _paid_reserve(self, line: Purchase) -> float:
        """Return the part of the reserve that a purchase takes. Errors: Refused if its price is too low."""
        if line.units <= self.left:
            if without_streams(line.plan) == self._unit():
                return 0.0
            each = self._price_by_rounds(line.plan)
            if each is not None and each.units <= line.units:
                return each.reserve
            plan, reserve = Composed(parts=line.plan), self._reserve
            try:
                found = self.currency.suffices(plan, line.units, left=self.left, reserve=reserve)
            except UnsupportedMechanism:
                found = None
            if found is not None:
                return found.reserve
        raise Refused(f"{line.units} of {self.left} units do not pay for {words(line.plan)}.")

    def _covers(self, release: SingleRelease) -> float | None:
        """Return the part of the reserve for a release of one unit; None if it is no unit."""
        if release not in self._covered:
            ((unit, count), *more) = self._unit()
            one_round = not more and count == 1 and schedule_of(unit) is None
            if not one_round or release.adjacency is not unit.adjacency:
                found = None
            elif release == unit or (self.terms.reserve is not None and is_quieter(release, unit)):
                found = 0.0
            else:
                found = self._compared_release(release)
            self._covered[release] = found
        return self._covered[release]

    def _compared_release(self, release: SingleRelease) -> float | None:
        if self.terms.reserve is None:
            return None
        try:
            return self.currency.covers(release)
        except UnsupportedMechanism:
            return None

    def _unit(self) -> Plan:
        if self.unit is None:
            raise Refused(
                "the project has no unit yet, and a single round of this schedule is none: the run is charged as a "
                "whole when it begins."
            )
        return self.unit
