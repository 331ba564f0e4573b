"""Measure what the bias correction of noised probabilities gains in training.

    python experiments/fedpm/correction.py > experiments/fedpm/correction.csv     two minutes of a core

Private FedPM on the digits, epsilon 3 (zero-out), 20 rounds, noise of standard deviation 0.3 on probabilities before
they are sampled. Runs of one seed differ in privacy.correction only.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from pathlib import Path

import torch

from dpfed.config.tables import override, parse
from dpfed.methods.catalogue import preset_tables
from dpfed.runs.experiment import build
from dpfed.runs.loop import run

SETTINGS = ("privacy.noise_std=0.3", "privacy.count_bits=")
FIELDS = ("correction", "seed", "rounds", "test_accuracy", "epsilon", "adjacency")


def row(correction: str, seed: int, rounds: int) -> dict[str, object]:
    """Return the results of one run."""
    changed = (f"privacy.correction={correction}", f"run.seed={seed}", f"federation.rounds={rounds}")
    tables = override(preset_tables("fedpm-private-digits"), [*SETTINGS, *changed, f"run.evaluate_every={rounds}"])
    with tempfile.TemporaryDirectory() as folder:
        summary = run(build(parse(tables, source="correction.py")), Path(folder) / "run").record
    known = {"correction": correction, "seed": seed, "rounds": rounds, "adjacency": summary.adjacency}
    return known | {"test_accuracy": f"{summary.test_accuracy:.4f}", "epsilon": summary.epsilon}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    writer.writeheader()
    for correction in ("none", "linear", "invert"):
        for seed in range(arguments.seeds):
            writer.writerow(row(correction, seed, arguments.rounds))


if __name__ == "__main__":
    main()
