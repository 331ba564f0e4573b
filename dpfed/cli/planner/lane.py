"""One process that computes what takes long, one job after the other; a newer question ends the job of an older one."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any


class Superseded(Exception):
    """A newer question came."""


class Lane:
    """Jobs of the newest turn, in the order in which they came. `with Lane() as lane` ends its process."""

    def __init__(self) -> None:
        self._newest = 0
        self._state, self._turn = threading.Lock(), threading.Lock()  # of the fields; held by whoever computes
        self._running = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Lane:
        self._process = _started()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._state:
            self._newest = sys.maxsize
            self._end()

    def ask(self, turn: int, job: Mapping[str, Any]) -> dict[str, Any]:
        """What the job comes to. Superseded where a job of a later turn came before it was done."""
        with self._state:
            self._newest = max(self._newest, turn)
            if 0 < self._running < turn:
                self._end()
        with self._turn:
            return self._done(turn, job)

    def _done(self, turn: int, job: Mapping[str, Any]) -> dict[str, Any]:
        with self._state:
            if turn < self._newest:
                raise Superseded
            if self._process is None:
                self._process = _started()
            process, self._running = self._process, turn
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError):
            line = ""
        with self._state:
            self._running = 0
            if line:
                found: dict[str, Any] = json.loads(line)
                return found
            ended = self._process is process
            if ended:
                self._end()
        if ended:
            return {"error": "the computation ended before it was done (memory?). Change the plan."}
        raise Superseded

    def _end(self) -> None:
        """End the process and what it computes; the next job starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            with contextlib.suppress(OSError):  # words that it did not read any more
                process.stdin.close()  # type: ignore[union-attr]


def _started() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dpfed.cli.planner.worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
