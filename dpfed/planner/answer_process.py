"""Separate process that computes slow answers, one job at a time.

A newer question kills the process of an older question; a spare process replaces it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO

from dpfed.planner.answers import answer_job

_WARM_UP_OPTIONS = {"clients": 100, "cohort": 1, "rounds": 1, "epsilon": 1}


class SupersededQuestion(Exception):
    """Raised if a newer question arrived before the answer to this question."""


class AnswerProcess:
    """Context manager of a process that answers jobs in order of arrival, for the newest question only."""

    def __init__(self) -> None:
        self._newest = 0
        # `_state` guards the fields; `_turn` is held during a computation
        self._state, self._turn = threading.Lock(), threading.Lock()
        self._running = 0
        self._process: subprocess.Popen[str] | None = None
        self._spare: subprocess.Popen[str] | None = None  # a spare process has already imported its modules

    def __enter__(self) -> AnswerProcess:
        self._process, self._spare = _start_process(), _start_process()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._state:
            self._newest = sys.maxsize
            for process in (self._process, self._spare):
                self._kill_process(process)
            self._process = self._spare = None

    def ask(self, turn: int, job: Mapping[str, object]) -> dict[str, object]:
        """Return the answer to a job of question number `turn`. SupersededQuestion if a newer question arrived."""
        with self._state:
            self._newest = max(self._newest, turn)
            if 0 < self._running < turn:
                self._replace_process()
        with self._turn:
            return self._run_job(turn, job)

    def _run_job(self, turn: int, job: Mapping[str, object]) -> dict[str, object]:
        with self._state:
            if turn < self._newest or self._process is None:
                raise SupersededQuestion
            process, self._running = self._process, turn
        line = _answer_line(process, job)
        with self._state:
            self._running = 0
            if line.endswith("\n"):
                found: dict[str, object] = json.loads(line)
                return found
            _close_stream(process.stdout)
            if self._process is not process:
                raise SupersededQuestion
            self._replace_process()
        return {"error": "the process of this computation was killed, perhaps for lack of memory. Change the plan."}

    def _replace_process(self) -> None:
        """Kill the process and its job; the spare process replaces it."""
        process, self._process = self._process, self._spare
        self._kill_process(process)
        self._spare = _start_process()

    def _kill_process(self, process: subprocess.Popen[str] | None) -> None:
        if process is None:
            return
        process.kill()
        process.wait()
        _close_stream(process.stdin)
        if not self._running or process is self._spare:  # otherwise the thread that reads this stream closes it
            _close_stream(process.stdout)


def _answer_line(process: subprocess.Popen[str], job: Mapping[str, object]) -> str:
    """Return the answer of the process as one line of JSON; an empty or partial line if the process has ended."""
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
        with contextlib.suppress(OSError):  # the process has closed its end of the pipe
            stream.close()


def _start_process() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dpfed.planner.answer_process"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def main() -> None:
    """Answer each line of JSON on standard input by one line on standard output, until the input ends."""
    # A first answer imports the modules that an answer requires.
    answer_job({"kind": "answer", "options": _WARM_UP_OPTIONS, "account": "best"})
    for line in sys.stdin:
        print(json.dumps(answer_job(json.loads(line)), allow_nan=False), flush=True)


if __name__ == "__main__":
    main()
