"""A block that may neither wait nor take all memory: an alarm, and a limit on address space."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Waited(BaseException):
    """The block was not done in time. No `except Exception` takes it for an answer."""


@contextmanager
def bounded(*, seconds: int = 300, megabytes: int = 800) -> Iterator[None]:
    """Waited after `seconds`; what asks for more than `megabytes` beyond today's address space finds no memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    previous = signal.signal(signal.SIGALRM, _ring)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + megabytes * 2**20, before[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _ring(number: int, frame: object) -> None:
    raise Waited
