"""Handlers of Ctrl-C and `kill`: a run ends after its current round; a second signal ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Record of a received signal; `loop.run` calls it before every round, and True ends the run."""

    def __init__(self) -> None:
        self.requested = False
        self.signal = int(signal.SIGINT)

    def __call__(self) -> bool:
        return self.requested


@contextmanager
def stop_by_signals(say: Callable[[str], None]) -> Iterator[StopRequest]:
    """Record the first SIGINT or SIGTERM while the context is open.

    A second signal ends the process at once without cleanup; the run can be resumed, as after kill -9.
    """
    asked = StopRequest()

    def record_signal(number: int, frame: FrameType | None) -> None:
        if asked.requested:
            if sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h")  # show the cursor, which a progress bar hides
                sys.stderr.flush()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        asked.requested, asked.signal = True, number
        words = (
            f"{signal.Signals(number).name}: the run ends after this round is saved. Repeat the signal to end it now."
        )
        try:
            say(words)
        except RuntimeError:  # the signal interrupted a write to the same stream
            os.write(2, f"{words}\n".encode())

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield asked
        return
    before = {number: signal.signal(number, record_signal) for number in _STOP_SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
