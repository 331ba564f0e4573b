"""Seconds and memory of a private run with many clients in Flower's simulation.

    FLOWER_PYTHON benchmarks/flower_population.py [--clients 10000] [--cohort 100 1000] [--rounds 3]

DP-FedAvg of a multilayer perceptron on the digits, ten samples per client (data.partition = "resampled"), one node per
client, Poisson sampling, by `dpfed run --engine flower`. Prints a line for each cohort: wall-clock seconds until the
first round ends and of a later round, and the peak memory of all processes together (proportional set sizes, sampled
twice per second). Flower's Python is that of `make test-flower`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from processes import megabytes


def settings(clients: int, cohort: int, rounds: int) -> list[str]:
    values = {
        "federation.clients": clients,
        "federation.cohort": cohort,
        "federation.rounds": rounds,
        "data.partition": "resampled",
        "data.samples": 10,
        "local.epochs": 1,
        "run.evaluate_every": rounds,
        "privacy.epsilon": "",
        "privacy.noise_multiplier": 1.0,
    }
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def point(clients: int, cohort: int, rounds: int) -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "dpfed", "run", "dp-fedavg-digits", "--engine", "flower", "--out", str(out)]
        began, largest, over = time.perf_counter(), [0.0], threading.Event()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*command, *settings(clients, cohort, rounds)], stdout=subprocess.DEVNULL, env=environment
        )

        def watch() -> None:
            while not over.wait(0.5):
                largest[0] = max(largest[0], megabytes(process.pid))

        thread = threading.Thread(target=watch)
        thread.start()
        ended: list[float] = []
        while process.poll() is None:
            file = out / "metrics.jsonl"
            done = len(file.read_text().splitlines()) if file.exists() else 0
            ended += [time.perf_counter()] * (done - len(ended))
            time.sleep(0.1)
        over.set()
        thread.join()
        if process.returncode:
            raise SystemExit(f"the run ended with {process.returncode}")
        summary = json.loads((out / "summary.json").read_text())
        assert summary["rounds"] == rounds
    return ended[0] - began, (ended[-1] - ended[0]) / max(rounds - 1, 1), largest[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--cohort", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    print("| clients | cohort | until the first round is done, s | a round, s | memory of all processes, MB |")
    print("|--:|--:|--:|--:|--:|")
    for cohort in chosen.cohort:
        first, each, memory = point(chosen.clients, cohort, chosen.rounds)
        print(f"| {chosen.clients:,} | {cohort:,} | {first:.1f} | {each:.2f} | {memory:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
