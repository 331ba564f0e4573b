"""The ledger of a run that may have been interrupted between charging a round and saving its result."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

from accounting.errors import BudgetSpent
from accounting.ledger import Aborted, Entry, Header, Ledger, LocalRelease, Release
from accounting.ledger.file import LONGEST_LINE
from accounting.ledger.project import ProjectLedger
from accounting.ledger.regular_file import open_input
from accounting.mechanisms import SingleRelease, schedule_of
from dpfed.errors import RunError
from dpfed.methods.privacy_target import PrivacyTarget
from dpfed.runs.binding import PARTS, Heads

TAKEN_BACK = "the project was not charged for the line of this nonce, so nothing was released"
"""Reason in a run's ledger for the mark of a charge that released nothing."""


class Book:
    """Charges of one run, in its own ledger and in its project's.

    With simulated randomness an interrupted round is repeated with the same noise: the same release, so its line is
    kept, in the project too, which is charged first. With secure randomness the repetition is a new release and is
    charged on top. In a project each charge of such fresh noise has a nonce. Under the project's lock the run's line is
    written, then the project's line with the same nonce, then the round is released. A project's line whose nonce the
    folder lacks shows an old copy of the folder. A run's line whose nonce the project lacks released nothing.
    """

    def __init__(self, ledger: Ledger, project: ProjectLedger | None = None) -> None:
        self.ledger, self.project = ledger, project
        self.worst: SingleRelease | None = None
        self._repeatable = ledger.header.randomness == "simulated"
        self._written = {entry.round: entry for entry in ledger.standing}
        self._of_project = Counter(line.round for line in lines_of(self.run, project))
        self._nonces = {one.nonce for one in self.ledger.shared_releases}
        self._compared = 0

    @classmethod
    def open(
        cls, path: Path, header: Header, *, rounds_done: int, heads: Heads, project: ProjectLedger | None = None
    ) -> Book:
        """Open a new ledger, or continue an existing one.

        RunError if it, or the project, holds less than was done or seen (`heads`), or if it is of another run or
        project. LedgerError if the project is on other clients.
        """
        if project is not None and project.ledger.header.clients != header.clients:
            raise RunError(
                f"{project.ledger.path}: is for {project.ledger.header.clients} clients, this run has "
                f"{header.clients}: runs of one project are on the same clients. Use another ledger."
            )
        if project is not None:
            project.look()
        if has_no_header(path):  # the process ended while it created the ledger, before the first round
            path.unlink()
        if path.exists():
            book = cls(Ledger.resume(path), project)
            book._check_header(header)
            book._check_project(heads.project, rounds_done)
        elif rounds_done:
            raise RunError(f"{path}: is gone, the checkpoint holds {rounds_done} rounds. Restore it from a copy.")
        else:
            if project is not None:
                project.require_population(header.population)
            book = cls(Ledger.create(path, header), project)
        missing = [round for round in range(rounds_done) if round not in book._written]
        if missing:
            raise RunError(
                f"{path}: has no line for round {missing[0]}, the checkpoint {rounds_done} rounds. Rounds "
                "were released without a charge or lines were lost; nothing true can be said about this run."
            )
        book._check_seen(heads.ledger)
        book._take_back()
        return book

    def _check_header(self, header: Header) -> None:
        """Raise RunError unless the ledger is this run's, and is charged to a project or not as before."""
        path, there = self.ledger.path, self.ledger.header
        for name in ("unit", "clients", "randomness"):
            if getattr(there, name) != getattr(header, name):
                raise RunError(
                    f"{path}: its {name} is {getattr(there, name)!r}, this run's {getattr(header, name)!r}: the ledger "
                    "of another run. Restore this run's from a copy."
                )
        if other := _differing(there, header):
            raise RunError(
                f"{path}: is the ledger of another run, or this one has changed since in {other}. Put back what it "
                "began with, or start a new run."
            )
        if ("run" in there.about) != (self.project is not None):
            was, do = ("draws", "give") if self.project is None else ("does not draw", "leave out")
            raise RunError(
                f"{path}: the run {was} from a project, and must go on like that: its rounds are charged there or "
                f"nowhere. To resume, {do} --ledger."
            )

    def _check_seen(self, head: str) -> None:
        """Raise RunError unless the ledger has the line that was its last line when the checkpoint was written."""
        if head and self.ledger.entries_after(head) is None:
            raise RunError(
                f"{self.ledger.path}: has no line of hash {head[:12]}..., its last one when the checkpoint was "
                "written. Lines were cut off, or it is the ledger of another run. Restore it from a copy."
            )

    def _check_project(self, seen: str, rounds_done: int) -> None:
        """Raise RunError unless the project and this folder have all charges of this run.

        A missing charge in the project means another project, or lost lines. A missing charge in the folder means an
        old copy.
        """
        if self.project is None:
            return
        project = self.project.ledger
        own, charged = self.ledger.shared_releases, lines_of(self.run, self.project)
        paid = {line.nonce for line in charged}
        before = Counter(
            one.round for one in own if one.nonce is None
        )  # a line without a nonce is simulated, or of version 0.2
        there = Counter(line.round for line in charged if line.nonce is None)
        lost = sorted((before - there).keys())
        lost += [one.round for one in own if one.nonce not in paid and one.round < rounds_done]
        if lost:
            raise RunError(
                f"{project.path}: has no charge of round {lost[0]} of run {self.run}, whose ledger says "
                "that it was released. Give the project's ledger that the run began with, with all its lines."
            )
        for head in (str(self.ledger.header.about.get("project_head", "")), seen):
            if head and project.entries_after(head) is None:
                raise RunError(
                    f"{project.path}: has no line of hash {head[:12]}..., which this run has seen in its project. "
                    "Lines were cut off, or it is another project. Give the ledger that the run began with."
                )
        self._refuse_old_copy()
        beyond = [round for round in sorted((there - before).keys()) if round > rounds_done]
        if beyond:
            raise self._old_copy(beyond[0])

    def _refuse_old_copy(self) -> None:
        """Raise RunError if the project was charged for fresh noise of this run by another copy of its folder."""
        assert self.project is not None
        entries = self.project.ledger.entries
        for line in entries[self._compared :]:
            if not isinstance(line, Release) or line.detail.get("run") != self.run:
                continue
            if line.nonce is not None and line.nonce not in self._nonces:
                raise self._old_copy(line.round)
        self._compared = len(entries)

    def _old_copy(self, number: int) -> RunError:
        assert self.project is not None
        return RunError(
            f"{self.ledger.path}: has no line for a charge of round {number} that {self.project.ledger.path} has of "
            f"run {self.run}: the folder is an old copy, and another one has gone on. Nothing was released. Resume the "
            "newest folder of this run, or start a new run."
        )

    def _take_back(self) -> None:
        """Mark the run's lines that the project was not charged for: a crash between the two lines released nothing.

        A round of a schedule that only the project holds (version 0.2 wrote that line first) is entered as charged.
        """
        if self.project is None or self._repeatable:
            return
        charged = lines_of(self.run, self.project)
        paid = {line.nonce for line in charged}
        unpaid = [one for one in self.ledger.shared_releases if one.nonce not in paid]
        self.ledger.record_all(Aborted(round=one.round, reason=TAKEN_BACK, nonce=one.nonce) for one in unpaid)
        for line in charged:
            if line.nonce is None and schedule_of(line.mechanism) is not None and line.round not in self._written:
                detail = {
                    key: value for key, value in line.detail.items() if key not in ("run", "population", "charged_as")
                }
                self.ledger.record(replace(line, detail=detail))
        self._written = {entry.round: entry for entry in self.ledger.standing}
        self._nonces = {one.nonce for one in self.ledger.shared_releases}

    def record(self, entry: Entry) -> None:
        """Charge a round: write its line, unless this line was written before the interruption."""
        before = self._written.get(entry.round) if self._repeatable else None
        if before is not None and before != entry:
            raise RunError(
                f"{self.ledger.path}, round {entry.round}: the repeated round is not the one that was charged. The "
                "package or the machine has changed since; start a new run."
            )
        if before is not None:
            return
        if self.project is None or not isinstance(entry, Release):
            self.ledger.record(entry)
            return
        charge = partial(self.project.charge, run=self.run, population=self.ledger.header.population, worst=self.worst)
        if self._repeatable:
            charge(entry, repeatable=True)
            self.ledger.record(entry)
        else:
            line = replace(entry, nonce=secrets.token_hex(16))
            try:
                charge(line, first=partial(self._write, line))
            except BudgetSpent:
                self._refuse_old_copy()  # a copy of the folder that continued has used this stream
                raise

    def _write(self, line: Release) -> None:
        """Write the run's line of a charge that the project pays; under the project's lock."""
        self._refuse_old_copy()
        self.ledger.record(line)
        self._nonces.add(line.nonce)

    def charged_before_interruption(self, rounds_done: int) -> bool:
        """Return True if the next round was charged before an interruption, and repeating it would be another
        release.
        """
        return not self._repeatable and rounds_done in self._written

    def require_own_stream(self, release: SingleRelease) -> None:
        """Raise RunError if another run of the project has drawn from the stream of this run's schedule.

        Accounted together, one run's rounds would be the next rounds of the other.
        """
        schedule = schedule_of(release)
        lines = [] if schedule is None or self.project is None else self.project.ledger.shared_releases
        for line in lines:
            other, name = schedule_of(line.mechanism), line.detail.get("run")
            if other is not None and schedule is not None and other.stream == schedule.stream and name != self.run:
                raise RunError(
                    f"{self.ledger.path}: run {name} of the project has a schedule that is drawn from "
                    f"{schedule.stream!r}, too. Give this run another run.seed."
                )

    def begin(self, privacy_target: PrivacyTarget, *, first: int, rounds: int) -> None:
        """Charge the project for the rounds that it was not charged for yet. BudgetSpent if it cannot pay.

        If a charge depends on the shares that arrive, a round is charged with the fewest shares.
        """
        self.worst = privacy_target.mechanism if privacy_target.varies else None
        if self.project is not None:
            left = [
                privacy_target.of_round(number) for number in range(first, rounds) if number not in self._of_project
            ]
            population = self.ledger.header.population
            self.project.begin(left, run=self.run, first=first, population=population)

    @property
    def heads(self) -> Heads:
        """Last hashes of the ledgers, for a checkpoint."""
        return Heads(ledger=self.ledger.head, project=self.project.ledger.head if self.project is not None else "")

    @property
    def run(self) -> str:
        """Name of this run in a project's ledger."""
        return str(self.ledger.header.about.get("run", "unnamed"))

    def standing(self, rounds_done: int) -> list[Release | LocalRelease]:
        """Return the releases that count before the next round: an interrupted simulated round is charged once."""
        return [one for one in self.ledger.releases if not self._repeatable or one.round < rounds_done]

    def paid(self, number: int) -> bool:
        """Return True if the project was charged for this round before an interruption."""
        return self._repeatable and number in self._of_project

    def interrupted(self, rounds_done: int) -> int:
        """Return the number of charges without a finished round, in the ledger or the project.

        They are of rounds that were interrupted after their charge, and repeated with new noise or not at all.
        """
        charges = Counter(entry.round for entry in self.ledger.releases)
        for round, count in Counter(line.round for line in lines_of(self.run, self.project)).items():
            charges[round] = max(charges[round], count)
        return sum(charges.values()) - sum(round < rounds_done for round in charges)


def _differing(there: Header, header: Header) -> str:
    """Describe the differences between the runs of two headers; empty if there are none."""
    if there.binding is None:
        return PARTS["format"]
    before, now = ({**(one.binding or {}), "population": one.population} for one in (there, header))
    return " and ".join(words for name, words in PARTS.items() if before.get(name) != now.get(name))


def has_no_header(path: Path) -> bool:
    """Return True if the file ends before its first line does."""
    try:
        with open_input(path) as file:
            return not file.readline(LONGEST_LINE).endswith(b"\n")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RunError(f"{path}: the ledger cannot be read ({error.strerror}).") from None


def lines_of(run: str, project: ProjectLedger | None) -> list[Release]:
    """Return the project's charges of the run."""
    lines = [] if project is None else project.ledger.shared_releases
    return [line for line in lines if line.detail.get("run") == run]
