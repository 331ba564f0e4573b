"""Test accuracy of reduced precision compared with float32, over equal seeds. Prints a Markdown table.

    python benchmarks/precision.py [--precision bf16] [--seeds 5] [--device cpu]
                                   [--tasks "Fashion-MNIST, CNN 0.58M, 15 rounds of 12 of 300"]

Federated averaging without noise: clients by Dirichlet(1), ten steps on batches of ten, learning rate 0.1. The table
has the mean difference of two runs with one seed, and its standard error. Fashion-MNIST must be under DPFED_DATA_DIR.
On a GPU: `--precision tf32 --device cuda`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from dpfed.config.tables import parse
from dpfed.runs.experiment import build
from dpfed.runs.loop import run

TASKS: dict[str, dict[str, Any]] = {
    "digits, MLP 64-32, 40 rounds of 20 of 60": {
        "data": {"name": "digits"},
        "model": {"name": "mlp", "hidden": [32]},
        "federation": {"clients": 60, "cohort": 20, "rounds": 40},
    },
    "Fashion-MNIST, MLP 784-128, 30 rounds of 20 of 300": {
        "data": {"name": "fashion-mnist"},
        "model": {"name": "mlp", "hidden": [128]},
        "federation": {"clients": 300, "cohort": 20, "rounds": 30},
    },
    "Fashion-MNIST, CNN 0.58M, 15 rounds of 12 of 300": {
        "data": {"name": "fashion-mnist"},
        "model": {"name": "fed-smp-cnn-unpadded"},
        "federation": {"clients": 300, "cohort": 12, "rounds": 15},
    },
}


def accuracy(task: str, precision: str, seed: int, device: str) -> float:
    """Return the test accuracy after the last round."""
    chosen = TASKS[task]
    tables = {
        "data": {**chosen["data"], "partition": "dirichlet", "alpha": 1.0},
        "model": chosen["model"],
        "federation": {**chosen["federation"], "sampling": "fixed"},
        "local": {"learning_rate": 0.1, "batch_size": 10, "steps": 10, "precision": precision},
        "method": {"name": "fedavg"},
        "run": {"seed": seed, "device": device, "evaluate_every": chosen["federation"]["rounds"]},
    }
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(build(parse(tables, source=task)), Path(folder) / "run")
    found: float = outcome.summary["test_accuracy"]
    return found


def mean_and_deviation(values: list[float]) -> str:
    return f"{statistics.mean(values):.4f} ({statistics.stdev(values):.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=["bf16", "tf32"], default="bf16")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(f"| task | float32 | {options.precision} | difference |\n|---|--:|--:|--:|")
    for task in options.tasks:
        pairs = [
            [accuracy(task, precision, seed, options.device) for precision in ("float32", options.precision)]
            for seed in range(options.seeds)
        ]
        full, reduced = ([pair[place] for pair in pairs] for place in (0, 1))
        differences = [low - high for high, low in pairs]
        error = statistics.stdev(differences) / len(differences) ** 0.5
        difference = f"{statistics.mean(differences):+.4f} ± {error:.4f}"
        print(f"| {task} | {mean_and_deviation(full)} | {mean_and_deviation(reduced)} | {difference} |", flush=True)


if __name__ == "__main__":
    main()
