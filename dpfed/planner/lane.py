"""Process for long computations, one job after the other.

A newer question ends the job of an older one; a spare process takes over."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO

from dpfed.planner.answers import done

_LIGHT = {"clients": 100, "cohort": 1, "rounds": 1, "epsilon": 1}


class Superseded(Exception):
    """Raised when a newer question has replaced this one."""


class Lane:
    """Jobs of the newest turn, in the order of arrival. `with Lane() as lane` ends its process."""

    def __init__(self) -> None:
        self._newest = 0
        self._state, self._turn = threading.Lock(), threading.Lock()  # guards the fields; held during a computation
        self._running = 0
        self._process: subprocess.Popen[str] | None = None
        self._spare: subprocess.Popen[str] | None = None  # the spare process has loaded its modules before it is needed

    def __enter__(self) -> Lane:
        self._process, self._spare = _started(), _started()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._state:
            self._newest = sys.maxsize
            for process in (self._process, self._spare):
                self._kill(process)
            self._process = self._spare = None

    def ask(self, turn: int, job: Mapping[str, object]) -> dict[str, object]:
        """Return the answer to a job. Superseded if a job of a later turn arrived before."""
        with self._state:
            self._newest = max(self._newest, turn)
            if 0 < self._running < turn:
                self._end()
        with self._turn:
            return self._run_job(turn, job)

    def _run_job(self, turn: int, job: Mapping[str, object]) -> dict[str, object]:
        with self._state:
            if turn < self._newest:
                raise Superseded
            if self._process is None:
                raise Superseded
            process, self._running = self._process, turn
        line = _line_of(process, job)
        with self._state:
            self._running = 0
            if line.endswith("\n"):
                found: dict[str, object] = json.loads(line)
                return found
            by_itself = self._process is process
            if by_itself:
                self._end()
            _close_stream(process.stdout)
        if by_itself:
            return {"error": "the computation ended before it was done (memory?). Change the plan."}
        raise Superseded

    def _end(self) -> None:
        """End the process with its job; the spare one replaces it."""
        process, self._process = self._process, self._spare
        self._kill(process)
        self._spare = _started()

    def _kill(self, process: subprocess.Popen[str] | None) -> None:
        if process is None:
            return
        process.kill()
        process.wait()
        _close_stream(process.stdin)
        if not self._running or process is self._spare:  # else the thread that waits for its answer closes it
            _close_stream(process.stdout)


def _line_of(process: subprocess.Popen[str], job: Mapping[str, object]) -> str:
    """Return the answer of the process as a line; an empty or partial line if the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return process.stdout.readline()
    except (OSError, ValueError):
        return ""


def _close_stream(stream: IO[str] | None) -> None:
    if stream is not None:
        with contextlib.suppress(OSError):  # the reader of this message is gone
            stream.close()


def _started() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dpfed.planner.lane"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def main() -> None:
    """Answer each line of JSON on standard input by one on standard output, until the input ends."""
    done({"kind": "answer", "options": _LIGHT, "account": "best"})  # load the modules that the first question needs
    for line in sys.stdin:
        print(json.dumps(done(json.loads(line)), allow_nan=False), flush=True)


if __name__ == "__main__":
    main()
