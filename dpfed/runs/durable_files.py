"""Files that a crash leaves whole: as they were, or as they were to be."""

from __future__ import annotations

import os
from pathlib import Path

from accounting.ledger.regular_file import open_output, put, write_through

__all__ = ["append", "put"]


def append(path: Path, lines: bytes) -> None:
    """More lines, on the disk when this returns. OSError; a crash may leave a part of them at the end."""
    descriptor = open_output(path, os.O_APPEND)
    try:
        write_through(descriptor, lines)
    finally:
        os.close(descriptor)
