"""The ledger of a custom training loop, and its other files in the same folder.

l.jsonl              releases; each line is on the disk before the release is returned
l.jsonl.head         hash of the ledger's last line, by which missing lines are detected
l.jsonl.lock         locked while a line is written
l.jsonl.key          secret key of the clients' fingerprint, if clients have names
l.diagnostics.jsonl  cohorts, clip counts and noise; no epsilon covers them, so they are for the operator and audits
only
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from accounting.cohorts import NamedClients
from accounting.ledger import Entry, Header, Ledger, backups, regular_file
from accounting.ledger.regular_file import LARGEST_LINES, one_path, read_text
from dpfed.errors import RunError
from dpfed.records.round import RoundRecord
from dpfed.runs import durable_files
from dpfed.runs.book import has_incomplete_header

PATIENCE = 10.0
"""Seconds to wait for another process that has locked the ledger."""


def delta_of_old_ledger(ledger: Path) -> float | None:
    """Return the delta in the header of a ledger of version 0.2, whose plan omits a default delta; else None.

    Raises LedgerError if the header cannot be read.
    """
    if not ledger.exists() or has_incomplete_header(ledger):
        return None
    about: Any = Ledger.header_of(ledger).about
    plan = about.get("plan")
    delta = None if not isinstance(plan, Mapping) or "delta" in plan.get("privacy", {}) else about.get("delta")
    return delta if isinstance(delta, float) else None


def resolved_path(ledger: str | os.PathLike[str]) -> Path:
    """Return the path of a ledger without symbolic links, and make its folder. Raises RunError if that fails."""
    path = one_path(ledger)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path}: its folder cannot be made ({error.strerror}).") from None
    return path


def diagnostics_file(ledger: Path) -> Path:
    """Return the path of the diagnostics file that belongs to a ledger."""
    return ledger.with_name(f"{ledger.stem}.diagnostics.jsonl")


def client_ids_file(ledger: Path) -> Path:
    """Return the path of the client id file of a ledger; it exists if lanes or turns are derived from client ids."""
    return ledger.with_name(f"{ledger.stem}.client_ids.json")


class LoopBook:
    """Charges of one custom training loop.

    It is an error if another process has written to the ledger meanwhile: two loops with one ledger would draw the same
    rounds.
    """

    def __init__(self, ledger: Ledger, lock: FileLock) -> None:
        self.ledger, self._lock = ledger, lock
        self._written: Entry | None = None

    @classmethod
    def open(cls, path: Path, header: Header) -> LoopBook:
        """Open a new ledger, or an existing ledger of this plan. Raises RunError or LedgerError for any other file."""
        path = resolved_path(path)
        lock = FileLock(f"{path}.lock")
        with backups.lock_held(lock, "charged", seconds=PATIENCE):
            kept = backups.read_head(path)
            if not path.exists() or has_incomplete_header(path):
                if kept is not None:
                    raise RunError(
                        f"{path}: is missing, or cut off in its first line, but {backups.head_path(path).name} names a "
                        "line of it: its releases would be forgotten. Restore it from a copy (`dpfed ledger restore`), "
                        "or give the path of a new ledger."
                    )
                path.unlink(missing_ok=True)  # of a process that ended while it created the ledger
                book = cls(Ledger.create(path, header), lock)
                backups.write_head(path, book.ledger.head)
                return book
            ledger = Ledger.resume(path)
            backups.check_head(ledger, kept, needed=bool(ledger.entries))  # a ledger is created before its head
            backups.write_head(path, ledger.head)
        _check_header(path, ledger.header, header)
        _drop_unfinished(diagnostics_file(path))
        return cls(ledger, lock)

    @property
    def rounds_done(self) -> int:
        """Number of rounds in the ledger. No round is repeated, so its noise is never drawn twice."""
        return max((entry.round + 1 for entry in self.ledger.entries), default=0)

    def is_last_charge(self, number: int) -> bool:
        """Return True if the last charge of this process was for round `number`.

        A step that failed after this charge may be repeated.
        """
        return self._written is not None and self._written.round == number

    def record(self, entry: Entry) -> None:
        """Write the line of a round and return when it is on the disk; do nothing if the last written line is equal."""
        if entry == self._written:
            return
        with backups.lock_held(self._lock, "charged", seconds=PATIENCE):
            if self.ledger.catch_up():
                raise RunError(
                    f"{self.ledger.path}: another process has written to this ledger meanwhile. The round was not "
                    "released; end one of the two loops, and give each its own ledger."
                )
            self.ledger.record(entry)
            backups.write_head(self.ledger.path, self.ledger.head)
            self._written = entry

    def note_ids(self, ids: NamedClients) -> None:
        """Write the client ids from which lanes or turns are derived, for the operator and audits."""
        file = client_ids_file(self.ledger.path)
        try:
            durable_files.put(file, ids.to_json())
        except OSError as error:
            raise RunError(f"{file}: cannot be written ({error.strerror}).") from None

    def note_diagnostics(self, record: RoundRecord) -> None:
        """Append a round's line to the diagnostics file."""
        file = diagnostics_file(self.ledger.path)
        try:
            durable_files.append(file, (json.dumps(record.to_dict(), allow_nan=False) + "\n").encode(), mode=0o600)
        except OSError as error:
            raise RunError(f"{file}: cannot be written ({error.strerror}). The round is charged.") from None


