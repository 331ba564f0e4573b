"""Backups of a ledger with its head and keys, made while a run continues and restored only if no release is missing.

A ledger restored from an older copy would lack all later releases, so its epsilon would be too small. `restore`
therefore rejects a copy that is older than the ledger or the head on disk. Otherwise it requires the last head, or the
operator's statement that nothing was released after the copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from accounting.errors import LedgerError
from accounting.ledger import kept_head, regular_file
from accounting.ledger.file import Ledger

PATIENCE = 60.0
"""Seconds to wait for another process that holds the lock."""
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
    head = kept_head.read(path)
    data = _whole_lines(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"{folder}: is no folder and cannot be made one ({error.strerror}). Name a folder.") from None
    partial, target = folder / f"{path.name}.partial", folder / path.name
    _write_file(partial, data)
    copy = Ledger.read(partial)
    kept_head.check(copy, head, needed=bool(copy.header.about.get("head_kept")))
    if target.exists() and not data.startswith(earlier := _whole_lines(target)):
        raise LedgerError(
            f"{target}: holds {len(earlier):,} bytes that {path} does not begin with, so it is a copy of another "
            f"ledger, or lines of {path} are missing. Use another folder."
        )
    for key in _keys_of(path):
        _write_file(folder / key.name, key.read_bytes(), mode=0o600)
    partial.replace(target)
    kept_head.write(target, copy.head)
    return LedgerCopy(path=target, entries=len(copy.entries), head=copy.head)


def restore(copy: Path, path: Path, *, last_head: str | None = None, nothing_since: bool = False) -> LedgerCopy:
    """Restore a copy to `path`, with its head and its keys.

    last_head: the newest head that was published or signed; the copy must end with this head
    nothing_since: the operator's statement that nothing was released after the copy, if there is no such head

    Claim: the restored ledger contains every line of the ledger now at `path`, and the line of its head, and ends with
    `last_head`.
    Errors: LedgerError if the claim would not hold, or if nothing shows that the copy is the newest.
    """
    with _lock_held(path):
        return _restored(copy, path, last_head, nothing_since)


def _restored(copy: Path, path: Path, last_head: str | None, nothing_since: bool) -> LedgerCopy:
    kept_head.check(found := Ledger.read(copy), kept_head.read(copy), needed=False)
    data = _whole_lines(copy)
    if path.exists() and not data.startswith(there := _whole_lines(path)):
        raise LedgerError(
            f"{path}: has lines that {copy} does not have ({len(there):,} bytes against {len(data):,}). Restoring the "
            "copy would omit releases. Keep the file, or restore a newer copy."
        )
    kept = kept_head.read(path)
    if kept is not None and found.entries_after(kept) is None:
        raise LedgerError(
            f"{copy}: has no line of hash {kept[:12]}..., which {kept_head.path_of(path)} names as the last line: the "
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
    kept_head.write(path, found.head)  # before the ledger, so that an interrupted restore is detected
    _write_file(path, data)
    if not found.header.about.get("head_kept"):
        kept_head.path_of(path).unlink()
    return LedgerCopy(path=path, entries=len(found.entries), head=found.head)


@contextmanager
def _lock_held(path: Path) -> Iterator[None]:
    """Hold the writers' lock, if the ledger has one, so that no release is charged during the restore."""
    lock = path.with_name(f"{path.name}.lock")
    if not lock.exists():
        yield
        return
    try:
        with FileLock(lock, timeout=PATIENCE):
            yield
    except Timeout:
        raise LedgerError(
            f"{lock}: another process has held the ledger's lock for {PATIENCE:g} s. Nothing was restored; end that "
            "process."
        ) from None


def _whole_lines(path: Path) -> bytes:
    try:
        data = regular_file.read_input(path, at_most=_LARGEST)
    except OSError as error:
        raise LedgerError(f"{path}: the ledger cannot be read ({error}).") from error
    return data[: data.rfind(b"\n") + 1]


def _keys_of(path: Path) -> list[Path]:
    return [key for name in _KEYS if (key := path.with_name(name.format(path.name))).is_file()]


def _write_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    try:
        regular_file.replace_content(path, data, mode=mode)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written ({error}). Free space or name another folder.") from error
