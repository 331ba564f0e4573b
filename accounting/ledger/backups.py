"""Head file of a ledger, and backups of a ledger with its head and keys.

The head file PATH.head stores the hash of the last line, so that missing last lines are detected. It is written after
every append. After a crash between the two writes, the ledger may have lines beyond the head, but never lacks the
head's line. The check detects a truncated or replaced ledger, unless the head was replaced as well.

Backups are made while a run continues. A ledger restored from an older copy would lack all later releases, so its
epsilon would be too small. `restore` therefore rejects a copy that is older than the ledger or the head on disk.
Otherwise it requires the last head, or the operator's statement that nothing was released after the copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from accounting.errors import LedgerError
from accounting.ledger import regular_file
from accounting.ledger.file import Ledger


def head_path(ledger: Path) -> Path:
    """Return the path of the head file of a ledger."""
    return ledger.parent / f"{ledger.name}.head"


def read_head(ledger: Path) -> str | None:
    """Return the stored head; None if there is no head file. It must be read before the ledger, to which other
    processes may append.
    Errors: LedgerError.
    """
    return regular_file.read_digits(head_path(ledger), at_fault="holds no hash of a ledger's line")


def write_head(ledger: Path, head: str) -> None:
    """Store this head durably. Errors: LedgerError."""
    path = head_path(ledger)
    try:
        regular_file.replace_content(path, f"{head}\n".encode())
    except OSError as error:
        raise LedgerError(
            f"{path}: cannot be written ({error}). Nothing was released; free space or fix the folder, then resume."
        ) from error


def write_first_head(ledger: Path, head: str) -> None:
    """Store the head of a ledger that is being created. Errors: LedgerError if there is a head of a later line."""
    if read_head(ledger) not in (None, head):  # an interrupted creation left this head
        raise LedgerError(
            f"{ledger}: is missing, but {head_path(ledger).name} names a line of it: a new ledger would forget its "
            "releases. Restore it from a copy, or remove that file if nothing was charged."
        )
    write_head(ledger, head)


def is_head(text: str) -> bool:
    """Return True if the text has the format of a hash."""
    return regular_file.DIGITS.fullmatch(text) is not None


def entries_after(ledger: Ledger, head: str) -> int:
    """Return the number of entries after the line with this hash. Errors: LedgerError if no line has it."""
    later_entries = ledger.entries_after(head)
    if later_entries is None:
        raise LedgerError(
            f"{ledger.path}: has no line of hash {head[:12]}...: earlier lines were changed or are missing, or the "
            "hash belongs to another ledger. Restore the file from a copy."
        )
    return later_entries


def check_head(ledger: Ledger, head: str | None, *, needed: bool) -> None:
    """Raise LedgerError if the ledger lacks the line of this head, or if the head is missing and `needed`."""
    path = head_path(ledger.path)
    if head is None:
        if needed:
            raise LedgerError(
                f"{path}: the head is missing, so lines of {ledger.path} may be missing, too. Restore both from a copy."
            )
    elif ledger.entries_after(head) is None:
        raise LedgerError(
            f"{ledger.path}: has no line of hash {head[:12]}..., which {path.name} names as its last line. Lines are "
            "missing, or the ledger was replaced, so releases may be missing. Restore it from a copy."
        )


PATIENCE = 60.0
"""Seconds to wait for another process that holds the lock."""
_RETRY_SECONDS = 0.002
"""Seconds between two attempts to acquire a lock."""
_LARGEST = 1 << 33
_KEYS = ("{}.key", "population.key")
"""File names of the key for fingerprints of the population, beside the ledger of a project and of a run."""


@dataclass(frozen=True, kw_only=True)
class LedgerCopy:
    """Result of a backup or a restore: path of the ledger, number of its entries, and hash of its last line."""

    path: Path
    entries: int
    head: str


def backup(path: Path, folder: Path) -> LedgerCopy:
    """Copy the ledger at `path`, its head and its keys to a folder; the copy is consistent even while a run appends.

    The head is read before the ledger, so that the copy contains the head's line. An incomplete last line is left out,
    because its release waits until the line is complete. An earlier copy in the folder is replaced only if the new copy
    continues it.
    Errors: LedgerError.
    """
    path = regular_file.one_path(path)
    head, source = read_head(path), Ledger.so_far(path)
    check_head(source, head, needed=bool(source.header.about.get("head_kept")))
    data = _whole_lines(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"{folder}: is no folder and cannot be made one ({error.strerror}). Name a folder.") from None
    partial, target = folder / f"{path.name}.partial", folder / path.name
    if target.exists() and target.samefile(path):
        raise LedgerError(f"{folder}: is the folder of the ledger, where a copy would replace it. Use another folder.")
    _write_file(partial, data)
    copy = Ledger.read(partial)
    if target.exists() and not data.startswith(earlier := _whole_lines(target)):
        raise LedgerError(
            f"{target}: holds {len(earlier):,} bytes that {path} does not begin with, so it is a copy of another "
            f"ledger, or lines of {path} are missing. Use another folder."
        )
    for key in _keys_of(path):
        _write_file(folder / key.name, key.read_bytes(), mode=0o600)
    partial.replace(target)
    write_head(target, copy.head)
    return LedgerCopy(path=target, entries=len(copy.entries), head=copy.head)


def restore(copy: Path, path: Path, *, last_head: str | None = None, nothing_since: bool = False) -> LedgerCopy:
    """Restore a copy to `path`, with its head and its keys.

    last_head: the newest head that was published or signed; the copy must end with this head
    nothing_since: the operator's statement that nothing was released after the copy, if there is no such head

    Claim: the restored ledger contains every line of the ledger now at `path`, and the line of its head, and ends with
    `last_head`.
    Errors: LedgerError if the claim would not hold, or if nothing shows that the copy is the newest.
    """
    copy, path = regular_file.one_path(copy), regular_file.one_path(path)
    lock = path.parent / f"{path.name}.lock"  # of the writers, so that no release is charged meanwhile
    with lock_held(FileLock(lock), "restored", seconds=PATIENCE) if lock.exists() else nullcontext():
        return _restored(copy, path, last_head, nothing_since)


def _restored(copy: Path, path: Path, last_head: str | None, nothing_since: bool) -> LedgerCopy:
    check_head(found := Ledger.read(copy), read_head(copy), needed=False)
    data = _whole_lines(copy)
    if path.exists() and not data.startswith(there := _whole_lines(path)):
        raise LedgerError(
            f"{path}: has lines that {copy} does not have ({len(there):,} bytes against {len(data):,}). Restoring the "
            "copy would omit releases. Keep the file, or restore a newer copy."
        )
    kept = read_head(path)
    if kept is not None and found.entries_after(kept) is None:
        raise LedgerError(
            f"{copy}: has no line of hash {kept[:12]}..., which {head_path(path)} names as the last line: the "
            "copy is older. Restoring it would omit later releases. Restore a newer copy."
        )
    if last_head is not None and found.head != last_head:
        raise LedgerError(
            f"{copy}: ends with {found.head[:12]}..., not with the head given, {last_head[:12]}.... Restore the copy "
            "that ends with this head; any other copy omits releases."
        )
    if last_head is None and not nothing_since and kept != found.head:
        raise LedgerError(
            f"{copy}: nothing shows that this is the newest copy, and an older copy omits releases. Give the last "
            "published head (--head), or state that nothing was released after the copy (--nothing-since). If "
            "something was released, treat the budget as spent."
        )
    for key in _keys_of(copy):
        name = f"{path.name}.key" if key.name == f"{copy.name}.key" else key.name
        if not (path.parent / name).exists():
            _write_file(path.parent / name, key.read_bytes(), mode=0o600)
    write_head(path, found.head)  # before the ledger, so that an interrupted restore is detected
    _write_file(path, data)
    if not {"head_kept", "plan"} & found.header.about.keys():  # a run does not keep it, and it would stay at this line
        head_path(path).unlink()
    return LedgerCopy(path=path, entries=len(found.entries), head=found.head)


@contextmanager
def lock_held(lock: FileLock, done: str, *, seconds: float) -> Iterator[None]:
    """Hold the lock inside the context. Errors: LedgerError, which says that nothing was `done`."""
    try:
        regular_file.require_locks(Path(lock.lock_file))
        lock.acquire(timeout=seconds, poll_interval=_RETRY_SECONDS)
    except Timeout:
        raise LedgerError(
            f"{lock.lock_file}: another process has held the lock for {seconds:g} s. Nothing was {done}; end that "
            "process or try again."
        ) from None
    except OSError as error:
        raise LedgerError(f"{lock.lock_file}: cannot be locked ({error}). Nothing was {done}.") from error
    try:
        yield
    finally:
        lock.release()


def _whole_lines(path: Path) -> bytes:
    try:
        data = regular_file.read_input(path, at_most=_LARGEST)
    except OSError as error:
        raise LedgerError(f"{path}: the ledger cannot be read ({error}).") from error
    return data[: data.rfind(b"\n") + 1]


def _keys_of(path: Path) -> list[Path]:
    return [key for name in _KEYS if (key := path.parent / name.format(path.name)).is_file()]


def _write_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    try:
        regular_file.replace_content(path, data, mode=mode)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written ({error}). Free space or name another folder.") from error
