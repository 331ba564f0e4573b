"""What the fuzzer asks of a parser of bytes that others wrote, and the folder that it may write to."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from accounting.errors import AccountingError
from dpfed.errors import DpfedError

DOCUMENTED = (AccountingError, DpfedError)
"""The two families of errors. Whatever else a parser raises is a fault."""


@dataclass(frozen=True, kw_only=True)
class Parser:
    """`parse` reads bytes; `seeds` are bytes that it accepts, before `sealed`."""

    seeds: Callable[[], list[bytes]]
    parse: Callable[[bytes], object]
    sealed: Callable[[bytes], bytes] | None = None

    def accepts(self, content: bytes) -> bool:
        """Whether the bytes are read; False where they are refused as documented."""
        try:
            self.parse(content)
        except DOCUMENTED as error:
            assert 10 < len(str(error)) < 20_000, "a message that says nothing, or too much"
            return False
        return True


@cache
def folder() -> Path:
    """Where `parse` may write."""
    fast = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="dpfed-fuzz-", dir=fast if fast.is_dir() else None))


def clean_up() -> None:
    """Remove what `parse` has written."""
    shutil.rmtree(folder(), ignore_errors=True)
    folder.cache_clear()


def written(content: bytes, name: str) -> Path:
    """A file of that name which holds the bytes."""
    path = folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
