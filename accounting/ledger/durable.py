"""Bytes that are on the disk when the call returns, or not in the file at all."""

import os
from pathlib import Path

from accounting.ledger.regular_file import open_output


def create(path: Path, data: bytes) -> None:
    """A new file of these bytes. FileExistsError where there is one, OSError."""
    with open(path, "xb") as file:
        write_through(file.fileno(), data)
    sync_folder(path.parent)


def append(path: Path, data: bytes, *, at: int) -> None:
    """Bytes after the first `at`, which must be all that the file holds; OSError, after which it holds them alone."""
    with open(path, "ab") as file:
        if file.tell() != at:
            raise OSError(f"it has {file.tell()} bytes, {at} were known: somebody else writes to it")
        try:
            write_through(file.fileno(), data)
        except OSError:
            os.ftruncate(file.fileno(), at)
            raise


def put(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """`path` holds `content`, on the disk, when this returns; until then what it held before. OSError.

    Written beside it, forced to the disk, renamed, and the renaming forced to the disk as well.
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
    """Only the first `size` bytes stay. OSError."""
    with open(path, "r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def write_through(descriptor: int, data: bytes) -> None:
    """Write all of `data` and force it to the disk. OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Force to the disk which files a folder has. OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
