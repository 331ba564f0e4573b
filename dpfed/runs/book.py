"""Charges of a run in its ledgers, also if the run is interrupted between charging a round and saving its result."""

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
from dpfed.runs.binding import PARTS, LedgerHeads

TAKEN_BACK = "the project was not charged for the line of this nonce, so nothing was released"
"""Reason in a run's ledger of the line that marks an earlier charge as one that released nothing."""


class LedgerBook:
    """Charges of one run, in its own ledger and in that of its project.

    With simulated randomness an interrupted round is repeated with the same noise. It is the same release, so the lines
    of both ledgers are kept; the project is charged first. With secure randomness the repeated round is a new release
    and is charged in addition.

    In a project each charge of such fresh noise has a nonce. The run's line is written first, under the project's lock,
    then the project's line with the same nonce, and then the round is released. If the project's ledger has a nonce
    that the folder lacks, the folder is an old copy. If the run's ledger has a nonce that the project lacks, that line
    released nothing.
    """

    def __init__(self, ledger: Ledger, project: ProjectLedger | None = None) -> None:
        self.ledger, self.project = ledger, project
        self.worst: SingleRelease | None = None
        self._repeatable = ledger.header.randomness == "simulated"
        self._of_project = Counter(line.round for line in project_releases_of(self.run_name, project))
        self._compared = 0
        self._note_lines()

    @classmethod
    def open(
        cls, path: Path, header: Header, *, rounds_done: int, heads: LedgerHeads, project: ProjectLedger | None = None
    ) -> LedgerBook:
        """Open a new ledger, or continue an existing one.

        Raises RunError if a ledger lacks lines of finished rounds or a line in `heads`, or if it belongs to another run
        or project. Raises LedgerError if the project has other clients.
        """
        if project is not None and project.ledger.header.clients != header.clients:
            raise RunError(
                f"{project.ledger.path}: is for {project.ledger.header.clients} clients, this run has "
                f"{header.clients}: all runs of a project have the same clients. Use another ledger."
            )
        if project is not None:
            project.refresh()
        if has_incomplete_header(path):  # an earlier process ended while it created the ledger, before the first round
            path.unlink()
        if path.exists():
            book = cls(Ledger.resume(path), project)
            book._check_header(header)
            book._require_project_charges(heads.project, rounds_done)
        elif rounds_done:
            raise RunError(f"{path}: is missing, but the checkpoint has {rounds_done} rounds. Restore it from a copy.")
        else:
            if project is not None:
                project.require_population(header.population)
            book = cls(Ledger.create(path, header), project)
        missing = [round for round in range(rounds_done) if round not in book._written]
        if missing:
            raise RunError(
                f"{path}: has no line for round {missing[0]}, but the checkpoint has {rounds_done} rounds. Rounds "
                "were released without a charge, or lines were lost; no guarantee can be stated for this run."
            )
        if heads.ledger and book.ledger.entries_after(heads.ledger) is None:
            raise RunError(
                f"{path}: has no line of hash {heads.ledger[:12]}..., its last one when the checkpoint was written. "
                "Lines were cut off, or it is the ledger of another run. Restore it from a copy."
            )
        book._mark_unpaid_charges()
        return book

    def _note_lines(self) -> None:
        """Note the entries of the run's ledger by their rounds, and the nonces of its releases."""
        self._written = {entry.round: entry for entry in self.ledger.entries_in_force}
        self._nonces = {one.nonce for one in self.ledger.shared_releases}

    def _check_header(self, header: Header) -> None:
        """Raise RunError if the ledger belongs to another run, or if the run was charged to a project and now is not,
        or the reverse.
        """
        path, there = self.ledger.path, self.ledger.header
        for name in ("unit", "clients", "randomness"):
            if getattr(there, name) != getattr(header, name):
                raise RunError(
                    f"{path}: its {name} is {getattr(there, name)!r}, that of this run is {getattr(header, name)!r}: "
                    "it is the ledger of another run. Restore the ledger of this run from a copy."
                )
        if other := _differing_parts(there, header):
            raise RunError(
                f"{path}: is the ledger of another run, or this run has changed since it began in {other}. Restore "
                "what the run began with, or start a new run."
            )
        if ("run" in there.about) != (self.project is not None):
            was, do = ("is", "give") if self.project is None else ("is not", "leave out")
            raise RunError(
                f"{path}: the run {was} charged to a project, which must not change: either all its rounds are charged "
                f"there, or none. To resume, {do} --ledger."
            )

    def _require_project_charges(self, seen: str, rounds_done: int) -> None:
        """Raise RunError unless both the project's ledger and the run's ledger contain all charges of this run.

        If the project lacks a charge, it is another project or has lost lines. If the run's ledger lacks a charge, the
        folder is an old copy.
        """
        if self.project is None:
            return
        project = self.project.ledger
        own, charged = self.ledger.shared_releases, project_releases_of(self.run_name, self.project)
        paid = {line.nonce for line in charged}
        # lines without a nonce have simulated noise, or are of version 0.2
        before = Counter(one.round for one in own if one.nonce is None)
        there = Counter(line.round for line in charged if line.nonce is None)
        lost = sorted((before - there).keys())
        lost += [one.round for one in own if one.nonce not in paid and one.round < rounds_done]
        if lost:
            raise RunError(
                f"{project.path}: has no charge of round {lost[0]} of run {self.run_name}, whose ledger contains "
                "its release. Give the project's ledger that the run began with, with all its lines."
            )
        for head in (str(self.ledger.header.about.get("project_head", "")), seen):
            if head and project.entries_after(head) is None:
                raise RunError(
                    f"{project.path}: has no line of hash {head[:12]}..., which its project had when this run was last "
                    "saved. Lines were cut off, or it is another project. Give the ledger that the run began with."
                )
        self._refuse_old_copy_of_folder()
        beyond = [round for round in sorted((there - before).keys()) if round > rounds_done]
        if beyond:
            raise self._old_copy_error(beyond[0])

    def _refuse_old_copy_of_folder(self) -> None:
        """Raise RunError if the project has a charge for fresh noise of this run that another copy of its folder
        made."""
        assert self.project is not None
        entries = self.project.ledger.entries
        for line in entries[self._compared :]:
            if not isinstance(line, Release) or line.detail.get("run") != self.run_name:
                continue
            if line.nonce is not None and line.nonce not in self._nonces:
                raise self._old_copy_error(line.round)
        self._compared = len(entries)

    def _old_copy_error(self, number: int) -> RunError:
        assert self.project is not None
        return RunError(
            f"{self.ledger.path}: has no line for a charge of round {number} that {self.project.ledger.path} has of "
            f"run {self.run_name}: the folder is an old copy, and the run continued in another one. Nothing was "
            "released. Resume the newest folder of this run, or start a new run."
        )

    def _mark_unpaid_charges(self) -> None:
        """Mark the lines of the run for which the project was not charged; a crash before the project's line released
        nothing.

        Version 0.2 wrote the project's line first. If only the project has the line of a scheduled round, the run's
        ledger is charged for the round, too.
        """
        if self.project is None or self._repeatable:
            return
        charged = project_releases_of(self.run_name, self.project)
        paid = {line.nonce for line in charged}
        unpaid = [one for one in self.ledger.shared_releases if one.nonce not in paid]
        self.ledger.record_all(Aborted(round=one.round, reason=TAKEN_BACK, nonce=one.nonce) for one in unpaid)
        for line in charged:
            if line.nonce is None and schedule_of(line.mechanism) is not None and line.round not in self._written:
                detail = {
                    key: value for key, value in line.detail.items() if key not in ("run", "population", "charged_as")
                }
                self.ledger.record(replace(line, detail=detail))
        self._note_lines()

    def record(self, entry: Entry) -> None:
        """Charge a round by writing its line, unless an interrupted simulated round has already written an equal
        line."""
        before = self._written.get(entry.round) if self._repeatable else None
        if before is not None and before != entry:
            raise RunError(
                f"{self.ledger.path}, round {entry.round}: the repeated round differs from the charged round. The "
                "package or the machine has changed since; start a new run."
            )
        if before is not None:
            return
        if self.project is None or not isinstance(entry, Release):
            self.ledger.record(entry)
            return
        charge = partial(
            self.project.charge, run=self.run_name, population=self.ledger.header.population, worst=self.worst
        )
        if self._repeatable:
            charge(entry, repeatable=True)
            self.ledger.record(entry)
        else:
            line = replace(entry, nonce=secrets.token_hex(16))
            try:
                charge(line, first=partial(self._write_run_line, line))
            except BudgetSpent:
                self._refuse_old_copy_of_folder()  # a copy of the folder that continued may have used this stream
                raise

    def _write_run_line(self, line: Release) -> None:
        """Write the run's line of a charge, before the project's line; the caller holds the project's lock."""
        self._refuse_old_copy_of_folder()
        self.ledger.record(line)
        self._nonces.add(line.nonce)

    def charged_before_interruption(self, rounds_done: int) -> bool:
        """Return True if the next round was charged before an interruption, and repeating it would be a second
        release."""
        return not self._repeatable and rounds_done in self._written

    def require_own_stream(self, release: SingleRelease) -> None:
        """Raise RunError if another run of the project draws its schedule from the same random stream as this run.

        The project's account would treat the rounds of both runs as rounds of one schedule.
        """
        schedule = schedule_of(release)
        lines = [] if schedule is None or self.project is None else self.project.ledger.shared_releases
        for line in lines:
            other, name = schedule_of(line.mechanism), line.detail.get("run")
            if other is not None and schedule is not None and other.stream == schedule.stream and name != self.run_name:
                raise RunError(
                    f"{self.ledger.path}: the schedule of run {name} of the project is drawn from "
                    f"{schedule.stream!r}, too. Use a different run.seed for this run."
                )

    def require_project_budget(self, privacy_target: PrivacyTarget, *, first: int, rounds: int, spare: int) -> None:
        """Ensure that the project pays for the rounds that it is not charged for yet; raises BudgetSpent if it cannot.

        If a charge depends on the noise shares that arrive, the fewest possible shares are assumed.
        """
        self.worst = privacy_target.mechanism if privacy_target.charge_varies else None
        if self.project is not None:
            once = self._repeatable or schedule_of(privacy_target.mechanism) is not None
            paid = {number for number in self._of_project if once or number < first}  # others are charged again
            more = max(spare - self._of_project.total() + len(paid), 0)  # spare rounds not yet repeated
            numbers = [number for number in range(first, rounds + more) if number not in paid]
            left = [privacy_target.mechanism_of_round(number) for number in numbers]
            population = self.ledger.header.population
            self.project.begin(left, run=self.run_name, first=first, numbers=numbers, population=population)

    @property
    def heads(self) -> LedgerHeads:
        """Hashes of the last lines of both ledgers, for a checkpoint."""
        return LedgerHeads(
            ledger=self.ledger.head, project=self.project.ledger.head if self.project is not None else ""
        )

    @property
    def run_name(self) -> str:
        """Name of this run in a project's ledger."""
        return str(self.ledger.header.about.get("run", "unnamed"))

    def counted_releases(self, rounds_done: int) -> list[Release | LocalRelease]:
        """Return the releases of finished rounds and, with secure randomness, of interrupted ones.

        An interrupted simulated round is left out, because its repetition is the same release.
        """
        return [one for one in self.ledger.releases if not self._repeatable or one.round < rounds_done]

    def is_paid_by_project(self, number: int) -> bool:
        """Return True if the project was charged for this simulated round before an interruption."""
        return self._repeatable and number in self._of_project

    def interrupted_charges(self, rounds_done: int) -> int:
        """Return the number of charges in either ledger that do not belong to a finished round.

        They were made by rounds that were interrupted after their charge. Such a round was repeated with new noise, or
        not repeated.
        """
        charges = Counter(entry.round for entry in self.ledger.releases)
        for round, count in Counter(line.round for line in project_releases_of(self.run_name, self.project)).items():
            charges[round] = max(charges[round], count)
        return sum(charges.values()) - sum(round < rounds_done for round in charges)


def _differing_parts(there: Header, header: Header) -> str:
    """Return a description of the parts in which the runs of two ledger headers differ; empty if they are equal."""
    if there.binding is None:
        return PARTS["format"]
    before, now = ({**(one.binding or {}), "population": one.population} for one in (there, header))
    return " and ".join(words for name, words in PARTS.items() if before.get(name) != now.get(name))


_BEGINNING = b'{"chain":"'
"""First bytes of every ledger."""


def has_incomplete_header(path: Path) -> bool:
    """Return True if the file is empty, or begins as a ledger and ends within its first line."""
    try:
        with open_input(path) as file:
            first = file.readline(LONGEST_LINE)
            return not first.endswith(b"\n") and _BEGINNING.startswith(first[: len(_BEGINNING)])
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RunError(f"{path}: the ledger cannot be read ({error.strerror}).") from None


def project_releases_of(run: str, project: ProjectLedger | None) -> list[Release]:
    """Return the releases of this run in the project's ledger."""
    lines = [] if project is None else project.ledger.shared_releases
    return [line for line in lines if line.detail.get("run") == run]
