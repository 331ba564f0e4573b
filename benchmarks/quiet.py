"""Whether the machine is idle enough for times to mean something (Linux)."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_MOST = 0.25


class OtherWork:
    """Cores that processes other than this one, and its children that have ended, have kept busy since it was made."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), self._seconds()

    def cores(self) -> float:
        """On average since the beginning."""
        return max(0.0, (self._seconds() - self._before) / (time.perf_counter() - self._began))

    @staticmethod
    def _seconds() -> float:
        if not Path("/proc/stat").exists():
            raise SystemExit("this benchmark reads /proc/stat to see whether the machine is idle: run it on Linux.")
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        return busy - sum(os.times()[:4])


def other_work_now(seconds: float = 1.0) -> float:
    """Cores that others keep busy while this process sleeps."""
    work = OtherWork()
    time.sleep(seconds)
    return work.cores()


def refuse(busy: float, *, force: bool) -> None:
    """Say how busy the machine was with other things; leave if that was too much."""
    print(f"{os.cpu_count()} cores, {busy:.2f} busy with other processes, load average {os.getloadavg()[0]:.2f}")
    if busy > _MOST and not force:
        sys.exit("refused: other processes keep the cores busy, so times would mean little. Wait, or --force.")
    if busy > _MOST:
        print("FORCED: others were working, so times are upper ends")
