"""How long `dpfed budget` takes as a whole process, start-up included: median and spread of seven runs each.

python benchmarks/budget_command.py
"""

from __future__ import annotations

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
    "epsilon, everybody every round (closed form)": [
        *PAPER,
        "--rounds",
        "9",
        "--noise-multiplier",
        "9",
        "--sampling",
        "all",
    ],
}


def seconds(arguments: list[str]) -> float:
    """Wall-clock seconds of one whole process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "dpfed", "budget", *arguments], check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    print("| command | median s | min | max |\n|---|--:|--:|--:|")
    for name, arguments in COMMANDS.items():
        seconds(arguments)
        runs = [seconds(arguments) for _ in range(7)]
        print(f"| {name} | {statistics.median(runs):.2f} | {min(runs):.2f} | {max(runs):.2f} |")


if __name__ == "__main__":
    main()
