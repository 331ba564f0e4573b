"""Copies of a ledger with its head and keys: made while a run continues, restored only if no release is then missing.

A ledger that is restored from an older copy lacks every release since, so its epsilon would be too small. `restore`
therefore refuses a copy that is behind anything it can see, and otherwise requires the last head, or the operator's
statement that nothing was released since.
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
"""Seconds to wait for a process that is writing."""
_LARGEST = 1 << 33
_KEYS = ("{}.key", "population.key")
"""Names of files beside a ledger that hold the key of its population's fingerprint: of a project, of a run."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Copy of a ledger: its file, the number of its entries, and the hash of its last line."""

    path: Path
    entries: int
    head: str


def backup(path: Path, folder: Path) -> Copied:
    """Copy the ledger at `path`, its head and its keys to a folder, consistently while a run appends to it.

    The head is read before the ledger, so that the copy has its line; a last line that is not yet whole is left out,
    since its release waits for it. An earlier copy in the folder is replaced only if the new one continues it. Errors:
    LedgerError.
    """
    head = kept_head.read(path)
    data = _whole_lines(path)
    folder.mkdir(parents=True, exist_ok=True)
    partial, target = folder / f"{path.name}.partial", folder / path.name
    _write_file(partial, data)
    copy = Ledger.read(partial)
    kept_head.check(copy, head, needed=bool(copy.header.about.get("head_kept")))
    if target.exists() and not data.startswith(earlier := _whole_lines(target)):
        raise LedgerError(
            f"{target}: holds {len(earlier):,} bytes that {path} does not begin with, so it is a copy of another "
            "ledger, or lines of this one are gone. Name another folder."
        )
    for key in _keys_of(path):
        _write_file(folder / key.name, key.read_bytes(), mode=0o600)
    partial.replace(target)
    kept_head.write(target, copy.head)
    return Copied(path=target, entries=len(copy.entries), head=copy.head)


def restore(copy: Path, path: Path, *, last_head: str | None = None, nothing_since: bool = False) -> Copied:
    """Put a copy back to `path`, with its head and its keys.

    last_head: the newest head that was published or signed; the copy must end with it
    nothing_since: the operator's word that nothing was released after the copy, where there is no such head

    Claim: the restored ledger has every line of the ledger and the head that are at `path` now, and ends with
    `last_head`. Errors: LedgerError where it would not, or where neither is given.
    """
    with _held(path):
        return _restored(copy, path, last_head, nothing_since)


def _restored(copy: Path, path: Path, last_head: str | None, nothing_since: bool) -> Copied:
    kept_head.check(found := Ledger.read(copy), kept_head.read(copy), needed=False)
    data = _whole_lines(copy)
    if path.exists() and not data.startswith(there := _whole_lines(path)):
        raise LedgerError(
            f"{path}: has lines that {copy} does not have ({len(there):,} bytes against {len(data):,}). Restoring it "
            "would forget what was released. Keep the file, or a newer copy."
        )
    kept = kept_head.read(path)
    if kept is not None and found.entries_after(kept) is None:
        raise LedgerError(
            f"{copy}: has no line of hash {kept[:12]}..., which {kept_head.path_of(path)} names as the last one: it is "
            "older. Restoring it would forget what was released since. Restore a newer copy."
        )
    if last_head is not None and found.head != last_head:
        raise LedgerError(
            f"{copy}: ends with {found.head[:12]}..., not with the head given, {last_head[:12]}.... Restore the copy "
            "that does; what was released since would be forgotten."
        )
    if last_head is None and not nothing_since and kept != found.head:
        raise LedgerError(
            f"{copy}: nothing shows that it is the newest copy, and a release that it lacks would be forgotten. Give "
            "the last head that was published (--head), or say that nothing was released since (--nothing-since). If "
            "something was, treat the budget as spent."
        )
    for key in _keys_of(copy):
        name = f"{path.name}.key" if key.name == f"{copy.name}.key" else key.name
        if not (path.parent / name).exists():
            _write_file(path.parent / name, key.read_bytes(), mode=0o600)
    kept_head.write(path, found.head)  # before the ledger: an interrupted restore is found, not taken for a whole one
    _write_file(path, data)
    if not found.header.about.get("head_kept"):
        kept_head.path_of(path).unlink()
    return Copied(path=path, entries=len(found.entries), head=found.head)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold the lock of the ledger's writers, where they have one: a release that is charged meanwhile would be lost."""
    lock = path.with_name(f"{path.name}.lock")
    if not lock.exists():
        yield
        return
    try:
        with FileLock(lock, timeout=PATIENCE):
            yield
    except Timeout:
        raise LedgerError(
            f"{lock}: another process has held the ledger for {PATIENCE:g} s. Nothing was restored; end that process."
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
        regular_file.put(path, data, mode=mode)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written ({error}). Free space or name another folder.") from error
