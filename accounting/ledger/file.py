"""Ledger of a run: one line for each release, on disk before the release is published.

The file is in JSON-lines format. The first line is a header (version, unit, origin of the randomness). Every further
line is one entry (`ledger.entries`) with everything that a stated epsilon depends on. The lines are chained by hashes
(`ledger.hash_chain`), so reading the file detects an edited, missing or reordered line.
"""

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from accounting.caveats import delta_note
from accounting.compose.accountant import Accountant, Guarantee, guarantee
from accounting.compose.histories import Histories, worst_composition
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
    Entry,
    EntryParser,
    Header,
    LocalRelease,
    Purchase,
    Release,
    header_from,
    noise_error,
    placement_error,
)
from accounting.ledger.hash_chain import chained_line, parsed_line
from accounting.ledger.planned import budget_of_project, statement
from accounting.ledger.regular_file import open_input
from accounting.ledger.unit_filter import budget_covers
from accounting.mechanisms import Composed, SingleRelease
from accounting.mechanisms.stream_rounds import ReleasedRounds

__all__ = ["Aborted", "Entry", "Header", "Ledger", "LocalRelease", "Purchase", "Release"]

_DIGEST = 32
"""Length of a hash in bytes."""

LONGEST_LINE = 2**26
"""Largest length of a line in bytes. A round with record-level privacy of a million clients needs a tenth of it."""


