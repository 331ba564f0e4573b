"""Files whose content is not trusted: never more in memory than was allowed."""

from __future__ import annotations

from pathlib import Path

from dpfed.errors import DataError


def read_bytes(path: Path, *, at_most: int) -> bytes:
    """The whole file; DataError when it cannot be read or has more than `at_most` bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(at_most + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check the folder and the file's rights.") from None
    if len(content) > at_most:
        raise DataError(
            f"{path}: larger than {at_most:,} bytes, the most that is read. Check that it is the right file."
        )
    return content
