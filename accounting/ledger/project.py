"""Ledger of a project: one budget for several runs on the same clients, which may charge it concurrently."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from filelock import FileLock

from accounting import require
from accounting.compose.accountant import Guarantee
from accounting.compose.running import Running
from accounting.errors import AccountingError, BudgetSpent, LedgerError, UnsupportedMechanism
from accounting.ledger import backups, regular_file
from accounting.ledger.file import Header, Ledger, Purchase, Release
from accounting.ledger.hash_chain import chained_line
from accounting.ledger.regular_file import one_path
from accounting.ledger.terms import RESERVE, Plan, Terms, charged_as, plan_text
from accounting.ledger.unit_filter import RefusedRelease, UnitFilter
from accounting.mechanisms import Composed, SingleRelease, schedule_of
from accounting.rounding import downwards, upwards

PATIENCE = 60.0
"""Seconds to wait for another process that holds the lock."""

_PAUSE_SECONDS = 0.005
"""Seconds of pause after the release of the lock: a process that charges in a tight loop would block all others."""

_PLANNED = 1000

UNPAID = (
    "{} was charged, by a version up to 0.3, as a round of a schedule that was not paid for ({}), so the budget does "
    "not cover this project: its epsilon is that of its releases, if they were fixed before the first result was seen"
)

CONDITION = (
    "this project was created by version 0.2 and its releases are of several kinds: its epsilon holds if the list of "
    "all releases was fixed before the first result was seen"
)

UNMADE = (
    "releases that are bought or declared, but not yet made, are not counted as spent; the epsilon of a plan has them"
)


class ProjectLedger:
    """Project ledger at PATH. Every writer holds PATH.lock while it reads and writes.

    Claim: the composition of all charges is within the project's epsilon at its delta (`ledger.unit_filter`). This
    includes charges by several processes, and runs chosen by the results of other runs. A release is either charged, on
    disk, before it is made, or rejected. All runs must have the same clients and adjacency; a line names its run and
    the fingerprint of the project's population. The unit of privacy is the client.

    A project of version 0.2 with rounds of several kinds is charged by composing its releases. That epsilon holds only
    if the list of releases was fixed before the first result (`condition`).

    PATH.head stores the hash of the last line (`ledger.backups`). PATH.key stores the secret key for the fingerprints
    of the population (`ledger.regular_file`).
    """

    def __init__(self, ledger: Ledger, terms: Terms, pay: int | None = None) -> None:
        self.ledger, self.terms, self.pay = ledger, terms, pay
        self._lock = FileLock(f"{ledger.path}.lock")
        self._filter = UnitFilter(terms)
        self._by_composition, self._composed_lines = False, 0
        self._unpaid: str | None = None
        self._running: Running | None = None
        self._lines: dict[tuple[str, int], Release] = {}
        self._lines_applied = 0

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        clients: int,
        epsilon: float,
        delta: float,
        population: str | None = None,
        key: bytes | None = None,
        reserve: float = RESERVE,
        unit: Plan | None = None,
        declared: Plan = (),
    ) -> "ProjectLedger":
        """Create a project. Errors: LedgerError if the file exists; UnsupportedMechanism for several adjacencies.

        population: fingerprint, under `key`, of the clients of all runs; None: that of the first charged run.
        `reserve`, `unit`, `declared`: see `Terms`.
        """
        target = one_path(path)
        terms = Terms(epsilon=epsilon, delta=delta, reserve=reserve, unit=unit, declared=declared)
        if unit and declared:
            Composed(parts=(*unit, *declared))  # refuses plans of several adjacencies, of which only one could run
        header = Header(
            unit="client",
            clients=require.count(clients=clients),
            randomness="as each run says",
            about={"project": terms.to_dict(), "head_kept": True},
            population=population,
        )
        with _lock_held(FileLock(f"{target}.lock")):
            if not target.exists():  # a crash between the two writes leaves a head without a project, never the reverse
                backups.write_first_head(target, chained_line(header.to_dict(), "")[1])
                if key is not None:
                    regular_file.write_key(_key_of(target), key)
            return cls(Ledger.create(target, header), terms)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, pay: int | None = None) -> "ProjectLedger":
        """Open the project in this file. Reading it (`spent`) needs no lock. Errors: LedgerError if the file is not a
        project.

        pay: largest number of units for the purchase of a run that differs from the unit (`begin`).
        """
        target = one_path(path)
        stored_head = backups.read_head(target)
        if not target.exists():
            advice = "Create it with `dpfed ledger create`."
            if stored_head is not None:
                advice = f"{backups.head_path(target).name} names a line of it: restore it from a copy."
            raise LedgerError(f"{target}: the project ledger does not exist. {advice}")
        ledger = Ledger.so_far(target)
        terms = ledger.header.about.get("project")
        if not isinstance(terms, Mapping) or not {"epsilon", "delta"} <= terms.keys():
            raise LedgerError(
                f"{target}: this is the ledger of a single run, not of a project. Create a project with `dpfed ledger "
                "create`."
            )
        try:
            project = cls(ledger, Terms.of(terms), None if pay is None else require.count(pay=pay))
        except AccountingError as error:
            raise LedgerError(f"{target}: the terms of the project are invalid. {error}") from None
        project._check_head(stored_head)
        return project

    @property
    def population(self) -> str | None:
        """Fingerprint of the clients, from the header or the first charged run; None if neither has one."""
        first = next(iter(self.ledger.entries), None)
        if self.ledger.header.population is None and isinstance(first, Release | Purchase):
            return _population_of(first)
        return self.ledger.header.population

    def key(self) -> bytes:
        """Return the secret key for fingerprints of the population; the first call creates it. Errors: LedgerError."""
        path = _key_of(self.ledger.path)
        with _lock_held(self._lock):
            self._read_new_lines()
            key = regular_file.read_key(path)
            if key is None and self.population is not None:
                raise LedgerError(
                    f"{path}: the key is missing, so the clients of a run cannot be compared with this project's. "
                    "Restore it from a copy."
                )
            if key is None:
                key = regular_file.new_key()
                regular_file.write_key(path, key)
            return key

    def refresh(self) -> None:
        """Read the charges that other processes have written, without a lock. Errors: LedgerError."""
        stored_head = backups.read_head(self.ledger.path)
        self.ledger.refresh()
        self._check_head(stored_head)

    def require_population(self, population: str | None) -> None:
        """Raise LedgerError unless `population` is the fingerprint of this project's clients."""
        known_population = self.population
        if population == known_population or (known_population is None and not self.ledger.entries):
            return
        if known_population is None:
            raise LedgerError(
                f"{self.ledger.path}: was charged by runs of version 0.1, which have no fingerprint of their clients, "
                "so a joint epsilon with this run may be meaningless. Create a new project."
            )
        if population is None:
            raise LedgerError(
                f"{self.ledger.path}: is for the clients of fingerprint {known_population[:12]}..., and this run has "
                "no fingerprint of its clients. Charge the run to a separate project."
            )
        raise LedgerError(
            f"{self.ledger.path}: is for the clients of fingerprint {known_population[:12]}..., this run's are "
            f"{population[:12]}...: other data, or another partition (data.partition_seed, data.partition and its "
            "keys, federation.clients, samples set aside). A joint epsilon would be meaningless. Use the same "
            "clients, or a separate project."
        )

    def refusal(self, release: SingleRelease, *, run: str, number: int) -> str | None:
        """Return the reason for which round `number` of a run must not make this release now; None if it may."""
        with _lock_held(self._lock):
            self._catch_up(release)
            return self._refusal_reason(release, run, number)

    def begin(
        self,
        rounds: Sequence[SingleRelease],
        *,
        run: str,
        first: int = 0,
        numbers: Sequence[int] | None = None,
        population: str | None = None,
    ) -> str:
        """Buy the rounds of a run from the budget before its first round, if necessary; return a text about the
        payment.

        rounds: the releases of the run from round `first` on, or of the rounds `numbers`, each at its largest charge.
        Rounds that are neither outstanding nor units are bought together, for at most `pay` units; those of a schedule
        are bought by their numbers. A run that has begun before buys nothing; it ends when a round is not covered.
        Errors: BudgetSpent with the price if `pay` is too low or missing.
        """
        if not rounds:
            return ""
        with _lock_held(self._lock):
            self._catch_up(rounds[0])
            self.require_population(population)
            if self._unpaid is not None:
                raise BudgetSpent(f"{self.ledger.path}: run {run}: {self._unpaid}.")
            if self._by_composition:
                return CONDITION
            numbered = zip(rounds, range(first, first + len(rounds)) if numbers is None else numbers, strict=True)
            try:
                purchase = self._filter.required_purchase(tuple(numbered), run=run, pay=self.pay)
            except RefusedRelease as why:
                raise BudgetSpent(f"{self.ledger.path}: run {run}: {why}") from None
            if purchase is None:
                return ""
            plan, bought, units = purchase
            detail = _detail_of(run, population)
            self._record_line(Purchase(round=first, units=units, plan=plan, rounds=bought, detail=detail))
            return (
                f"{self.ledger.path}: {units} units paid for {plan_text(plan)}, {self._filter.remaining_units} units "
                "are left."
            )

    def charge(
        self,
        release: Release,
        *,
        run: str,
        population: str | None = None,
        repeatable: bool = False,
        worst: SingleRelease | None = None,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """Append the release to the ledger, or raise BudgetSpent and leave the ledger unchanged.

        run: name of the run in the line. population: fingerprint of its clients. repeatable: True if an equal line of
        this run and round already covers the release: a simulated round that was interrupted and is repeated with the
        same noise is one release.
        worst: the release with the largest charge, if the charge depends on the noise that arrives; it is charged for
        any outcome.
        first: called under the lock after the budget check, before the line is written; it writes the line of the run's
        ledger, or raises an error.
        Errors: LedgerError for clients other than the project's."""
        charge_field = {} if worst in (None, release.mechanism) else {"charged_as": worst.to_dict()}
        line = replace(release, detail={**release.detail, **_detail_of(run, population), **charge_field})
        with _lock_held(self._lock):
            self._catch_up(release.mechanism)
            self.require_population(population)
            if repeatable and self._lines.get((run, release.round)) == line:
                return
            if why := self._refusal_reason(charged_as(line), run, release.round):
                raise BudgetSpent(f"{self.ledger.path}: round {release.round} of run {run}: {why} It was not released.")
            first()
            self._record_line(line)

    def spent(self, *, with_lower_bound: bool = True) -> Guarantee:
        """Return the guarantee of all charges in the file, which holds if the releases were fixed in advance.

        If releases were chosen by looking at results, only the budget may be stated.
        """
        self.ledger.refresh()
        return self.ledger.if_fixed_in_advance(self.terms.delta, with_lower_bound=with_lower_bound)

    def committed(self) -> Composed | None:
        """Return the composition of all releases in the file, and of bought or declared ones that are not yet made.

        A bought schedule counts up to its last bought round. Returns None if there is no release.
        Direction of error: upper bound.
        """
        self.refresh()
        self._apply_new_lines()
        made = self.ledger.mechanism()
        counts = Counter(dict(made.parts) if made is not None else {})
        for release, rounds in self._filter.bought_schedules.items():
            counts[release] = max(counts[release], sum(rounds[-1]))
        counts += self._filter.outstanding
        if not counts or (made is not None and counts == dict(made.parts)):
            return made
        return Composed(parts=tuple(counts.items()), order=None)

    @property
    def condition(self) -> str | None:
        """Condition under which the project's epsilon holds; None if it holds for any choice of releases by looking at
        results.
        """
        self.ledger.refresh()
        self._apply_new_lines()
        return self._unpaid or (CONDITION if self._by_composition else None)

    @property
    def units(self) -> tuple[int, int] | None:
        """Pair (units of the budget, remaining units); None if the project has no unit yet, or is charged by
        composition.
        """
        if self.condition is not None or self._filter.unit is None:
            return None
        try:
            return self._filter.currency.units, self._filter.remaining_units
        except RefusedRelease:
            return 0, 0

    def price(self, plan: Plan) -> int:
        """Return the price in units of buying this run as a whole. Errors: BudgetSpent if the project has too few
        units.
        """
        if self.condition is not None:
            raise BudgetSpent(f"{self.ledger.path}: has no prices: {self.condition}.")
        try:
            return self._filter.price(plan)
        except RefusedRelease as why:
            raise BudgetSpent(f"{self.ledger.path}: {why}") from None

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of `dpfed ledger show`: terms, used and remaining units, and number of releases of
        each run.

        spent_epsilon, left_epsilon: from the composition of all lines; they hold if the releases were fixed in advance.
        """
        stated = self.spent(with_lower_bound=False)
        units, condition, unit = self.units, self.condition, self._filter.unit
        unmade = (UNMADE,) if self.committed() != self.ledger.mechanism() else ()
        return {
            "ledger": str(self.ledger.path),
            "clients": self.ledger.header.clients,
            "population": self.population,
            "epsilon": self.terms.epsilon,
            "delta": self.terms.delta,
            "unit": None if units is None or unit is None else plan_text(unit),
            "units": None if units is None else units[0],
            "units_left": None if units is None else units[1],
            "spent_epsilon": stated.epsilon,
            "left_epsilon": max(self.terms.epsilon - stated.epsilon, 0.0),
            "adjacency": stated.adjacency,
            "notes": [*([condition] if condition else []), *stated.notes, *unmade],
            "releases": len(self.ledger.releases),
            "runs": Counter(str(release.detail.get("run")) for release in self.ledger.releases),
        }

    def _catch_up(self, mechanism: SingleRelease) -> None:
        """Read all lines of the file, under the lock. Errors: UnsupportedMechanism for another adjacency."""
        self._read_new_lines()
        self._apply_new_lines()
        first = next(iter(self.ledger.entries), None)
        known = first.mechanism if isinstance(first, Release) else None
        if unit := self.terms.unit or (first.plan if isinstance(first, Purchase) else None):
            known = unit[0][0]
        if known is not None and known.adjacency is not mechanism.adjacency:
            raise UnsupportedMechanism(
                f"adjacency={str(mechanism.adjacency)!r} on {self.ledger.path}, which holds releases under "
                f"{str(known.adjacency)!r}: a project has one adjacency. Use this adjacency for the run."
            )

    def _refusal_reason(self, release: SingleRelease, run: str, number: int) -> str | None:
        if self._unpaid is not None:
            return f"{self._unpaid}."
        if not self._by_composition:
            return self._filter.refusal(release, run=run, number=number)
        if why := self.ledger.released_rounds.refusal(release, number):
            return why
        after = self._running_composition(release).epsilon(release, number=number)
        if after <= self.terms.epsilon:
            return None
        return (
            f"it would bring the project to epsilon {upwards(after)}; allowed is {downwards(self.terms.epsilon)} at "
            f"delta {upwards(self.terms.delta)}."
        )

    def _running_composition(self, typical: SingleRelease) -> Running:
        """Return the running composition of all lines."""
        if self._running is None:
            planned = max(_PLANNED, len(self.ledger.entries))
            self._running, self._composed_lines = Running(delta=self.terms.delta, typical=typical, rounds=planned), 0
        lines = [line for line in self.ledger.releases[self._composed_lines :] if isinstance(line, Release)]
        for mechanism, alike in groupby(lines, key=lambda line: line.mechanism):
            if schedule_of(mechanism) is None:
                self._running.add(mechanism, count=sum(1 for _ in alike))
            else:
                for line in alike:
                    self._running.add(mechanism, first=line.round)
        self._composed_lines += len(lines)
        return self._running

    def _record_line(self, line: Release | Purchase) -> None:
        self.ledger.record(line)
        self._apply_new_lines()
        backups.write_head(self.ledger.path, self.ledger.head)

    def _read_new_lines(self) -> None:
        """Read the charges of other processes, and remove an incomplete last line of theirs; under the lock."""
        stored_head = backups.read_head(self.ledger.path)
        self.ledger.catch_up()
        self._check_head(stored_head)

    def _check_head(self, stored_head: str | None) -> None:
        backups.check_head(self.ledger, stored_head, needed=bool(self.ledger.header.about.get("head_kept")))

    def _apply_new_lines(self) -> None:
        """Update the state with the new lines. Errors: LedgerError for a line that exceeds the budget, which this
        package did not write.
        """
        for line in self.ledger.entries[self._lines_applied :]:
            if not isinstance(line, Release | Purchase):
                raise LedgerError(
                    f"{self.ledger.path}: has a line that is not a release, so it is not the ledger of a project."
                )
            name = f"round {line.round} of run {line.detail.get('run')}"
            if _population_of(line) != self.population:
                raise LedgerError(
                    f"{self.ledger.path}: {name} was charged for clients other than those of earlier lines. There is "
                    "no joint epsilon for different clients; create a new project."
                )
            try:
                if not self._by_composition and self._unpaid is None:
                    self._filter.apply_line(line)
            except RefusedRelease as why:
                if self.terms.reserve is None and isinstance(line, Release):
                    self._by_composition = True
                elif isinstance(line, Release) and schedule_of(line.mechanism) is not None:
                    self._unpaid = UNPAID.format(name, str(why).rstrip("."))
                else:
                    raise LedgerError(f"{self.ledger.path}: {name} was charged without payment: {why}") from None
            if isinstance(line, Release):
                self._lines[str(line.detail.get("run")), line.round] = line
            self._lines_applied += 1


def _key_of(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.key")


def _detail_of(run: str, population: str | None) -> dict[str, str]:
    return {"run": run} | ({} if population is None else {"population": population})


def _population_of(line: Release | Purchase) -> str | None:
    found = line.detail.get("population")
    return None if found is None else str(found)


@contextmanager
def _lock_held(lock: FileLock) -> Iterator[None]:
    """Hold the lock inside the context, and pause after its release."""
    try:
        with backups.lock_held(lock, "charged", seconds=PATIENCE):
            yield
    finally:
        time.sleep(_PAUSE_SECONDS)
