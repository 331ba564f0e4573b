"""How long `dpfed budget` takes as a whole process, start-up included: median and spread of seven runs each.

python benchmarks/budget_command.py

Beside the clock the least seconds of the processor, which other work on the machine disturbs less.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

PAPER = ["--clients", "6000", "--cohort", "100"]
COMMANDS = {
    "epsilon, Poisson": [*PAPER, "--rounds", "180", "--noise-multiplier", "1.4"],
    "epsilon, fixed size": [*PAPER, "--rounds", "180", "--noise-multiplier", "1.4", "--sampling", "fixed"],
    "noise from epsilon, Poisson": [*PAPER, "--rounds", "180", "--epsilon", "1.01"],
    "rounds from epsilon, Poisson": [*PAPER, "--noise-multiplier", "1.4", "--epsilon", "1.01"],
    "the whole comparison": [*PAPER, "--rounds", "180", "--noise-multiplier", "1.4", "--compare"],
    "epsilon, all clients every round (closed form)": [
        *PAPER,
        "--rounds",
        "9",
        "--noise-multiplier",
        "9",
        "--sampling",
        "all",
    ],
}


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Seconds of one whole process, by the clock and of the processor."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "dpfed", "budget", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: failed with status {process.returncode}.")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def main() -> None:
    print("| command | median s | min | max | processor, min |\n|---|--:|--:|--:|--:|")
    for name, arguments in COMMANDS.items():
        seconds(arguments)
        runs = [seconds(arguments) for _ in range(7)]
        clock, processor = zip(*runs, strict=True)
        print(
            f"| {name} | {statistics.median(clock):.2f} | {min(clock):.2f} | {max(clock):.2f} | {min(processor):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
