"""One budget over several runs on the same clients: a ledger that they all draw from, also at the same time."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from accounting import require
from accounting.compose.accountant import Guarantee
from accounting.compose.running import Running
from accounting.errors import BudgetSpent, InvalidParameter, LedgerError, UnsupportedMechanism
from accounting.ledger import kept_head, population_key
from accounting.ledger.file import Entry, Header, Ledger, Release
from accounting.ledger.hash_chain import sealed
from accounting.mechanisms import SingleRelease
from accounting.rounding import downwards, upwards

PATIENCE = 60.0
"""Seconds to wait for another process that is writing."""

# Who waits looks every so often; who let go gives others this long to look. Without it, a process that charges in a
# tight loop keeps all others out.
_LOOK, _TURN = 0.002, 0.005

_PLANNED = 1000


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a project may spend: (epsilon, delta) for any one of its clients, over all its runs."""

    epsilon: float
    delta: float


class ProjectLedger:
    """A project ledger at PATH, and PATH.lock, which every writer holds while it looks and writes.

    Claim: everything that was charged, by whichever process, is together within the project's epsilon at its delta: a
    release is charged, on disk, before it is made, or refused. The runs must be on the same clients under the same
    adjacency; a line names its run and the fingerprint of its population, of which a project has one. The unit is the
    client.

    PATH.head keeps the last hash that was written (`ledger.kept_head`), PATH.key the secret key under which the
    runs fingerprint their population (`ledger.population_key`).
    """

    def __init__(self, ledger: Ledger, terms: Terms) -> None:
        self.ledger, self.terms = ledger, terms
        self._lock = FileLock(f"{ledger.path}.lock")
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
    ) -> "ProjectLedger":
        """A new project; LedgerError if the file is there. `population`: the fingerprint, under `key`, of the clients
        that all runs must have; without one the first run that is charged says who they are."""
        target = Path(path)
        terms = Terms(epsilon=require.positive(epsilon=epsilon), delta=require.open_probability(delta=delta))
        header = Header(
            unit="client",
            clients=require.count(clients=clients),
            randomness="as each run says",
            about={"project": {"epsilon": terms.epsilon, "delta": terms.delta}, "head_kept": True},
            population=population,
        )
        with _held(FileLock(f"{target}.lock"), target):
            if not target.exists():  # a crash in between leaves no project, and no project without its head
                kept_head.write(target, sealed(header.to_dict(), "")[1])
                if key is not None:
                    population_key.write(_key_of(target), key)
            return cls(Ledger.create(target, header), terms)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "ProjectLedger":
        """The project in this file. LedgerError if it is none. To look at it (`spent`) needs no lock."""
        target = Path(path)
        if not target.exists():
            raise LedgerError(f"{target}: no project ledger is there. Make one with `dpfed ledger create`.")
        kept = kept_head.read(target)
        ledger = Ledger.so_far(target)
        terms = ledger.header.about.get("project")
        if not isinstance(terms, Mapping) or terms.keys() != {"epsilon", "delta"}:
            raise LedgerError(
                f"{target}: the ledger of a single run, not of a project. Make one with `dpfed ledger create`."
            )
        try:
            epsilon, delta = require.positive(epsilon=terms["epsilon"]), require.open_probability(delta=terms["delta"])
        except InvalidParameter as error:
            raise LedgerError(f"{target}: a project with impossible terms. {error}") from None
        project = cls(ledger, Terms(epsilon=epsilon, delta=delta))
        project._check_head(kept)
        return project

    @property
    def population(self) -> str | None:
        """The fingerprint of the clients: of the header, or of the first run that was charged; None where nothing says
        who they are."""
        first = next(iter(self.ledger.entries), None)
        if self.ledger.header.population is None and isinstance(first, Release):
            return _population_of(first)
        return self.ledger.header.population

    def key(self) -> bytes:
        """The key under which runs fingerprint their population; a new one for the first of them. LedgerError."""
        path = _key_of(self.ledger.path)
        with _held(self._lock, self.ledger.path):
            self._look()
            key = population_key.read(path)
            if key is None and self.population is not None:
                raise LedgerError(
                    f"{path}: is gone; without it nobody can tell whether a run is on this project's clients. Restore "
                    "it from a copy."
                )
            if key is None:
                key = population_key.fresh()
                population_key.write(path, key)
            return key

    def look(self) -> None:
        """Take over what other processes have charged. LedgerError."""
        kept = kept_head.read(self.ledger.path)
        self.ledger.look()
        self._check_head(kept)

    def require_population(self, population: str | None) -> None:
        """LedgerError unless a run on these clients may be charged."""
        known = self.population
        if population == known or (known is None and not self.ledger.entries):
            return
        if known is None:
            raise LedgerError(
                f"{self.ledger.path}: was charged by runs of version 0.1, which do not say who their clients are, so "
                "that one epsilon for them and this run may be about nobody. Make a new project."
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

    def with_also(self, mechanism: SingleRelease) -> float:
        """Epsilon of the project if this were charged too, as things stand; others may charge in between."""
        with _held(self._lock, self.ledger.path):
            return self._catch_up(mechanism).epsilon(mechanism)

    def charge(
        self,
        release: Release,
        *,
        run: str,
        population: str | None = None,
        repeatable: bool = False,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """Put the release on the ledger, or raise BudgetSpent and leave everything as it is. LedgerError for other
        clients than the project's.

        run: names the run in the line. population: the fingerprint of its clients. repeatable: a line of this run and
        round that says the same stands for it (a simulated round that was interrupted and is repeated with the same
        noise is one release). first: called under the lock once the budget pays, before the line is written; it writes
        the line of the run's own ledger, or raises.
        """
        who = {} if population is None else {"population": population}
        line = replace(release, detail={**release.detail, "run": run, **who})
        with _held(self._lock, self.ledger.path):
            running = self._catch_up(release.mechanism)
            self.require_population(population)
            if repeatable and self._lines.get((run, release.round)) == line:
                return
            after = running.epsilon(release.mechanism)
            if not after <= self.terms.epsilon:
                raise BudgetSpent(
                    f"{self.ledger.path}: round {release.round} of run {run} would bring the project to epsilon "
                    f"{upwards(after)}, at most {downwards(self.terms.epsilon)} at delta {upwards(self.terms.delta)} "
                    "may be spent. It was not released."
                )
            first()
            self.ledger.record(line)
            self._add(running, [line])
            kept_head.write(self.ledger.path, self.ledger.head)

    def spent(self, *, with_lower_bound: bool = True) -> Guarantee:
        """Epsilon of everything that was charged, from the file alone, if it was fixed in advance. What may be stated
        whatever was chosen by looking at results is the budget."""
        self.ledger.look()
        return self.ledger.if_fixed_in_advance(self.terms.delta, with_lower_bound=with_lower_bound)

    def to_dict(self) -> dict[str, Any]:
        """What `dpfed ledger show --json` prints: terms, what is spent and left, and the releases of each run."""
        stated = self.spent(with_lower_bound=False)
        runs: dict[str, int] = {}
        for release in self.ledger.releases:
            name = str(release.detail.get("run"))
            runs[name] = runs.get(name, 0) + 1
        return {
            "ledger": str(self.ledger.path),
            "clients": self.ledger.header.clients,
            "population": self.population,
            "epsilon": self.terms.epsilon,
            "delta": self.terms.delta,
            "spent_epsilon": stated.epsilon,
            "left_epsilon": max(self.terms.epsilon - stated.epsilon, 0.0),
            "adjacency": stated.adjacency,
            "notes": list(stated.notes),
            "releases": len(self.ledger.releases),
            "runs": runs,
        }

    def _catch_up(self, mechanism: SingleRelease) -> Running:
        """The account of everything in the file, brought up to date."""
        self._look()
        if self._running is None:
            planned = max(_PLANNED, len(self.ledger.entries))
            self._running = Running(delta=self.terms.delta, typical=mechanism, rounds=planned)
        self._add(self._running, self.ledger.entries[self._added :])
        before = self.ledger.entries[:1]
        if before and isinstance(before[0], Release) and before[0].mechanism.adjacency is not mechanism.adjacency:
            raise UnsupportedMechanism(
                f"adjacency={str(mechanism.adjacency)!r} on {self.ledger.path}, which holds releases under "
                f"{str(before[0].mechanism.adjacency)!r}: a project has one adjacency. State this run under the same."
            )
        return self._running

    def _look(self) -> None:
        """Take over what others have charged, and cut off what one of them did not write to its end; under the lock."""
        kept = kept_head.read(self.ledger.path)
        self.ledger.catch_up()
        self._check_head(kept)

    def _check_head(self, kept: str | None) -> None:
        kept_head.check(self.ledger, kept, needed=bool(self.ledger.header.about.get("head_kept")))

    def _add(self, running: Running, entries: Sequence[Entry]) -> None:
        lines = [entry for entry in entries if isinstance(entry, Release)]
        if len(lines) < len(entries):
            raise LedgerError(f"{self.ledger.path}: holds a line that is no release. It is not a project's.")
        for line in lines:
            if _population_of(line) != self.population:
                raise LedgerError(
                    f"{self.ledger.path}: round {line.round} of run {line.detail.get('run')} was charged for other "
                    "clients than the lines before. Different clients have no epsilon together; make a new project."
                )
        for mechanism, alike in groupby(lines, key=lambda line: line.mechanism):
            running.add(mechanism, count=sum(1 for _ in alike))
        self._lines |= {(str(line.detail.get("run")), line.round): line for line in lines}
        self._added += len(lines)


def _key_of(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.key")


def _population_of(line: Release) -> str | None:
    found = line.detail.get("population")
    return None if found is None else str(found)


@contextmanager
def _held(lock: FileLock, path: Path) -> Iterator[None]:
    """The lock, or an error that says who might hold it."""
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
