"""Files whose content is not trusted: never more in memory than was allowed."""

from __future__ import annotations

from pathlib import Path

from accounting.ledger.regular_file import read_input
from dpfed.errors import DataError


def read_bytes(path: Path, *, at_most: int) -> bytes:
    """The whole file; DataError when it cannot be read or has more than `at_most` bytes."""
    try:
        return read_input(path, at_most=at_most)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Check that it is the right file, and its rights."
        ) from None
