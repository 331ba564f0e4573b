"""End a process at a chosen file operation, as kill -9 or a power cut would.

`Points` intercepts, in its process, every opening for writing, write, fsync, rename, removal, truncation and new folder
below one folder, and numbers these operations in order. At the chosen operation:

before   the process is killed before it
torn     half of the bytes of a write are written, then the process is killed
cut      power cut before it: unsynced writes are lost, renames and new files persist
undone   power cut before it: renames and new files in unsynced folders are undone, too
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

How = Literal["before", "torn", "cut", "undone"]


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Chosen operation number `at`, counted from 0."""

    at: int
    how: How


class Points:
    """Operations so far, as (kind, file name). `unsynced(path)`: True for files without fsync, a planted fault."""

    def __init__(self, under: Path, kill: Kill | None, unsynced: Callable[[str], bool] = lambda name: False) -> None:
        self.seen: list[tuple[str, str]] = []
        self._under, self._kill, self._unsynced = str(under.resolve()), kill, unsynced
        self._safe: dict[str, int] = {}  # bytes of a file that survive a power cut
        self._new: set[str] = set()
        self._replaced: dict[str, tuple[bytes | None, int]] = {}
        self._asleep = False

    def install(self) -> None:
        """Install the interception until the process ends."""
        self._write, self._fsync, self._replace = os.write, os.fsync, os.replace
        os.write, os.fsync, os.replace = self._on_write, self._on_fsync, self._on_replace
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._asleep:
            return
        if event == "open":
            path, flags = arguments[0], arguments[2]
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR) or not self._watched(path):
                return
            self._point("open", os.fspath(path))
            full = os.path.realpath(path)
            if not os.path.exists(full):
                self._new.add(full)
                self._safe[full] = 0
            elif full not in self._safe:
                self._safe[full] = os.path.getsize(full)
            if flags & os.O_TRUNC:
                self._safe[full] = 0
        elif event in ("os.remove", "os.mkdir") and self._watched(arguments[0]):
            self._point(event, os.fspath(arguments[0]))

    def _on_write(self, descriptor: int, data: Any) -> int:
        path = os.path.realpath(f"/proc/self/fd/{descriptor}")
        if not self._watched(path):
            return self._write(descriptor, data)
        torn = self._point("write", path)
        if torn:
            self._write(descriptor, bytes(data)[: len(data) // 2])
            self._die()
        return self._write(descriptor, data)

    def _on_fsync(self, descriptor: int) -> None:
        path = os.path.realpath(f"/proc/self/fd/{descriptor}")
        if self._watched(path) or path == self._under:
            if self._unsynced(os.path.basename(path)):
                return
            self._point("fsync", path)
        self._fsync(descriptor)
        if os.path.isdir(path):
            self._new = {one for one in self._new if os.path.dirname(one) != path}
            self._replaced = {one: old for one, old in self._replaced.items() if os.path.dirname(one) != path}
        else:
            self._safe[path] = os.fstat(descriptor).st_size

    def _on_replace(self, source: Any, target: Any) -> None:
        old, new = os.path.realpath(source), os.path.realpath(target)
        if self._watched(old):
            self._point("rename", new)
            before = Path(new).read_bytes() if os.path.exists(new) else None
            self._replaced.setdefault(new, (before, self._safe.get(new, len(before or b""))))
            self._safe[new] = self._safe.pop(old, 0)
            self._new.discard(old)
        self._replace(source, target)

    def _watched(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.realpath(path).startswith(self._under + os.sep)

    def _point(self, kind: str, path: str) -> bool:
        """Return True for the write to tear; end the process at any other chosen operation."""
        number = len(self.seen)
        self.seen.append((kind, os.path.basename(path)))
        if self._kill is None or number != self._kill.at:
            return False
        if self._kill.how == "torn":
            return kind == "write"
        self._asleep = True
        if self._kill.how != "before":
            self._cut_power(undo=self._kill.how == "undone")
        self._die()
        return False

    def _cut_power(self, *, undo: bool) -> None:
        for path, size in self._safe.items():
            if os.path.exists(path) and os.path.getsize(path) > size:
                os.truncate(path, size)
        if not undo:
            return
        for path, (content, size) in self._replaced.items():
            if content is None:
                Path(path).unlink(missing_ok=True)
            else:
                Path(path).write_bytes(content[:size])
        for path in self._new:
            Path(path).unlink(missing_ok=True)

    @staticmethod
    def _die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)