class Ledger:
    """Ledger file: `create` a new ledger, `read` a finished one, `resume` the ledger of an interrupted run.

    One process writes; any number of processes may read at the same time with `so_far`.
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
        self._chain, self._size, self._reader = chain, size, EntryParser()
        self._heads = bytearray.fromhex(chain)
        self._released: ReleasedRounds | None = None
        self._lines_released = 0

    @property
    def released_rounds(self) -> ReleasedRounds:
        """Releases of all clients, with the rounds of every schedule by their numbers."""
        new = self.entries[self._lines_released :]
        if self._released is None or _revoked_nonces(new):
            self._released, new = ReleasedRounds(), self.entries_in_force
        for entry in new:
            _add_entry(self._released, entry)
        self._lines_released = len(self.entries)
        return self._released

    @property
    def entries_in_force(self) -> list[Entry]:
        """Entries in order, without revoked charges and the lines that revoke them."""
        void = _revoked_nonces(self.entries)
        if not void:
            return self.entries
        return [one for one in self.entries if isinstance(one, LocalRelease | Purchase) or one.nonce not in void]

    @property
    def releases(self) -> list[Release | LocalRelease]:
        """Releases in order."""
        return [entry for entry in self.entries_in_force if isinstance(entry, Release | LocalRelease)]

    @property
    def shared_releases(self) -> list[Release]:
        """Releases in order that are charged to all clients; local steps of single clients are not included."""
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
        """Return the number of entries after the line with this hash; None if no line has it.

        None means that lines up to this head are missing, or that the hash belongs to another ledger.
        """
        if regular_file.DIGITS.fullmatch(head) is None:
            return None
        digest, place = bytes.fromhex(head), len(self._heads)
        while (place := self._heads.rfind(digest, 0, place + _DIGEST - 1)) >= 0:
            if place % _DIGEST == 0:
                return (len(self._heads) - place) // _DIGEST - 1
        return None

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: Header) -> "Ledger":
        """Create a ledger file with only a header, and return the ledger. Errors: LedgerError if the file exists."""
        target = Path(path)
        line, chain = chained_line(header.to_dict(), "")
        try:
            regular_file.create(target, line)
        except FileExistsError:
            raise LedgerError(
                f"{target}: the ledger already exists. A new run needs a new folder; resume continues the existing run."
            ) from None
        except OSError as error:
            raise LedgerError(f"{target}: the ledger cannot be written ({error}). Nothing was released.") from error
        return cls(target, header, chain, len(line))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Ledger":
        """Read and verify all lines of a ledger file. Errors: LedgerError and its subclasses."""
        ledger, unfinished = cls._read(Path(path))
        if unfinished:
            raise TruncatedLedger(
                f"{path}, line {len(ledger.entries) + 2}: the last line was not written to its end (a crash, or a full "
                "disk). Its release was never published, because a release waits for its line. Ledger.resume removes "
                "the incomplete line."
            )
        return ledger

    @classmethod
    def header_of(cls, path: str | os.PathLike[str]) -> Header:
        """Read and verify only the header. Errors: LedgerError."""
        return cls._without_entries(Path(path), _lines(Path(path), 0)).header

    @classmethod
    def so_far(cls, path: str | os.PathLike[str]) -> "Ledger":
        """Read a ledger that another process may be writing, without an incomplete last line. Errors: as `read`."""
        return cls._read(Path(path))[0]

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> "Ledger":
        """Read a ledger for appending, after removing an incomplete last line. Errors: as `read`."""
        ledger, unfinished = cls._read(Path(path))
        if unfinished:
            ledger._cut_unfinished_line()
        return ledger

    @classmethod
    def _read(cls, path: Path) -> "tuple[Ledger, bool]":
        """Return the ledger of the complete lines, and True if an incomplete line follows."""
        lines = _lines(path, 0)
        ledger = cls._without_entries(path, lines)
        return ledger, ledger._take_lines(lines)

    @classmethod
    def _without_entries(cls, path: Path, lines: Iterator[bytes]) -> "Ledger":
        """Return the ledger of the first of these lines, its header."""
        first = next(lines, b"")
        if not first.endswith(b"\n"):
            fault = "the header is incomplete" if first else "the file is empty"
            advice = "Restore it from a copy, or remove it if nothing was charged."
            raise TruncatedLedger(f"{path}, line 1: {fault}. {advice}")
        return cls(path, *_read_header(path, first), len(first))

    def catch_up(self) -> list[Entry]:
        """Read and return the entries that another process has written since the last read.

        The caller must hold the lock of all writers. So an incomplete last line is from a terminated process, and is
        removed.
        Errors: EditedLedger, LedgerError.
        """
        before = len(self.entries)
        if self._take_lines(_lines(self.path, self._size)):
            self._cut_unfinished_line()
        return self.entries[before:]

    def refresh(self) -> None:
        """Read the complete lines that other processes have written since the last read, without a lock. Errors:
        LedgerError.
        """
        self._take_lines(_lines(self.path, self._size))

    def _take_lines(self, lines: Iterable[bytes]) -> bool:
        """Append the entries of these lines to the ledger; return True if the last line is incomplete."""
        for line in lines:
            if not line.endswith(b"\n"):
                return True
            number = len(self.entries) + 2
            record, chain = parsed_line(self.path, number, line, self._chain)
            try:
                entry = self._reader.read(record)
            except AccountingError as error:
                raise EditedLedger(f"{self.path}, line {number}: {error}") from None
            if error_text := placement_error(self.header, entry):
                raise EditedLedger(f"{self.path}, line {number}: {error_text}")
            self.entries.append(entry)
            self._chain, self._size = chain, self._size + len(line)
            self._heads += bytes.fromhex(chain)
        return False

    def _cut_unfinished_line(self) -> None:
        try:
            regular_file.truncate_file(self.path, self._size)
        except OSError as error:
            raise LedgerError(f"{self.path}: its incomplete last line cannot be removed ({error}).") from error

    def record(self, entry: Entry) -> None:
        """Append one entry and flush it to disk. A release may be published only after this call returns.

        Errors: LedgerError if writing fails (full disk), with the file restored to its previous state; LedgerError for
        an entry that states less noise than its mechanism is charged with, for a second line of a schedule's round
        without the nonce of the first, and for a round of a schedule after which no epsilon would be known.
        """
        self.record_all([entry])

    def record_all(self, entries: Iterable[Entry]) -> None:
        """Append several entries, either all or none, and flush them to disk. Errors: LedgerError."""
        new, lines, chain, heads = list(entries), [], self._chain, bytearray()
        if not new:
            return
        released = self.released_rounds
        self._released = None  # computed again from the file's lines unless all new lines are written
        for entry in new:
            error_text = placement_error(self.header, entry) or noise_error(entry)
            if isinstance(entry, Release) and error_text is None:
                error_text = released.refusal(entry.mechanism, entry.round, entry.nonce)
            if error_text:
                raise LedgerError(f"{self.path}, round {entry.round}: {error_text}")
            _add_entry(released, entry)
            line, chain = chained_line(entry.to_dict(), chain)
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
        if not _revoked_nonces(new):
            self._released, self._lines_released = released, len(self.entries)

    def mechanism(self) -> Composed | None:
        """Return the composition that dominates all releases; None before the first one. Rounds of schedules are taken
        by their numbers (`mechanisms.stream_rounds`).

        Errors: LedgerError for unit "record", where each client has a separate composition (`histories`);
        UnsupportedMechanism for releases without a joint account.
        """
        if self.header.unit == "record":
            raise LedgerError(
                f"{self.path}: unit is 'record', so each client has a separate mechanism. Use histories()."
            )
        try:
            return self.released_rounds.composition() if self.released_rounds else None
        except UnsupportedMechanism as error:
            raise UnsupportedMechanism(f"{self.path}: {error}") from None

    def histories(self) -> Histories:
        """Return the composition of releases of each client about its records."""
        histories = Histories()
        for release in self.releases:
            if isinstance(release, LocalRelease):
                histories.add(release.steps)
        return histories

    def charged(self, delta: float, *, accountant: Accountant = "best") -> Composed | None:
        """Return the composition of all releases; for unit "record" that of the client with the largest epsilon.

        This is the mechanism of `if_fixed_in_advance`. Returns None before the first release.
        """
        if self.header.unit == "record":
            return worst_composition(self.histories().distinct(), delta=delta, accountant=accountant)
        return self.mechanism()

    def guarantee(
        self,
        delta: float,
        *,
        accountant: Accountant = "best",
        units: int | None = None,
        with_lower_bound: bool = True,
    ) -> Guarantee:
        """Return the guarantee at `delta` that holds for any stopping rule of the run.

        Claim: epsilon is an upper bound for what ran if every release was recorded. If all planned rounds were
        released, it is the epsilon of the releases. If fewer were released, it is the smaller of the plan's and the
        budget's epsilon in the header (`ledger.planned`); a project's ledger has a budget. For a ledger without a plan
        (version 0.2), or a project whose budget does not cover its lines, it is the epsilon of the releases, with its
        condition in the notes. Unit and `units`: as for
        `if_fixed_in_advance`.
        """
        lines = self.if_fixed_in_advance(delta, accountant=accountant, units=units, with_lower_bound=with_lower_bound)
        released = self.releases
        if not released:
            return lines
        record_level = self.header.unit == "record"
        budget = budget_of_project(self.header.about)
        if budget is not None and not budget_covers(self.header.about["project"], self.entries):
            budget = None
        return statement(
            lines,
            budget or self.header.plan,
            [one.round for one in released],
            aborted=[one.round for one in self.entries_in_force if isinstance(one, Aborted)],
            repeated=_repeated(released),
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

        Claim: epsilon is an upper bound for what ran if every release was recorded, and if number and kind of the
        releases were fixed before the first result was seen.

        Claim for unit "record": if one record of any client is added or removed, all messages of this client are
        (epsilon, delta)-indistinguishable. Epsilon is the largest over clients. The sampling probabilities of records,
        the numbers of steps and the participants count as public.

        units: number of records for unit "record", so that a delta above 1/units gets a note.
        """
        record_level = self.header.unit == "record"
        units = units if record_level else self.header.clients
        mechanism = self.charged(delta, accountant=accountant)
        if mechanism is None:
            return Guarantee(
                epsilon=0.0, delta=delta, unit=self.header.unit, adjacency="any", sampling="none", method="none",
                lower_bound=0.0,
                notes=("nothing was released", *delta_note(delta, units=units, unit=self.header.unit)),
            )  # fmt: skip
        stated = guarantee(
            mechanism,
            delta=delta,
            accountant=accountant,
            unit=self.header.unit,
            units=units,
            with_lower_bound=with_lower_bound and self.released_rounds.is_exact,
        )
        if not record_level:
            return stated
        steps = sum(count for _, count in mechanism.parts)
        if len(self.histories().distinct()) > 1:  # at other deltas another client may have the largest epsilon
            stated = replace(stated, mechanism=None)
        return replace(
            stated,
            notes=(*stated.notes, f"epsilon is that of the client with the largest epsilon, which made {steps} steps"),
        )


