"""Start-up seconds and peak memory over the cohort and over the population, with a figure.

    python benchmarks/population.py [--out benchmarks] [--rounds 2]

Private federated averaging of the multilayer perceptron on 60,000 random images of 28x28, 10 samples a client
(data.partition = "resampled"), Poisson sampling, epsilon by the ledger. Cohorts from 100 to 10,000 in a population of
10^5, and populations from 10^4 to 10^6 with a cohort of 100. Every point is a separate process: start-up is from the
configuration to the first round's first client (without imports and data), memory the largest resident set (ru_maxrss);
one thread, processor seconds. Writes population.csv and population.png.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

POINTS = [(100_000, cohort) for cohort in (100, 300, 1000, 3000, 10_000)] + [
    (clients, 100) for clients in (10_000, 30_000, 100_000, 300_000, 1_000_000)
]
COLUMNS = ("clients", "cohort", "start_seconds", "draw_seconds", "round_seconds", "peak_mb", "after_data_mb", "epsilon")


def point(clients: int, cohort: int, rounds: int) -> dict[str, float]:
    """Measure one run in this process."""
    import numpy as np

    from dpfed import data
    from dpfed.config.tables import parse
    from dpfed.data.dataset import Dataset
    from dpfed.round import draw_round_cohort
    from dpfed.runs.experiment import build
    from dpfed.runs.loop import Run
    from dpfed.sources import TrainedClients

    generator = np.random.default_rng(0)
    random = Dataset(
        name="random",
        train_inputs=generator.standard_normal((60_000, 1, 28, 28), dtype=np.float32),
        train_labels=generator.integers(10, size=60_000),
        test_inputs=generator.standard_normal((1000, 1, 28, 28), dtype=np.float32),
        test_labels=generator.integers(10, size=1000),
        classes=10,
    )
    data.register("random", random)
    import torch.autograd  # noqa: F401  (its load is not the run's)

    after_data = _peak_mb()
    began = time.process_time()
    experiment = build(parse(_tables(clients, cohort, rounds), source="benchmark"))
    with tempfile.TemporaryDirectory() as folder:
        run = Run.open(experiment, Path(folder) / "run", resume=False)
        started = time.process_time()
        while not run.finished:
            run.run_one_round(TrainedClients(seeds=experiment.seeds))
        ended = time.process_time()
        epsilon = run.close().metrics[-1]["epsilon"]
        draws = [_seconds(lambda: draw_round_cohort(experiment.method, 0)) for _ in range(5)]
    return {
        "clients": clients,
        "cohort": cohort,
        "start_seconds": started - began,
        "draw_seconds": min(draws),
        "round_seconds": (ended - started) / rounds,
        "peak_mb": _peak_mb(),
        "after_data_mb": after_data,
        "epsilon": epsilon,
    }


def _tables(clients: int, cohort: int, rounds: int) -> dict[str, Any]:
    return {
        "data": {"name": "random", "partition": "resampled", "samples": 10},
        "model": {"name": "mlp", "hidden": [32]},
        "federation": {"clients": clients, "cohort": cohort, "rounds": rounds},
        "local": {"learning_rate": 0.05, "batch_size": 10, "epochs": 1},
        "method": {"name": "dp-fedavg"},
        "privacy": {"clip_norm": 1.0, "noise_multiplier": 1.0},
    }


def _seconds(action: Any) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def draw(rows: list[dict[str, float]], path: Path) -> None:
    """Draw memory and start-up over the cohort (left) and over the population (right)."""
    from dpfed.report.figures.figure import COLOURS, figure

    with figure(path, columns=2) as axes:
        for axis, fixed, over in zip(axes, ("clients", "cohort"), ("cohort", "clients"), strict=True):
            held = 100_000 if fixed == "clients" else 100
            chosen = sorted((row for row in rows if row[fixed] == held), key=lambda row: row[over])
            places = [row[over] for row in chosen]
            axis.plot(places, [row["peak_mb"] for row in chosen], "o-", color=COLOURS[0], label="peak memory, MB")
            axis.set(xscale="log", ylim=(0, 1.3 * max(row["peak_mb"] for row in rows)), ylabel="MB")
            axis.set(xlabel="cohort, of 100,000 clients" if over == "cohort" else "clients, cohort 100")
            seconds = axis.twinx()
            starts = [row["start_seconds"] for row in chosen]
            seconds.plot(places, starts, "s--", color=COLOURS[1], label="start-up, seconds")
            seconds.set(ylim=(0, max(1.0, 1.5 * max(starts))), ylabel="seconds")
            handles = axis.get_lines() + seconds.get_lines()
            axis.legend(handles, [line.get_label() for line in handles], loc="center right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--point", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(point(*options.point, options.rounds)))
        return
    rows = []
    print("| " + " | ".join(COLUMNS) + " |\n" + "|--:" * len(COLUMNS) + "|")
    for clients, cohort in POINTS:
        command = [sys.executable, __file__, "--rounds", str(options.rounds), "--point", str(clients), str(cohort)]
        alone = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=alone)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print("| " + " | ".join(f"{rows[-1][column]:.5g}" for column in COLUMNS) + " |", flush=True)
    with open(options.out / "population.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: float(f"{value:.5g}") for name, value in row.items()} for row in rows)
    draw(rows, options.out / "population.png")


if __name__ == "__main__":
    main()
