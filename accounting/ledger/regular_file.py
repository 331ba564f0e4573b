"""Safe access to regular files in untrusted folders, and the secret key file of the operator.

Opening never blocks, reading has a size limit, writing is durable: when a call returns, all its bytes are on disk; if
it fails, none of them are in the file.

The key is for fingerprints of populations. A ledger may be published, and an unkeyed hash of private data would let an
attacker test guesses of the data. With a 256-bit key that only the operator has, the fingerprint reveals only whether
two runs with the same key have the same clients.
"""

import errno
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from accounting.errors import LedgerError

LARGEST_CONFIGURATION = 2**20
"""Largest size in bytes of a TOML file of a run or an experiment."""

LARGEST_DOCUMENT = 2**26
"""Largest size in bytes of a file with one JSON object: summary.json, sweep.json."""

LARGEST_LINES = 2**31
"""Largest size in bytes of a JSON-lines file: metrics.jsonl, diagnostics.jsonl, canaries.jsonl."""

LARGEST_ARRAYS = 2**36
"""Largest size in bytes of a safetensors file."""

DIGITS = re.compile(r"[0-9a-f]{64}")
"""Hash of a line, or a key, as 64 hexadecimal digits."""

_KIND_NAMES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK)


def require_locks(path: Path) -> None:
    """Raise OSError if the lock file at `path` cannot be locked because its file system has no locks.

    A lock that another process holds is no error. Without this check a lock that can never be had would be waited for.
    """
    try:
        import fcntl
    except ImportError:  # Windows, whose file systems have locks
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            words = "its file system has no locks (flock); put the file on a local disk, or on one with locks"
            raise OSError(error.errno, words) from None
    finally:
        os.close(descriptor)


def one_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a ledger without symbolic links; the given path if it has none.

    Its head, key and lock derive from this path, so that they are the same whichever link names the ledger.

    >>> one_path("/").as_posix()
    '/'
    """
    given = Path(path)
    found = Path(os.path.realpath(given))
    return given if found == given.absolute() else found


def open_input(path: str | os.PathLike[str], *, at_most: int | None = None) -> BinaryIO:
    """Open the regular file at `path` for reading; symbolic links are followed.

    The call never blocks, even on a FIFO without a writer.
    Errors: OSError for anything but a regular file (a FIFO would wait for a writer, a device may be endless), and for
    more than `at_most` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = _require_regular(os.fstat(descriptor)).st_size
        if at_most is not None and size > at_most:
            raise OSError(errno.EFBIG, f"has {size:,} bytes; the limit is {at_most:,}")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_output(path: str | os.PathLike[str], flags: int, *, mode: int = 0o666) -> int:
    """Open or create the regular file at `path` for writing, and return its descriptor. `flags`: O_TRUNC, O_APPEND ...

    The call never blocks.
    Errors: OSError, as `open_input`.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | flags, mode)
    try:
        _require_regular(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(status: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        kind = _KIND_NAMES.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"is {kind}; only regular files are allowed")
    return status


def require_input(path: str | os.PathLike[str], *, at_most: int) -> None:
    """Raise OSError unless `open_input` can open the file. This is a check before a library opens the file by name."""
    open_input(path, at_most=at_most).close()


def read_input(path: str | os.PathLike[str], *, at_most: int) -> bytes:
    """Return the content of a regular file of at most `at_most` bytes. Errors: OSError."""
    with open_input(path, at_most=at_most) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # no more bytes if the file grows meanwhile


def read_text(path: Path, *, at_most: int) -> str:
    """Return the UTF-8 text of a regular file of at most `at_most` bytes. Errors: OSError, UnicodeDecodeError."""
    return read_input(path, at_most=at_most).decode("utf-8")


def create(path: Path, data: bytes) -> None:
    """Create a file with these bytes, durably. Errors: FileExistsError; other OSErrors, without the file."""
    with open(path, "xb") as file:
        try:
            write_through(file.fileno(), data)
        except OSError:
            path.unlink()
            raise
    sync_folder(path.parent)


def append(path: Path, data: bytes, *, at: int) -> None:
    """Append bytes to a file of exactly `at` bytes, durably.

    Errors: OSError, with the file unchanged; also for a file with several hard links, because each of its names would
    have another head and lock, and charges could be forgotten.
    """
    with open(path, "ab") as file:
        if (names := os.fstat(file.fileno()).st_nlink) > 1:
            raise OSError(errno.EMLINK, f"it has {names} names (hard links); remove all but one")
        if file.tell() != at:
            raise OSError(f"it has {file.tell()} bytes instead of {at}: another process writes to it")
        try:
            write_through(file.fileno(), data)
        except OSError:
            os.ftruncate(file.fileno(), at)
            raise


def replace_content(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace the content of a regular file, or create it, atomically and durably.

    The content is written to a temporary file, which is flushed to disk and renamed; then the folder is flushed. A
    symbolic link is replaced; it is not followed.
    Errors: OSError for anything but a regular file (a device would be replaced by a file), with the old content
    unchanged.
    """
    _require_replaceable(path)
    part = path.with_name(f"{path.name}.part")
    try:
        descriptor = open_output(part, os.O_TRUNC | os.O_NOFOLLOW, mode=mode)
        try:
            write_through(descriptor, content)
        finally:
            os.close(descriptor)
        _require_replaceable(path)  # it may have changed meanwhile
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _require_replaceable(path: Path) -> None:
    """Raise OSError unless the path names a regular file, a link or nothing."""
    with suppress(FileNotFoundError):
        status = os.stat(path, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            _require_regular(status)


def truncate_file(path: Path, size: int) -> None:
    """Truncate a file to its first `size` bytes, durably. Errors: OSError."""
    with open(path, "r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def write_through(descriptor: int, data: bytes) -> None:
    """Write all of `data` and flush it to disk. Errors: OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to disk. Errors: OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_digits(path: Path, *, at_fault: str) -> str | None:
    """Return the content of a file with 64 hexadecimal digits; None if it does not exist. at_fault: message for other
    content.
    Errors: LedgerError.
    """
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


def new_key() -> bytes:
    """Return a new random key from the operating system."""
    return secrets.token_bytes(32)


def read_key(path: Path) -> bytes | None:
    """Return the key in this file; None if the file does not exist. Errors: LedgerError."""
    text = read_digits(path, at_fault="must hold 64 hexadecimal digits, a key")
    return None if text is None else bytes.fromhex(text)


def write_key(path: Path, key: bytes) -> None:
    """Write the key to a file that only its owner may read. Errors: LedgerError."""
    try:
        replace_content(path, f"{key.hex()}\n".encode(), mode=0o600)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written ({error}). Nothing was charged.") from error
