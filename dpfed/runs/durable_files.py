"""Writing of files such that a crash leaves a complete file, with the old or the new content."""

from __future__ import annotations

import os
from pathlib import Path

from accounting.ledger.regular_file import open_output, write_through
from accounting.ledger.regular_file import replace_content as put

__all__ = ["append", "put"]


def append(path: Path, lines: bytes, *, mode: int = 0o666) -> None:
    """Append lines and return when they are on the disk. A crash may leave a part of them. Raises OSError.

    mode: permissions of a new file
    """
    descriptor = open_output(path, os.O_APPEND, mode=mode)
    try:
        write_through(descriptor, lines)
    finally:
        os.close(descriptor)
