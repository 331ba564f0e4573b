"""Forks of this process that may use all of torch, although threads of OpenMP have run in this process.

OpenMP's threads do not exist in a fork, and a parallel loop would wait for them for ever. They belong to the thread
that has started them, so a fork is made by a new thread, which has none.
"""

from __future__ import annotations

import contextvars
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from dpfed.errors import RunError

_POLL_SECONDS = 0.01


class Process(Protocol):
    """Process that this program has started: a `Fork`, or a `subprocess.Popen`."""

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int | None: ...


def ended(process: Process, *, seconds: float) -> int | None:
    """Wait for the end of a process, kill it after this time, and return its exit status, negative for a signal."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    process.kill()
    return process.wait()


class Fork:
    """Fork of this process that calls a function and ends."""

    def __init__(self, call: Callable[[], None]) -> None:
        made: list[int] = []
        torch = sys.modules.get("torch")
        modes = (torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()) if torch else None

        def fork() -> None:
            number = os.fork()
            if number:
                made.append(number)
                return
            status = 1
            try:
                if modes is not None and torch is not None:  # the modes belong to the calling thread
                    torch.set_num_threads(modes[0])
                    with torch.inference_mode(modes[2]), torch.set_grad_enabled(modes[1]):
                        call()
                else:
                    call()
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                with suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(status)

        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():  # newer Pythons warn of every fork beside threads
            warnings.simplefilter("ignore", DeprecationWarning)
            thread = threading.Thread(target=contextvars.copy_context().run, args=(fork,))
            thread.start()
            thread.join()
        if not made:
            raise RunError("a process cannot be started: no memory, or too many processes.")
        self._number = made[0]

    def kill(self) -> None:
        """Kill the process, if it still runs."""
        with suppress(ProcessLookupError):
            os.kill(self._number, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit status, negative for a signal; None if another call returned it. Raises TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        with suppress(ChildProcessError):  # already waited for
            while True:
                number, status = os.waitpid(self._number, 0 if until is None else os.WNOHANG)
                if number:
                    return os.waitstatus_to_exitcode(status)
                if until is not None and time.monotonic() > until:
                    raise subprocess.TimeoutExpired("a fork of this process", timeout or 0.0)
                time.sleep(_POLL_SECONDS)
        return None
