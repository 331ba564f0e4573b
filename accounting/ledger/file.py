"""Ledger of a run: its releases, one line each, on disk before they are published.

A JSON-lines file. The first line is a header (version, unit, origin of the randomness), every further line one entry
(`ledger.entries`) with everything that a stated epsilon must name. The lines are chained by hashes
(`ledger.hash_chain`), so an edited, missing or reordered line is found when the file is read.
"""

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from accounting.caveats import of_delta
from accounting.compose.accountant import Accountant, Guarantee, guarantee
from accounting.compose.histories import Histories, worst
from accounting.errors import (
    AccountingError,
    EditedLedger,
    LedgerError,
    LedgerVersionError,
    TruncatedLedger,
    UnsupportedMechanism,
)
from accounting.ledger import regular_file
from accounting.ledger.entries import (
    VERSION,
    Aborted,
    Entries,
    Entry,
    Header,
    LocalRelease,
    Purchase,
    Release,
    header_from,
    lacks_noise,
    misplaced,
)
from accounting.ledger.hash_chain import opened, sealed
from accounting.ledger.planned import budget_of_project, statement
from accounting.ledger.regular_file import open_input
from accounting.mechanisms import Composed

__all__ = ["Aborted", "Entry", "Header", "Ledger", "LocalRelease", "Purchase", "Release"]

_DIGEST = 32
"""Bytes of a hash."""

LONGEST_LINE = 2**26
"""Most bytes of a line; a round of a million clients that train privately by themselves takes a tenth of it."""


