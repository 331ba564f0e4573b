"""Files whose content is not trusted: never more in memory than was allowed."""

from __future__ import annotations

import os
from pathlib import Path

from dpfed.errors import DataError


def read_bytes(path: Path, *, at_most: int) -> bytes:
    """The whole file; DataError when it cannot be read or has more than `at_most` bytes."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > at_most:
                raise DataError(
                    f"{path}: larger than {at_most:,} bytes, the most that is read. Check that it is the right file."
                )
            return file.read(size)  # not more, should it grow; asking for `at_most` would reserve as much
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check the folder and the file's rights.") from None
