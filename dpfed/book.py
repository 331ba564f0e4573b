"""The ledger of a run that may have been interrupted between charging a round and saving its result."""

from __future__ import annotations

from pathlib import Path

from accounting.ledger import Entry, Header, Ledger, LocalRelease, Release
from accounting.project import Project
from dpfed.errors import RunError


class Book:
    """With simulated randomness an interrupted round is repeated with the same noise: the same release, so its line
    stands. With secure randomness the repetition is a new release and is charged on top. A run of a project charges the
    project first: what it has not got left is not released.
    """

    def __init__(self, ledger: Ledger, project: Project | None = None) -> None:
        self.ledger, self.project = ledger, project
        self._repeatable = ledger.header.randomness == "simulated"
        self._written = {entry.round: entry for entry in ledger.entries}

    @classmethod
    def open(cls, path: Path, header: Header, *, rounds_done: int, project: Project | None = None) -> Book:
        """A new ledger, or the one that is there; RunError if it holds fewer rounds than were done."""
        if project is not None and project.ledger.header.clients != header.clients:
            raise RunError(
                f"{project.ledger.path}: is for {project.ledger.header.clients} clients, this run has "
                f"{header.clients}: runs of one project are on the same clients. Use another ledger."
            )
        ledger = Ledger.resume(path) if path.exists() else Ledger.create(path, header)
        book = cls(ledger, project)
        missing = [round for round in range(rounds_done) if round not in book._written]
        if missing:
            raise RunError(
                f"{path}: has no line for round {missing[0]}, the checkpoint {rounds_done} rounds. Rounds "
                "were released without a charge or lines were lost; nothing true can be said about this run."
            )
        return book

    def record(self, entry: Entry) -> None:
        """Write a round's line, unless this very line is there from before the interruption."""
        before = self._written.get(entry.round)
        if not self._repeatable or before is None:
            if self.project is not None and isinstance(entry, Release):
                self.project.charge(entry, run=self.run, repeatable=self._repeatable)
            self.ledger.record(entry)
        elif before != entry:
            raise RunError(
                f"{self.ledger.path}, round {entry.round}: the repeated round is not the one that was charged. The "
                "package or the machine has changed since; start a new run."
            )

    @property
    def run(self) -> str:
        """What names this run in a project's ledger."""
        return str(self.ledger.header.about.get("run", "unnamed"))

    def standing(self, rounds_done: int) -> list[Release | LocalRelease]:
        """Releases that count before the next round: an interrupted simulated round is charged once."""
        return [one for one in self.ledger.releases if not self._repeatable or one.round < rounds_done]
