"""Ctrl-C and `kill` end a run after its current round; a second signal ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ASKING = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Request of a signal to end the run; `loop.run` reads it before every round."""

    def __init__(self) -> None:
        self.once = False
        self.signal = int(signal.SIGINT)

    def __call__(self) -> bool:
        return self.once


@contextmanager
def stop_by_signals(say: Callable[[str], None]) -> Iterator[StopRequest]:
    """Note SIGINT and SIGTERM while the context is open.

    The second signal ends the process as usual, without any cleanup that could fail: a run survives it as it survives
    kill -9.
    """
    asked = StopRequest()

    def note(number: int, frame: FrameType | None) -> None:
        if asked.once:
            if sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h")  # show the cursor that a progress bar has hidden
                sys.stderr.flush()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        asked.once, asked.signal = True, number
        say(f"{signal.Signals(number).name}: the round is finished and saved first; once more ends it now.")

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield asked
        return
    before = {number: signal.signal(number, note) for number in _ASKING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
