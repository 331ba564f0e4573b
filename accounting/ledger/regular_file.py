"""Regular files in folders that others may have filled: opened without waiting, never read beyond what is allowed."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST_CONFIGURATION = 2**20
"""Bytes of a TOML file: a run's or an experiment's."""

LARGEST_DOCUMENT = 2**26
"""Bytes of a file that is one JSON object: summary.json, sweep.json."""

LARGEST_LINES = 2**31
"""Bytes of a JSON-lines file: metrics.jsonl, diagnostics.jsonl, canaries.jsonl."""

LARGEST_ARRAYS = 2**36
"""Bytes of a safetensors file."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_input(path: str | os.PathLike[str], *, at_most: int | None = None) -> BinaryIO:
    """The regular file at `path`, or the one that a link leads to, for reading.

    OSError for anything else (a FIFO would wait for a writer, a device never ends), and for more than `at_most` bytes.
    Never waits: a FIFO is opened without a writer, then refused.
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
    """The descriptor of the regular file at `path`, new or not, for writing; `how`: O_TRUNC, O_APPEND ... OSError, and
    never waits, as `open_input`."""
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
    """OSError unless `open_input` opens it: for libraries that open a file by its name."""
    open_input(path, at_most=at_most).close()


def read_input(path: str | os.PathLike[str], *, at_most: int) -> bytes:
    """The whole of a regular file of up to `at_most` bytes; OSError."""
    with open_input(path, at_most=at_most) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # not more, should it grow


def read_text(path: Path, *, at_most: int) -> str:
    """The same as text; OSError, UnicodeDecodeError."""
    return read_input(path, at_most=at_most).decode("utf-8")
