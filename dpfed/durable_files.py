"""Files that a crash leaves whole: as they were, or as they were to be."""

from __future__ import annotations

import os
from pathlib import Path

from accounting.durable import sync_folder, write_through
from accounting.regular_file import open_output


def put(path: Path, content: bytes) -> None:
    """`path` holds `content`, on the disk, when this returns; until then what it held before. OSError.

    Written beside it, forced to the disk, renamed, and the renaming forced to the disk as well.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        _write(part, os.O_TRUNC | os.O_NOFOLLOW, content)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def append(path: Path, lines: bytes) -> None:
    """More lines, on the disk when this returns. OSError; a crash may leave a part of them at the end."""
    _write(path, os.O_APPEND, lines)


def _write(path: Path, how: int, content: bytes) -> None:
    descriptor = open_output(path, how)
    try:
        write_through(descriptor, content)
    finally:
        os.close(descriptor)
