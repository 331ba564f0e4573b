"""One budget over several runs on the same clients: a ledger that they all draw from, also at the same time."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from accounting import require
from accounting.accountant import Guarantee
from accounting.errors import BudgetSpent, InvalidParameter, LedgerError, UnsupportedMechanism
from accounting.ledger import Entry, Header, Ledger, Release
from accounting.mechanisms import SingleRelease
from accounting.rounding import downwards, upwards
from accounting.running import Running

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


class Project:
    """A project ledger at PATH, and PATH.lock, which every writer holds while it looks and writes.

    Claim: everything that was charged, by whichever process, is together within the project's epsilon at its delta: a
    release is charged, on disk, before it is made, or refused. The runs must be on the same clients under the same
    adjacency; a line names its run. The unit is the client.
    """

    def __init__(self, ledger: Ledger, terms: Terms) -> None:
        self.ledger, self.terms = ledger, terms
        self._lock = FileLock(f"{ledger.path}.lock")
        self._running: Running | None = None
        self._lines: dict[tuple[str, int], Release] = {}
        self._added = 0

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, clients: int, epsilon: float, delta: float) -> "Project":
        """A new project; LedgerError if the file is there."""
        terms = Terms(epsilon=require.positive(epsilon=epsilon), delta=require.open_probability(delta=delta))
        about = {"project": {"epsilon": terms.epsilon, "delta": terms.delta}}
        header = Header(
            unit="client", clients=require.count(clients=clients), randomness="as each run says", about=about
        )
        return cls(Ledger.create(path, header), terms)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Project":
        """The project in this file. LedgerError if it is none. To look at it (`spent`) needs no lock."""
        target = Path(path)
        if not target.exists():
            raise LedgerError(f"{target}: no project ledger is there. Make one with `dpfed ledger create`.")
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
        return cls(ledger, Terms(epsilon=epsilon, delta=delta))

    def with_also(self, mechanism: SingleRelease) -> float:
        """Epsilon of the project if this were charged too, as things stand; others may charge in between."""
        with _held(self._lock, self.ledger.path):
            return self._catch_up(mechanism).epsilon(mechanism)

    def charge(self, release: Release, *, run: str, repeatable: bool = False) -> None:
        """Put the release on the ledger, or raise BudgetSpent and leave everything as it is.

        run: names the run in the line. repeatable: a line of this run and round that says the same stands for it (a
        simulated round that was interrupted and is repeated with the same noise is one release).
        """
        line = replace(release, detail={**release.detail, "run": run})
        with _held(self._lock, self.ledger.path):
            running = self._catch_up(release.mechanism)
            if repeatable and self._lines.get((run, release.round)) == line:
                return
            after = running.epsilon(release.mechanism)
            if not after <= self.terms.epsilon:
                raise BudgetSpent(
                    f"{self.ledger.path}: round {release.round} of run {run} would bring the project to epsilon "
                    f"{upwards(after)}, at most {downwards(self.terms.epsilon)} at delta {upwards(self.terms.delta)} "
                    "may be spent. It was not released."
                )
            self.ledger.record(line)
            self._add(running, [line])

    def spent(self, *, with_lower_bound: bool = True) -> Guarantee:
        """What all runs together have spent, from the file alone."""
        self.ledger.look()
        return self.ledger.guarantee(self.terms.delta, with_lower_bound=with_lower_bound)

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
        self.ledger.catch_up()
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

    def _add(self, running: Running, entries: Sequence[Entry]) -> None:
        lines = [entry for entry in entries if isinstance(entry, Release)]
        if len(lines) < len(entries):
            raise LedgerError(f"{self.ledger.path}: holds a line that is no release. It is not a project's.")
        for mechanism, alike in groupby(lines, key=lambda line: line.mechanism):
            running.add(mechanism, count=sum(1 for _ in alike))
        self._lines |= {(str(line.detail.get("run")), line.round): line for line in lines}
        self._added += len(lines)


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
