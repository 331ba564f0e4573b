"""Files that a crash leaves complete: with the old content or the new one."""

from __future__ import annotations

import os
from pathlib import Path

from accounting.ledger.regular_file import open_output, write_through
from accounting.ledger.regular_file import replace_content as put

__all__ = ["append", "put"]


def append(path: Path, lines: bytes) -> None:
    """Append lines, on the disk when this returns. OSError; a crash may leave a part of them at the end."""
    descriptor = open_output(path, os.O_APPEND)
    try:
        write_through(descriptor, lines)
    finally:
        os.close(descriptor)
