"""Regular files in folders that others may have filled: opened without waiting, read up to a limit, written durably.

Durably: the bytes are on the disk when the call returns, or not in the file at all.
"""

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from accounting.errors import LedgerError

LARGEST_CONFIGURATION = 2**20
"""Most bytes of a TOML file: a run's or an experiment's."""

LARGEST_DOCUMENT = 2**26
"""Most bytes of a file that is one JSON object: summary.json, sweep.json."""

LARGEST_LINES = 2**31
"""Most bytes of a JSON-lines file: metrics.jsonl, diagnostics.jsonl, canaries.jsonl."""

LARGEST_ARRAYS = 2**36
"""Most bytes of a safetensors file."""

DIGITS = re.compile(r"[0-9a-f]{64}")
"""Hash of a line or a key, of 32 bytes."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_input(path: str | os.PathLike[str], *, at_most: int | None = None) -> BinaryIO:
    """Return the regular file at `path`, or at the end of its link, for reading.

    Never waits: a FIFO is opened without a writer, then rejected. Errors: OSError for anything but a regular file (a
    FIFO would wait for a writer, a device never ends), and for more than `at_most` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = _require_regular(descriptor).st_size
        if at_most is not None and size > at_most:
            raise OSError(errno.EFBIG, f"has {size:,} bytes, at most {at_most:,} are read")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_output(path: str | os.PathLike[str], how: int, *, mode: int = 0o666) -> int:
    """Return the descriptor of the regular file at `path`, new or not, for writing; `how`: O_TRUNC, O_APPEND ...

    Never waits. Errors: OSError, as `open_input`.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | how, mode)
    try:
        _require_regular(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(descriptor: int) -> os.stat_result:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"is {kind}, only regular files are used")
    return found


def require_input(path: str | os.PathLike[str], *, at_most: int) -> None:
    """Raise OSError unless `open_input` opens it: for libraries that open a file by its name."""
    open_input(path, at_most=at_most).close()


def read_input(path: str | os.PathLike[str], *, at_most: int) -> bytes:
    """Return the whole of a regular file of up to `at_most` bytes. Errors: OSError."""
    with open_input(path, at_most=at_most) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # not more, should it grow


def read_text(path: Path, *, at_most: int) -> str:
    """Return the text of a regular file of up to `at_most` bytes. Errors: OSError, UnicodeDecodeError."""
    return read_input(path, at_most=at_most).decode("utf-8")


def create(path: Path, data: bytes) -> None:
    """Create a new file of these bytes. Errors: FileExistsError, OSError."""
    with open(path, "xb") as file:
        write_through(file.fileno(), data)
    sync_folder(path.parent)


def append(path: Path, data: bytes, *, at: int) -> None:
    """Append bytes after the first `at`, which must be the whole file. Errors: OSError, with the file as it was."""
    with open(path, "ab") as file:
        if file.tell() != at:
            raise OSError(f"it has {file.tell()} bytes, {at} were known: another process writes to it")
        try:
            write_through(file.fileno(), data)
        except OSError:
            os.ftruncate(file.fileno(), at)
            raise


def put(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace the content of `path` by `content`, durably; until then it holds the old content. Errors: OSError.

    Written to a file beside it, forced to the disk, renamed, and the renaming forced to the disk as well.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        descriptor = open_output(part, os.O_TRUNC | os.O_NOFOLLOW, mode=mode)
        try:
            write_through(descriptor, content)
        finally:
            os.close(descriptor)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def cut(path: Path, size: int) -> None:
    """Keep only the first `size` bytes. Errors: OSError."""
    with open(path, "r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def write_through(descriptor: int, data: bytes) -> None:
    """Write all of `data` and force it to the disk. Errors: OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Force the list of a folder's files to the disk. Errors: OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_digits(path: Path, *, at_fault: str) -> str | None:
    """Return the 64 hexadecimal digits that are all of a file; None if there is none. Errors: LedgerError."""
    try:
        with open_input(path) as file:
            text = file.read(66).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error}).") from error
    if not DIGITS.fullmatch(text):
        raise LedgerError(f"{path}: {at_fault}. Restore it from a copy.")
    return text