class Ledger:
    """Open ledger. `create` a new one, `read` a finished one, `resume` one that a killed run left behind.

    One process writes; any number may read `so_far` meanwhile.
    Claim: every release is on disk before it is published, so `guarantee` covers everything published.
    Direction of error: epsilon upwards.

    >>> import tempfile
    >>> from accounting import Gaussian, Header, Ledger, Release
    >>> noise = Gaussian(noise_multiplier=2.0, adjacency="add-remove")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     header = Header(unit="client", clients=6000, randomness="secure")
    ...     ledger = Ledger.create(f"{folder}/ledger.jsonl", header)
    ...     release = Release(round=0, mechanism=noise, clip_norm=0.5, noise_std=1.0, noise_placement="server")
    ...     ledger.record(release)
    ...     epsilon = Ledger.read(ledger.path).guarantee(1e-5).epsilon
    >>> round(epsilon, 4)
    1.9931
    """

    def __init__(self, path: Path, header: Header, chain: str, size: int) -> None:
        self.path, self.header = path, header
        self.entries: list[Entry] = []
        self._chain, self._size, self._reader = chain, size, Entries()
        self._heads = bytearray.fromhex(chain)

    @property
    def standing(self) -> list[Entry]:
        """Entries in order, without charges that were taken back and the lines that take them back."""
        void = {entry.nonce for entry in self.entries if isinstance(entry, Aborted) and entry.nonce is not None}
        if not void:
            return self.entries
        return [one for one in self.entries if isinstance(one, LocalRelease | Purchase) or one.nonce not in void]

    @property
    def releases(self) -> list[Release | LocalRelease]:
        """Releases in order."""
        return [entry for entry in self.standing if isinstance(entry, Release | LocalRelease)]

    @property
    def shared_releases(self) -> list[Release]:
        """Releases in order that are charged to all clients alike, unlike those of one client's own steps."""
        return [entry for entry in self.releases if isinstance(entry, Release)]

    @property
    def head(self) -> str:
        """Hash of the last line, which depends on all lines: 64 hexadecimal digits."""
        return self._chain

    @property
    def identity(self) -> str:
        """Hash of the header, which stays equal while the ledger grows."""
        return self._heads[:_DIGEST].hex()

    def entries_after(self, head: str) -> int | None:
        """Return the number of entries after the line of this hash, or None if no line has it.

        None means that lines stored when it was the head are missing, or that the file is another one.
        """
        wanted, place = _digest(head), len(self._heads)
        while wanted is not None and (place := self._heads.rfind(wanted, 0, place + len(wanted) - 1)) >= 0:
            if place % len(wanted) == 0:
                return (len(self._heads) - place) // len(wanted) - 1
        return None

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: Header) -> "Ledger":
        """Return the ledger of a new file with the header alone. Errors: LedgerError if the file exists."""
        target = Path(path)
        line, chain = sealed(header.to_dict(), "")
        try:
            regular_file.create(target, line)
        except FileExistsError:
            raise LedgerError(
                f"{target}: a ledger is already there. A new run needs a new folder; resume continues the old one."
            ) from None
        except OSError as error:
            raise LedgerError(f"{target}: the ledger cannot be written ({error}). Nothing was released.") from error
        return cls(target, header, chain, len(line))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Ledger":
        """Return the ledger in this file, every line checked. Errors: LedgerError and its kinds."""
        ledger, unfinished = cls._read(Path(path))
        if unfinished:
            raise TruncatedLedger(
                f"{path}, line {len(ledger.entries) + 2}: the last line was not written to its end (a crash, or a full "
                "disk). Its release was never published, since a release waits for its line: Ledger.resume drops it."
            )
        return ledger

    @classmethod
    def header_of(cls, path: str | os.PathLike[str]) -> Header:
        """Return the first line alone, checked. Errors: LedgerError."""
        first = next(_lines(Path(path), 0), b"")
        if not first.endswith(b"\n"):
            raise TruncatedLedger(f"{path}, line 1: not even a whole header was written, so nothing was released.")
        return _read_header(Path(path), first)[0]

    @classmethod
    def so_far(cls, path: str | os.PathLike[str]) -> "Ledger":
        """Return the ledger while another process may be writing: as `read`, without an unfinished last line."""
        return cls._read(Path(path))[0]

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> "Ledger":
        """Return the ledger for appending: as `read`, after cutting off an unfinished last line."""
        ledger, unfinished = cls._read(Path(path))
        if unfinished:
            ledger._cut_unfinished_line()
        return ledger

    @classmethod
    def _read(cls, path: Path) -> "tuple[Ledger, bool]":
        """Return the ledger of the whole lines, and True if an unfinished line is after them."""
        lines = _lines(path, 0)
        first = next(lines, b"")
        if not first.endswith(b"\n"):
            what = "not even a whole header was written" if first else "the file is empty"
            raise TruncatedLedger(f"{path}, line 1: {what}, so nothing was released.")
        header, chain = _read_header(path, first)
        ledger = cls(path, header, chain, len(first))
        return ledger, ledger._take_lines(lines)

    def catch_up(self) -> list[Entry]:
        """Take over the lines that another process has written since, and return them.

        The caller holds a lock that every writer holds: an unfinished last line is then one of a process that died, and
        is cut off. Errors: EditedLedger, LedgerError.
        """
        before = len(self.entries)
        if self._take_lines(_lines(self.path, self._size)):
            self._cut_unfinished_line()
        return self.entries[before:]

    def look(self) -> None:
        """Take over the whole lines that others have written since, without a lock. Errors: LedgerError."""
        self._take_lines(_lines(self.path, self._size))

    def _take_lines(self, lines: Iterable[bytes]) -> bool:
        """Take over the lines; return True if an unfinished line was left."""
        for line in lines:
            if not line.endswith(b"\n"):
                return True
            number = len(self.entries) + 2
            record, chain = opened(self.path, number, line, self._chain)
            try:
                entry = self._reader.read(record)
            except AccountingError as error:
                raise EditedLedger(f"{self.path}, line {number}: {error}") from None
            if wrong := misplaced(self.header, entry):
                raise EditedLedger(f"{self.path}, line {number}: {wrong}")
            self.entries.append(entry)
            self._chain, self._size = chain, self._size + len(line)
            self._heads += bytes.fromhex(chain)
        return False

    def _cut_unfinished_line(self) -> None:
        try:
            regular_file.cut(self.path, self._size)
        except OSError as error:
            raise LedgerError(f"{self.path}: its unfinished last line cannot be cut off ({error}).") from error

    def record(self, entry: Entry) -> None:
        """Append one line and force it to the disk. A release may be published only after this returns.

        Errors: LedgerError on failure (a full disk), with the file cut back to its previous state and nothing released,
        and for an entry that states less noise than its mechanism charges.
        """
        self.record_all([entry])

    def record_all(self, entries: Iterable[Entry]) -> None:
        """Append many lines together, all or none, and force them to the disk. Errors: LedgerError."""
        new, lines, chain, heads = list(entries), [], self._chain, bytearray()
        if not new:
            return
        for entry in new:
            if wrong := misplaced(self.header, entry) or lacks_noise(entry):
                raise LedgerError(f"{self.path}, round {entry.round}: {wrong}")
            line, chain = sealed(entry.to_dict(), chain)
            lines.append(line)
            heads += bytes.fromhex(chain)
        data = b"".join(lines)
        try:
            regular_file.append(self.path, data, at=self._size)
        except OSError as error:
            raise LedgerError(
                f"{self.path}: round {new[0].round} cannot be recorded ({error}). It was not released; free space or "
                "fix the folder, then resume."
            ) from error
        self.entries += new
        self._chain, self._size = chain, self._size + len(data)
        self._heads += heads

    def mechanism(self) -> Composed | None:
        """Return everything released so far as one composition; None before the first release.

        Errors: LedgerError for unit "record", where every client has its own (`histories`); UnsupportedMechanism for
        releases without a joint account.
        """
        if self.header.unit == "record":
            raise LedgerError(f"{self.path}: unit 'record', every client has its own mechanism. Use histories().")
        shared = [release.mechanism for release in self.releases if isinstance(release, Release)]
        try:
            return Composed.of(shared) if shared else None
        except UnsupportedMechanism as error:
            raise UnsupportedMechanism(f"{self.path}: {error}") from None

    def histories(self) -> Histories:
        """Return the releases of each client about its records so far."""
        histories = Histories()
        for release in self.releases:
            if isinstance(release, LocalRelease):
                histories.add(release.steps)
        return histories

    def charged(self, delta: float, *, accountant: Accountant = "best") -> Composed | None:
        """Return the mechanism of `if_fixed_in_advance`: everything released, for unit "record" by the worst client.

        Returns None before the first release.
        """
        if self.header.unit == "record":
            return worst(self.histories().distinct(), delta=delta, accountant=accountant)
        return self.mechanism()

    def guarantee(
        self,
        delta: float,
        *,
        accountant: Accountant = "best",
        units: int | None = None,
        with_lower_bound: bool = True,
    ) -> Guarantee:
        """Return the guarantee at `delta` that may be stated, for any rule that ended the run.

        Claim: an upper bound for what ran if every release was recorded. If all planned rounds were released: the
        epsilon of the releases. If fewer were: the smaller of the plan's and the budget's, as in the header
        (`ledger.planned`); a project's ledger has its budget. A ledger without a plan (version 0.2): the epsilon of the
        releases, with the condition in the notes. Unit, `units`: as for `if_fixed_in_advance`.
        """
        lines = self.if_fixed_in_advance(delta, accountant=accountant, units=units, with_lower_bound=with_lower_bound)
        released = self.releases
        if not released:
            return lines
        record_level = self.header.unit == "record"
        return statement(
            lines,
            budget_of_project(self.header.about) or self.header.plan,
            [one.round for one in released],
            aborted=[one.round for one in self.standing if isinstance(one, Aborted)],
            first=next((one.mechanism for one in released if isinstance(one, Release)), None),
            accountant=accountant,
            units=units if record_level else self.header.clients,
        )

    def if_fixed_in_advance(
        self,
        delta: float,
        *,
        accountant: Accountant = "best",
        units: int | None = None,
        with_lower_bound: bool = True,
    ) -> Guarantee:
        """Return the guarantee at `delta` of the releases as recorded.

        Claim: an upper bound for what ran if every release was recorded, and if number and kind of the releases were
        fixed before the first result was seen.

        Unit "record", claim: for any client and any record added to it or removed, everything this client ever sent is
        (epsilon, delta)-indistinguishable: epsilon is that of the worst client's composition. The sampling
        probabilities of records, the numbers of steps and the participants count as public.

        units: number of records, if they are the unit and a delta above 1/units is to be noted.
        """
        record_level = self.header.unit == "record"
        units = units if record_level else self.header.clients
        mechanism = self.charged(delta, accountant=accountant)
        if mechanism is None:
            return Guarantee(
                epsilon=0.0, delta=delta, unit=self.header.unit, adjacency="any", sampling="none", method="none",
                lower_bound=0.0,
                notes=("nothing was released", *of_delta(delta, units=units, unit=self.header.unit)),
            )  # fmt: skip
        stated = guarantee(
            mechanism,
            delta=delta,
            accountant=accountant,
            unit=self.header.unit,
            units=units,
            with_lower_bound=with_lower_bound,
        )
        if not record_level:
            return stated
        steps = sum(count for _, count in mechanism.parts)
        if sum(1 for _ in self.histories().distinct()) > 1:  # other clients may be worse at other deltas
            stated = replace(stated, mechanism=None)
        return replace(stated, notes=(*stated.notes, f"of the worst client, which took {steps} steps"))


def _lines(path: Path, start: int) -> Iterator[bytes]:
    """Yield the lines from byte `start`, each with its end. Errors: LedgerError."""
    try:
        with open_input(path) as file:
            if file.seek(0, os.SEEK_END) < start:
                raise EditedLedger(f"{path}: is shorter than it was when it was last read. Restore it from a copy.")
            file.seek(start)
            for number in itertools.count(1):
                line = file.readline(LONGEST_LINE)
                if len(line) == LONGEST_LINE:
                    raise EditedLedger(f"{path}: a line {number} after byte {start} of more than {LONGEST_LINE} bytes.")
                if not line:
                    return
                yield line
    except OSError as error:
        raise LedgerError(f"{path}: the ledger cannot be read ({error}).") from error


def _digest(head: str) -> bytes | None:
    """Return the bytes of a head; None for text that is no head."""
    try:
        digest = bytes.fromhex(head)
    except ValueError:
        return None
    return digest if len(digest) == _DIGEST and digest.hex() == head else None


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
    record, chain = opened(path, 1, line, "")
    try:
        return header_from(record), chain
    except AccountingError as error:
        raise EditedLedger(f"{path}, line 1: {error}") from None