def fingerprint_of_names(path: Path, names: Sequence[str], *, new: bytes | None) -> str:
    """Return the keyed fingerprint of the clients' names in their order; the ledger's key file has the key.

    Without the key the fingerprint does not reveal the names.

    new: key of a new ledger; None if it is drawn from the operating system's randomness
    """
    key = durable_files.kept_key(
        path.with_name(f"{path.name}.key"),
        lambda: new or regular_file.new_key(),
        has_begun=lambda: path.exists() or backups.head_path(path).exists(),
    )
    return hmac.new(key, json.dumps(["dpfed-names-1", *names]).encode(), "sha256").hexdigest()


def _check_header(path: Path, there: Header, header: Header) -> None:
    """Raise RunError if the ledger belongs to another plan, or to other clients."""
    if "plan" not in there.about:
        raise RunError(f"{path}: is not the ledger of a dpfed.ClientLevel. Give the path of a new ledger.")
    before, now = _shared_plan(there), _shared_plan(header)
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if keys:
        different = [f"{key} was {before.get(key, 'not given')}, is {now.get(key, 'not given')}" for key in keys]
        raise RunError(
            f"{path}: is the ledger of another plan: {'; '.join(different)}. Use the plan that it began with, or give "
            "the path of a new ledger."
        )
    then, later = (one.about["plan"]["federation"].get("rounds", 0) for one in (there, header))
    if later > then and "epsilon" not in header.about["plan"]["privacy"]:
        raise RunError(
            f"{path}: rounds={later} for a ledger that began with rounds={then} and without epsilon: its length would "
            "depend on its results, which no epsilon covers. Give the path of a new ledger, and both noise_multiplier "
            "and epsilon from the start: within that budget a loop can be prolonged."
        )


def _shared_plan(header: Header) -> dict[str, object]:
    """Return the settings of a plan that must equal those of the loop that began the ledger.

    The number of rounds is one of them only if the noise was calibrated for it.
    """
    plan: Any = header.about["plan"]
    tables = {name: dict(plan.get(name, {})) for name in ("federation", "privacy", "run")}
    tables["privacy"].setdefault("delta", header.about.get("delta"))  # plans of version 0.2 omit a default delta
    if "noise_multiplier" in tables["privacy"]:
        tables["federation"].pop("rounds", None)
    return {
        **{key: value for table in tables.values() for key, value in table.items()},
        "clients": str(header.clients),
        "stages": str(header.about.get("stages")),
        "the names of clients": "none" if header.population is None else f"{header.population[:12]}... by PATH.key",
    }


def _drop_unfinished(file: Path) -> None:
    """Remove an incomplete last line, left by a crash, from the file."""
    try:
        text = read_text(file, at_most=LARGEST_LINES)
        if text and not text.endswith("\n"):
            durable_files.put(file, text[: text.rfind("\n") + 1].encode(), mode=0o600)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise RunError(f"{file}: cannot be read ({error}). Restore it from a copy.") from None