def _revoked_nonces(entries: Iterable[Entry]) -> set[str]:
    return {entry.nonce for entry in entries if isinstance(entry, Aborted) and entry.nonce is not None}


def _repeated(released: Iterable[Release | LocalRelease]) -> list[tuple[int, SingleRelease]]:
    """Return (round, mechanism) of the releases of all clients that repeat the round of an earlier one."""
    known: set[int] = set()
    found = []
    for one in released:
        if isinstance(one, Release) and one.round in known:
            found.append((one.round, one.mechanism))
        known.add(one.round)
    return found


def _add_entry(released: ReleasedRounds, entry: Entry) -> None:
    if isinstance(entry, Release):
        released.add(entry.mechanism, entry.round, entry.nonce)
    elif isinstance(entry, Aborted) and entry.noise_drawn:
        released.add_drawn(entry.round)


def _lines(path: Path, start: int) -> Iterator[bytes]:
    """Yield the lines from byte `start`, each with its line end. Errors: LedgerError."""
    try:
        with open_input(path) as file:
            if file.seek(0, os.SEEK_END) < start:
                raise EditedLedger(f"{path}: the file is shorter than at the last read. Restore it from a copy.")
            file.seek(start)
            for number in itertools.count(1):
                line = file.readline(LONGEST_LINE)
                if len(line) == LONGEST_LINE:
                    raise EditedLedger(f"{path}: line {number} after byte {start} has more than {LONGEST_LINE} bytes.")
                if not line:
                    return
                yield line
    except OSError as error:
        raise LedgerError(f"{path}: the ledger cannot be read ({error}).") from error


def _read_header(path: Path, line: bytes) -> tuple[Header, str]:
    try:
        version = json.loads(line).get("version")
    except (ValueError, AttributeError, RecursionError):
        raise EditedLedger(f"{path}, line 1: not a ledger header.") from None
    if version != VERSION:
        raise LedgerVersionError(
            f"{path}: ledger version {version!r}; this package reads version {VERSION}. Use the package version that "
            "wrote the ledger."
        )
    record, chain = parsed_line(path, 1, line, "")
    try:
        return header_from(record), chain
    except AccountingError as error:
        raise EditedLedger(f"{path}, line 1: {error}") from None
