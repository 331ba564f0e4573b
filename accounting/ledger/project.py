"""One budget over several runs on the same clients: a ledger that all of them charge, also concurrently."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from filelock import FileLock, Timeout

from accounting import require
from accounting.compose.accountant import Guarantee
from accounting.compose.running import Running
from accounting.errors import AccountingError, BudgetSpent, LedgerError, UnsupportedMechanism
from accounting.ledger import kept_head, population_key
from accounting.ledger.file import Header, Ledger, Purchase, Release
from accounting.ledger.hash_chain import sealed
from accounting.ledger.terms import RESERVE, Plan, Terms, charged_as, words
from accounting.ledger.unit_filter import Refused, UnitFilter
from accounting.mechanisms import SingleRelease
from accounting.rounding import downwards, upwards

PATIENCE = 60.0
"""Seconds to wait for another process that is writing."""

# A waiting process retries at the first interval; a process that released the lock pauses for the second. Without the
# pause, a process that charges in a tight loop keeps all others out.
_LOOK, _TURN = 0.002, 0.005

_PLANNED = 1000

CONDITION = (
    "this project was begun by version 0.2 and its releases are not all of one kind: its epsilon holds if the list of "
    "all releases was fixed before the first result was seen"
)


class ProjectLedger:
    """Project ledger at PATH, with PATH.lock, which every writer holds while it reads and writes.

    Claim: all charges, by any process and for runs chosen by the results of others, are together within the project's
    epsilon at its delta (`ledger.unit_filter`): a release is charged, on disk, before it is made, or rejected. The runs
    must be on the same clients under the same adjacency; a line names its run and the fingerprint of its population, of
    which a project has one. The unit of privacy is the client.

    A project of version 0.2 with rounds of several kinds keeps the rule of 0.2, natural composition, which is right
    only if its list of releases was fixed before the first result (`condition`).

    PATH.head keeps the last hash that was written (`ledger.kept_head`), PATH.key the secret key under which the runs
    fingerprint their population (`ledger.population_key`).
    """

    def __init__(self, ledger: Ledger, terms: Terms, pay: int | None = None) -> None:
        self.ledger, self.terms, self.pay = ledger, terms, pay
        self._lock = FileLock(f"{ledger.path}.lock")
        self._filter = UnitFilter(terms)
        self._natural, self._run = False, 0
        self._running: Running | None = None
        self._lines: dict[tuple[str, int], Release] = {}
        self._added = 0

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
        """Return a new project. Errors: LedgerError if the file exists.

        population: the fingerprint, under `key`, of the clients that all runs must have; without one the first charged
        run defines it. `reserve`, `unit`, `declared`: see `Terms`.
        """
        target = Path(path)
        terms = Terms(epsilon=epsilon, delta=delta, reserve=reserve, unit=unit, declared=declared)
        header = Header(
            unit="client",
            clients=require.count(clients=clients),
            randomness="as each run says",
            about={"project": terms.to_dict(), "head_kept": True},
            population=population,
        )
        with _held(FileLock(f"{target}.lock"), target):
            if not target.exists():  # a crash in between leaves no project, and no project without its head
                kept_head.write(target, sealed(header.to_dict(), "")[1])
                if key is not None:
                    population_key.write(_key_of(target), key)
            return cls(Ledger.create(target, header), terms)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, pay: int | None = None) -> "ProjectLedger":
        """Return the project in this file. Reading it (`spent`) needs no lock. Errors: LedgerError if it is no project.

        pay: the most units for which a run of another kind may be bought (`begin`).
        """
        target = Path(path)
        if not target.exists():
            raise LedgerError(f"{target}: no project ledger is there. Make one with `dpfed ledger create`.")
        kept = kept_head.read(target)
        ledger = Ledger.so_far(target)
        terms = ledger.header.about.get("project")
        if not isinstance(terms, Mapping) or not {"epsilon", "delta"} <= terms.keys():
            raise LedgerError(
                f"{target}: the ledger of a single run, not of a project. Make one with `dpfed ledger create`."
            )
        try:
            project = cls(ledger, Terms.of(terms), None if pay is None else require.count(pay=pay))
        except AccountingError as error:
            raise LedgerError(f"{target}: a project with impossible terms. {error}") from None
        project._check_head(kept)
        return project

    @property
    def population(self) -> str | None:
        """Fingerprint of the clients: of the header, or of the first charged run; None if there is neither."""
        first = next(iter(self.ledger.entries), None)
        if self.ledger.header.population is None and isinstance(first, Release | Purchase):
            return _population_of(first)
        return self.ledger.header.population

    def key(self) -> bytes:
        """Return the key under which runs fingerprint their population; a new one for the first of them. Errors:
        LedgerError.
        """
        path = _key_of(self.ledger.path)
        with _held(self._lock, self.ledger.path):
            self._look()
            key = population_key.read(path)
            if key is None and self.population is not None:
                raise LedgerError(
                    f"{path}: is missing; without it the clients of a run cannot be compared with this project's. "
                    "Restore it from a copy."
                )
            if key is None:
                key = population_key.fresh()
                population_key.write(path, key)
            return key

    def look(self) -> None:
        """Take over the charges of other processes. Errors: LedgerError."""
        kept = kept_head.read(self.ledger.path)
        self.ledger.look()
        self._check_head(kept)

    def require_population(self, population: str | None) -> None:
        """Raise LedgerError unless a run on these clients may be charged."""
        known = self.population
        if population == known or (known is None and not self.ledger.entries):
            return
        if known is None:
            raise LedgerError(
                f"{self.ledger.path}: was charged by runs of version 0.1, which do not say who their clients are, so "
                "that one epsilon for them and this run may be about no client. Make a new project."
            )
        if population is None:
            raise LedgerError(
                f"{self.ledger.path}: is for the clients of fingerprint {known[:12]}..., and this run does not say who "
                "its clients are. Charge it to a project of its own."
            )
        raise LedgerError(
            f"{self.ledger.path}: is for the clients of fingerprint {known[:12]}..., this run's are {population[:12]}"
            "...: other data, or divided otherwise (data.partition_seed, data.partition and its keys, "
            "federation.clients, samples set aside). One epsilon for both would be about nobody. Use the same clients, "
            "or a project of its own."
        )

    def refusal(self, release: SingleRelease, *, run: str, number: int) -> str | None:
        """Return the reason why round `number` of a run may not release this now; None if it may."""
        with _held(self._lock, self.ledger.path):
            self._catch_up(release)
            return self._refusal(release, run, number)

    def begin(
        self,
        rounds: Sequence[SingleRelease],
        *,
        run: str,
        first: int = 0,
        population: str | None = None,
    ) -> str:
        """Ensure that the project pays for a run before its first round, and return the payment as text.

        rounds: the releases of the run from round `first` on, each at its worst. Rounds that are neither outstanding
        nor units are bought, all of them and at once, for at most `pay` units of this object. A run that has begun
        before ends when it is not paid. Errors: BudgetSpent with the price if `pay` is too low or missing.
        """
        if not rounds:
            return ""
        with _held(self._lock, self.ledger.path):
            self._catch_up(rounds[0])
            self.require_population(population)
            if self._natural:
                return CONDITION
            try:
                bought = self._filter.to_buy(rounds, run=run, pay=self.pay)
            except Refused as why:
                raise BudgetSpent(f"{self.ledger.path}: run {run}: {why}") from None
            if bought is None:
                return ""
            plan, units = bought
            who = {} if population is None else {"population": population}
            self._write(Purchase(round=first, units=units, plan=plan, detail={"run": run, **who}))
            return f"{self.ledger.path}: {units} units paid for {words(plan)}, {self._filter.left} are left."

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
        """Append the release to the ledger, or raise BudgetSpent and leave everything unchanged.

        run: name of the run in the line. population: the fingerprint of its clients. repeatable: True if an equal line
        of this run and round stands for it (a simulated round that was interrupted and is repeated with the same noise
        is one release).
        worst: the worst possible release of the round, if the arrived noise decides; it is charged for any outcome.
        first: called under the lock once the budget pays, before the line is written; it writes the line of the run's
        ledger, or raises. Errors: LedgerError for other clients than the project's.
        """
        who = {} if population is None else {"population": population}
        costs = {} if worst in (None, release.mechanism) else {"charged_as": worst.to_dict()}
        line = replace(release, detail={**release.detail, "run": run, **who, **costs})
        with _held(self._lock, self.ledger.path):
            self._catch_up(release.mechanism)
            self.require_population(population)
            if repeatable and self._lines.get((run, release.round)) == line:
                return
            if why := self._refusal(charged_as(line), run, release.round):
                raise BudgetSpent(f"{self.ledger.path}: round {release.round} of run {run}: {why} It was not released.")
            first()
            self._write(line)

    def spent(self, *, with_lower_bound: bool = True) -> Guarantee:
        """Return epsilon of all charges, from the file alone, if they were fixed in advance.

        If releases were chosen by looking at results, the budget is what may be stated.
        """
        self.ledger.look()
        return self.ledger.if_fixed_in_advance(self.terms.delta, with_lower_bound=with_lower_bound)

    @property
    def condition(self) -> str | None:
        """Condition of the project's number; None if it holds for any choice by looking at results."""
        self.ledger.look()
        self._replay()
        return CONDITION if self._natural else None

    @property
    def units(self) -> tuple[int, int] | None:
        """Units of the budget and the remaining ones; None before there is a unit, and under natural composition."""
        if self.condition is not None or self._filter.unit is None:
            return None
        try:
            return self._filter.currency.units, self._filter.left
        except Refused:
            return 0, 0

    def price(self, plan: Plan) -> int:
        """Return the units of a run that is bought whole now. Errors: BudgetSpent if the project has too few."""
        if self.condition is not None:
            raise BudgetSpent(f"{self.ledger.path}: has no prices: {self.condition}.")
        try:
            return self._filter.price(plan)
        except Refused as why:
            raise BudgetSpent(f"{self.ledger.path}: {why}") from None

    def to_dict(self) -> dict[str, object]:
        """Return the JSON of `dpfed ledger show`: terms, units used and left, and the releases of each run.

        spent_epsilon, left_epsilon: of the composition of all lines, right if the releases were fixed in advance.
        """
        stated = self.spent(with_lower_bound=False)
        runs: dict[str, int] = {}
        for release in self.ledger.releases:
            name = str(release.detail.get("run"))
            runs[name] = runs.get(name, 0) + 1
        units, condition, unit = self.units, self.condition, self._filter.unit
        return {
            "ledger": str(self.ledger.path),
            "clients": self.ledger.header.clients,
            "population": self.population,
            "epsilon": self.terms.epsilon,
            "delta": self.terms.delta,
            "unit": None if units is None or unit is None else words(unit),
            "units": None if units is None else units[0],
            "units_left": None if units is None else units[1],
            "spent_epsilon": stated.epsilon,
            "left_epsilon": max(self.terms.epsilon - stated.epsilon, 0.0),
            "adjacency": stated.adjacency,
            "notes": [*([condition] if condition else []), *stated.notes],
            "releases": len(self.ledger.releases),
            "runs": runs,
        }

    def _catch_up(self, mechanism: SingleRelease) -> None:
        """Take over everything in the file, under the lock. Errors: UnsupportedMechanism for another adjacency."""
        self._look()
        self._replay()
        first = next(iter(self.ledger.entries), None)
        known = self.terms.unit or (first.plan if isinstance(first, Purchase) else None)
        if known is None and isinstance(first, Release):
            known = ((first.mechanism, 1),)
        if known is not None and known[0][0].adjacency is not mechanism.adjacency:
            raise UnsupportedMechanism(
                f"adjacency={str(mechanism.adjacency)!r} on {self.ledger.path}, which holds releases under "
                f"{str(known[0][0].adjacency)!r}: a project has one adjacency. State this run under the same."
            )

    def _refusal(self, release: SingleRelease, run: str, number: int) -> str | None:
        if not self._natural:
            return self._filter.refusal(release, run=run, number=number)
        after = self._composed(release).epsilon(release)
        if after <= self.terms.epsilon:
            return None
        return (
            f"it would bring the project to epsilon {upwards(after)}, at most {downwards(self.terms.epsilon)} at delta "
            f"{upwards(self.terms.delta)} may be spent."
        )

    def _composed(self, typical: SingleRelease) -> Running:
        """Return the natural composition of all lines."""
        if self._running is None:
            planned = max(_PLANNED, len(self.ledger.entries))
            self._running, self._run = Running(delta=self.terms.delta, typical=typical, rounds=planned), 0
        lines = [line.mechanism for line in self.ledger.releases[self._run :] if isinstance(line, Release)]
        for mechanism, alike in groupby(lines):
            self._running.add(mechanism, count=sum(1 for _ in alike))
        self._run += len(lines)
        return self._running

    def _write(self, line: Release | Purchase) -> None:
        self.ledger.record(line)
        self._replay()
        kept_head.write(self.ledger.path, self.ledger.head)

    def _look(self) -> None:
        """Take over the charges of others, and cut off an unfinished line of one of them; under the lock."""
        kept = kept_head.read(self.ledger.path)
        self.ledger.catch_up()
        self._check_head(kept)

    def _check_head(self, kept: str | None) -> None:
        kept_head.check(self.ledger, kept, needed=bool(self.ledger.header.about.get("head_kept")))

    def _replay(self) -> None:
        """Update the state by the lines. Errors: LedgerError for a line beyond the budget, which this package did not
        write.
        """
        for line in self.ledger.entries[self._added :]:
            if not isinstance(line, Release | Purchase):
                raise LedgerError(f"{self.ledger.path}: holds a line that is no release. It is not a project's.")
            name = f"round {line.round} of run {line.detail.get('run')}"
            if _population_of(line) != self.population:
                raise LedgerError(
                    f"{self.ledger.path}: {name} was charged for other clients than the lines before. Different "
                    "clients have no epsilon together; make a new project."
                )
            try:
                if not self._natural:
                    self._filter.take(line)
            except Refused as why:
                if self.terms.reserve is not None or not isinstance(line, Release):
                    raise LedgerError(f"{self.ledger.path}: {name} is in it, which was not paid for: {why}") from None
                self._natural = True
            if isinstance(line, Release):
                self._lines[str(line.detail.get("run")), line.round] = line
            self._added += 1


def _key_of(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.key")


def _population_of(line: Release | Purchase) -> str | None:
    found = line.detail.get("population")
    return None if found is None else str(found)


@contextmanager
def _held(lock: FileLock, path: Path) -> Iterator[None]:
    """Yield with the lock held. Errors: LedgerError that names the possible holder."""
    try:
        lock.acquire(timeout=PATIENCE, poll_interval=_LOOK)
    except Timeout:
        raise LedgerError(
            f"{path}.lock: another process has held the ledger for {PATIENCE:g} s. Nothing was charged; end that "
            "process or try again."
        ) from None
    except OSError as error:
        raise LedgerError(f"{path}.lock: cannot be locked ({error}). Nothing was charged.") from error
    try:
        yield
    finally:
        lock.release()
        time.sleep(_TURN)
