"""Check that the machine is idle enough for meaningful times (Linux only)."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_MOST = 0.25


class OtherWork:
    """Meter of cores that other processes kept busy since its creation, without this process and its ended children."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), self._seconds()

    def cores(self) -> float:
        """Return the average number of busy cores since the creation."""
        return max(0.0, (self._seconds() - self._before) / (time.perf_counter() - self._began))

    @staticmethod
    def _seconds() -> float:
        if not Path("/proc/stat").exists():
            raise SystemExit("this benchmark reads /proc/stat to see whether the machine is idle: run it on Linux.")
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        return busy - sum(os.times()[:4])


def other_work_now(seconds: float = 1.0) -> float:
    """Return the number of cores that other processes keep busy while this process sleeps."""
    work = OtherWork()
    time.sleep(seconds)
    return work.cores()


def refuse(busy: float, *, force: bool) -> None:
    """Print the load by other processes; exit if it is too high."""
    print(f"{os.cpu_count()} cores, {busy:.2f} busy with other processes, load average {os.getloadavg()[0]:.2f}")
    if busy > _MOST and not force:
        sys.exit("refused: other processes keep the cores busy, so times would mean little. Wait, or --force.")
    if busy > _MOST:
        print("FORCED: others were working, so times are upper ends")
