"""Writing of files such that a crash leaves a complete file, with the old or the new content, and beside training."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from accounting.ledger.regular_file import open_output, read_key, write_key, write_through
from accounting.ledger.regular_file import replace_content as put

__all__ = ["FileWriter", "append", "kept_key", "put"]


class FileWriter:
    """Writer of a round's files, in their order: at once or, `beside`, by another thread while a GPU trains.

    After an error nothing further is written, so that no file is newer than one that should be older.
    """

    def __init__(self, *, beside: bool) -> None:
        self.beside = beside
        self._thread = ThreadPoolExecutor(1) if beside else None
        self._waiting: list[Future[None]] = []
        self._broken = False

    def write(self, job: Callable[[], None]) -> None:
        """Call `job`, now or after the earlier jobs."""
        if self._thread is None:
            job()
        else:
            self._waiting.append(self._thread.submit(self._write_next, job))

    def _write_next(self, job: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            job()
        except BaseException:
            self._broken = True
            raise

    def wait(self) -> None:
        """Return when all jobs are done; raise the first error of one."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.result()

    def close(self) -> None:
        """Return when all jobs are done; their errors are not raised."""
        if self._thread is not None:
            self._thread.shutdown()


def append(path: Path, lines: bytes, *, mode: int = 0o666) -> None:
    """Append lines and return when they are on the disk. A crash may leave a part of them. Raises OSError, with the
    file as it was.

    mode: permissions of a new file
    """
    descriptor = open_output(path, os.O_APPEND, mode=mode)
    size = os.fstat(descriptor).st_size
    try:
        write_through(descriptor, lines)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    finally:
        os.close(descriptor)


def kept_key(path: Path, new: Callable[[], bytes], *, has_begun: Callable[[], bool]) -> bytes:
    """Return the key in this file, or the one that `new` gives if the file is missing or nothing has begun with it.

    The file is written only if nothing has begun: a lost key is not replaced, so that it can be restored. Errors:
    LedgerError.
    """
    key, begun = read_key(path), has_begun()
    if key is None or not begun:
        key = new()
    if not begun:
        write_key(path, key)
    return key
