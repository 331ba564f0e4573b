"""The ledger: what a run released, one line each, on disk before it is published.

A JSON-lines file. The first line is a header (version, unit, where the randomness came from), every further line one
release with everything that a stated epsilon must name. Each line carries a hash over itself and the line before, so
that an edited, lost or reordered line is found when the file is read. The hash has no key: it finds accidents and
careless edits, not a forger who writes the whole file anew.

Unit "client": a line is a `Release`, something about all clients of a round. Unit "record": a line is a
`LocalRelease`, what each client of a round released of its own records.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accounting import mechanisms
from accounting.accountant import Accountant, Guarantee, guarantee
from accounting.errors import AccountingError, EditedLedger, LedgerError, LedgerVersionError, TruncatedLedger
from accounting.histories import Histories, Steps, worst
from accounting.mechanisms import Composed, SingleRelease

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """What holds for the whole file. `randomness`: "simulated" (seeded, not for release) or "secure" (OS)."""

    unit: str
    clients: int
    randomness: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "header",
            "version": VERSION,
            "unit": self.unit,
            "clients": self.clients,
            "randomness": self.randomness,
            "about": dict(self.about),
        }


@dataclass(frozen=True, kw_only=True)
class Release:
    """One release. `mechanism` carries adjacency, sampler and noise; the rest says how it was carried out.

    `noise_std` is the standard deviation of the noise on the sum, `noise_placement` "server" or "clients" (shares),
    `detail` anything else that was fixed beforehand (dimension, denominators, parts of a joint release).
    """

    round: int
    mechanism: SingleRelease
    clip_norm: float
    noise_std: float
    noise_placement: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "release",
            "round": self.round,
            "mechanism": self.mechanism.to_dict(),
            "sensitivity_in_clips": self.mechanism.adjacency.sensitivity_in_clips,
            "clip_norm": self.clip_norm,
            "noise_std": self.noise_std,
            "noise_placement": self.noise_placement,
            "detail": dict(self.detail),
        }


@dataclass(frozen=True, kw_only=True)
class LocalRelease:
    """A round of clients that train privately by themselves: who took which steps, none in `steps` took any.

    `noise_std` is the standard deviation of the noise on the sum over a batch.
    """

    round: int
    steps: tuple[Steps, ...]
    clip_norm: float
    noise_std: float
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "local-release",
            "round": self.round,
            "steps": [
                {"mechanism": part.mechanism.to_dict(), "count": part.count, "clients": list(part.clients)}
                for part in self.steps
            ],
            "clip_norm": self.clip_norm,
            "noise_std": self.noise_std,
            "detail": dict(self.detail),
        }


@dataclass(frozen=True, kw_only=True)
class Aborted:
    """A round that ended without a result: nothing of it was released, so it costs nothing.

    Sound where ending does not depend on the data: too many clients were lost, a secure sum did not come about.
    """

    round: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "aborted", "round": self.round, "reason": self.reason}


Entry = Release | LocalRelease | Aborted
"""A line after the header."""


class Ledger:
    """An open ledger. `create` a new one, `read` a finished one, `resume` one that a killed run left behind."""

    def __init__(self, path: Path, header: Header, entries: list[Entry], chain: str, size: int) -> None:
        self.path, self.header, self.entries = path, header, entries
        self._chain, self._size = chain, size

    @property
    def releases(self) -> list[Release | LocalRelease]:
        """What was released, in order."""
        return [entry for entry in self.entries if not isinstance(entry, Aborted)]

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: Header) -> "Ledger":
        """A new file holding only the header. An existing file is never touched: LedgerError."""
        target = Path(path)
        line, chain = _sealed(header.to_dict(), "")
        try:
            with open(target, "xb") as file:
                _write_through(file.fileno(), line)
            _sync_folder(target.parent)
        except FileExistsError:
            raise LedgerError(
                f"{target}: a ledger is already there. A new run needs a new folder; resume continues the old one."
            ) from None
        except OSError as error:
            raise LedgerError(f"{target}: the ledger cannot be written ({error}). Nothing was released.") from error
        return cls(target, header, [], chain, len(line))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Ledger":
        """The ledger in this file, every line checked. TruncatedLedger, EditedLedger, LedgerVersionError."""
        target = Path(path)
        try:
            content = target.read_bytes()
        except OSError as error:
            raise LedgerError(f"{target}: the ledger cannot be read ({error}).") from error
        if not content:
            raise TruncatedLedger(f"{target}: the file is empty, not even a header was written.")
        *lines, rest = content.split(b"\n")
        if rest:
            raise TruncatedLedger(
                f"{target}, line {len(lines) + 1}: the last line was not written to its end (a crash, or a full disk). "
                "Its release was never published, since a release waits for its line: Ledger.resume drops it."
            )
        header, chain = _read_header(target, lines[0])
        ledger = cls(target, header, [], chain, len(lines[0]) + 1)
        ledger._take(lines[1:])
        return ledger

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> "Ledger":
        """Like `read`, for appending: an unfinished last line is cut off first."""
        try:
            return cls.read(path)
        except TruncatedLedger:
            content = Path(path).read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole == 0:
                raise
            with open(path, "r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())
            return cls.read(path)

    def catch_up(self) -> list[Entry]:
        """Take over the lines that another process has written since, and return them.

        The caller holds a lock that every writer holds: an unfinished last line is then one of a process that died, and
        is cut off. EditedLedger, LedgerError.
        """
        try:
            with open(self.path, "r+b") as file:
                file.seek(self._size)
                *lines, rest = file.read().split(b"\n")
                if rest:
                    file.truncate(self._size + sum(len(line) + 1 for line in lines))
                    os.fsync(file.fileno())
        except OSError as error:
            raise LedgerError(f"{self.path}: the ledger cannot be read ({error}).") from error
        before = len(self.entries)
        self._take(lines)
        return self.entries[before:]

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            number = len(self.entries) + 2
            record, chain = _unsealed(self.path, number, line, self._chain)
            entry = _entry_from(self.path, number, record)
            wrong = _misplaced(self.header, entry)
            if wrong:
                raise EditedLedger(f"{self.path}, line {number}: {wrong}")
            self.entries.append(entry)
            self._chain, self._size = chain, self._size + len(line) + 1

    def record(self, entry: Entry) -> None:
        """Append one line and force it to the disk. Only after this returns may a release be published.

        On failure (a full disk) the file is cut back to what it was and LedgerError says that nothing was released.
        """
        wrong = _misplaced(self.header, entry)
        if wrong:
            raise LedgerError(f"{self.path}, round {entry.round}: {wrong}")
        line, chain = _sealed(entry.to_dict(), self._chain)
        try:
            with open(self.path, "ab") as file:
                before = file.tell()
                try:
                    _write_through(file.fileno(), line)
                except OSError:
                    os.ftruncate(file.fileno(), before)
                    raise
        except OSError as error:
            raise LedgerError(
                f"{self.path}: round {entry.round} cannot be recorded ({error}). It was not released; free space or "
                "fix the folder, then resume."
            ) from error
        self.entries.append(entry)
        self._chain, self._size = chain, self._size + len(line)

    def mechanism(self) -> Composed | None:
        """Everything released so far as one composition; None before the first release. Not for unit "record", where
        every client has its own: `histories`."""
        if self.header.unit == "record":
            raise LedgerError(f"{self.path}: unit 'record', every client has its own mechanism. Use histories().")
        shared = [release.mechanism for release in self.releases if isinstance(release, Release)]
        return Composed.of(shared) if shared else None

    def histories(self) -> Histories:
        """What each client released of its own records so far."""
        histories = Histories()
        for release in self.releases:
            if isinstance(release, LocalRelease):
                histories.add(release.steps)
        return histories

    def guarantee(self, delta: float, *, accountant: Accountant = "best", with_lower_bound: bool = True) -> Guarantee:
        """Epsilon at `delta`, from the releases alone. An upper bound for what ran if every release was recorded.

        Unit "record", claim: for any client and any record added to it or taken away, all that this client ever sent
        is (epsilon, delta)-indistinguishable: epsilon is that of the worst client's own composition. The sampling
        probabilities of records and the numbers of steps count as public; so does who took part.
        """
        record_level = self.header.unit == "record"
        histories = self.histories().distinct() if record_level else []
        mechanism = worst(histories, delta=delta, accountant=accountant) if record_level else self.mechanism()
        if mechanism is None:
            return Guarantee(
                epsilon=0.0, delta=delta, unit=self.header.unit, adjacency="any", sampling="none", method="none",
                lower_bound=0.0, notes=("nothing was released",),
            )  # fmt: skip
        stated = guarantee(
            mechanism,
            delta=delta,
            accountant=accountant,
            unit=self.header.unit,
            with_lower_bound=with_lower_bound,
        )
        if not record_level:
            return stated
        steps = sum(count for _, count in mechanism.parts)
        return replace(stated, notes=(*stated.notes, f"of the worst client, which took {steps} steps"))


def _misplaced(header: Header, release: Entry) -> str | None:
    """What is wrong with a release in a ledger of this header, if anything."""
    if isinstance(release, Aborted):
        return None
    if isinstance(release, LocalRelease) != (header.unit == "record"):
        kind = "local release" if isinstance(release, LocalRelease) else "release of all clients"
        return f"a {kind} has no place in a ledger of unit {header.unit!r}."
    if isinstance(release, LocalRelease):
        largest = max((max(part.clients, default=0) for part in release.steps), default=0)
        if largest >= header.clients:
            return f"client {largest} of {header.clients} clients, who count from 0."
    return None


def _canonical(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _sealed(record: dict[str, Any], previous: str) -> tuple[bytes, str]:
    """The line to write and its hash, which covers the line before."""
    chain = hashlib.sha256(previous.encode() + _canonical(record)).hexdigest()
    return _canonical({**record, "chain": chain}) + b"\n", chain


def _unsealed(path: Path, number: int, line: bytes, previous: str) -> tuple[dict[str, Any], str]:
    """The record of a line and its hash, or EditedLedger naming the line."""
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("not an object")
        chain = record.pop("chain")
        expected = _sealed(record, previous)[1]
    except (ValueError, KeyError, RecursionError) as error:
        raise EditedLedger(f"{path}, line {number}: not a line that this package wrote ({error}).") from None
    if chain != expected:
        raise EditedLedger(
            f"{path}, line {number}: its hash does not match, so this line was edited, or one before it was removed or "
            "reordered. The epsilon of this file cannot be trusted; restore the file from a copy."
        )
    return record, expected


def _read_header(path: Path, line: bytes) -> tuple[Header, str]:
    try:
        version = json.loads(line).get("version")
    except (ValueError, AttributeError, RecursionError):
        raise EditedLedger(f"{path}, line 1: not a ledger header.") from None
    if version != VERSION:
        raise LedgerVersionError(
            f"{path}: ledger version {version!r}; this package reads version {VERSION}. Use the package version that "
            "wrote it."
        )
    record, chain = _unsealed(path, 1, line, "")
    try:
        header = Header(
            unit=record["unit"],
            clients=record["clients"],
            randomness=record["randomness"],
            about=record["about"],
        )
    except KeyError as error:
        raise EditedLedger(f"{path}, line 1: the header lacks {error}.") from None
    return header, chain


def _entry_from(path: Path, number: int, record: dict[str, Any]) -> Entry:
    try:
        if record["kind"] == "aborted":
            return Aborted(round=record["round"], reason=record["reason"])
        if record["kind"] == "local-release":
            return LocalRelease(
                round=record["round"],
                steps=tuple(_steps_from(part) for part in record["steps"]),
                clip_norm=record["clip_norm"],
                noise_std=record["noise_std"],
                detail=record["detail"],
            )
        if record["kind"] != "release":
            raise KeyError("kind")
        return Release(
            round=record["round"],
            mechanism=_single(record["mechanism"]),
            clip_norm=record["clip_norm"],
            noise_std=record["noise_std"],
            noise_placement=record["noise_placement"],
            detail=record["detail"],
        )
    except (KeyError, TypeError, AccountingError) as error:
        raise EditedLedger(f"{path}, line {number}: not a release that this version knows ({error}).") from None


def _steps_from(record: Mapping[str, Any]) -> Steps:
    return Steps(mechanism=_single(record["mechanism"]), count=record["count"], clients=tuple(record["clients"]))


def _single(record: Mapping[str, Any]) -> SingleRelease:
    mechanism = mechanisms.from_dict(record)
    if isinstance(mechanism, Composed):
        raise KeyError("kind")
    return mechanism


def _write_through(descriptor: int, data: bytes) -> None:
    """Write all of `data` and force it to the disk."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
