"""Seconds of `dpfed` commands as whole processes with start-up, compared with another checkout (--before).

python benchmarks/budget_command.py [--before ../the-commit-before] [--runs 7]

The other checkout needs its own environment in .venv. Both are started in turn, so that other work on the machine
affects both. "ratio" compares the smallest processor seconds, which other work affects less than wall-clock seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PAPER = ["budget", "--clients", "6000", "--cohort", "100"]
NOISE = [*PAPER, "--rounds", "180", "--noise-multiplier", "1.4"]
COMMANDS = {
    "--version": ["--version"],
    "--help": ["--help"],
    "run --list": ["run", "--list"],
    "epsilon, Poisson": NOISE,
    "epsilon, fixed size": [*NOISE, "--sampling", "fixed"],
    "noise from epsilon, Poisson": [*PAPER, "--rounds", "180", "--epsilon", "1.01"],
    "rounds from epsilon, Poisson": [*PAPER, "--noise-multiplier", "1.4", "--epsilon", "1.01"],
    "the whole comparison": [*NOISE, "--compare"],
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


def seconds(python: Path, folder: Path, arguments: list[str]) -> tuple[float, float]:
    """Return wall-clock and processor seconds of one whole process."""
    began = time.perf_counter()
    command = [str(python), "-m", "dpfed", *arguments]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} in {folder}: failed with status {process.returncode}.")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    checkouts = {"": (Path(sys.executable), Path(__file__).parents[1])}
    if options.before is not None:
        checkouts = {"before: ": (options.before.absolute() / ".venv/bin/python", options.before), **checkouts}
    columns = [f"{name}{figure}" for name in checkouts for figure in ("median s", "min", "max", "processor, min")]
    columns += ["ratio"] if options.before is not None else []
    print(f"| command | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    for name, arguments in COMMANDS.items():
        found: dict[str, list[tuple[float, float]]] = {checkout: [] for checkout in checkouts}
        for _ in range(options.runs + 1):  # the first run fills the disk cache
            for checkout, (python, folder) in checkouts.items():
                found[checkout].append(seconds(python, folder, arguments))
        cells, least = [], []
        for runs in found.values():
            clock, processor = zip(*runs[1:], strict=True)
            cells += [statistics.median(clock), min(clock), max(clock), min(processor)]
            least.append(min(processor))
        cells += [least[1] / least[0]] if len(least) == 2 else []
        print(f"| {name} | {' | '.join(f'{cell:.2f}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
