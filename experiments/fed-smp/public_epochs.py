"""Choose method.public_epochs of presets on public samples only.

python experiments/fed-smp/public_epochs.py PRESET ... [--epochs 1 2 5 10] [--splits 4] [--rounds 20]

The preset's public samples are split: a sixth for evaluation, half as public samples, and the remainder for simulated
clients of the preset's size. No sample of the preset's clients or its test half is used. The noise on the mean equals
the preset's: its noise multiplier is scaled by the ratio of the cohorts. A line of public_epochs.csv has the mean
accuracy over the second half of the rounds, averaged over the splits, and its standard error.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch

import dpfed
from dpfed.config.tables import Config, parse
from dpfed.data.samples import Public, public_samples, whole_data
from dpfed.methods.catalogue import preset_tables
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

OUT = Path(__file__).parent / "public_epochs.csv"
FIELDS = ("preset", "public_epochs", "accuracy", "standard_error", "splits", "rounds", "public", "clients", "evaluated")


def accuracy(config: Config, public: Public, held: int, epochs: int, split: int, rounds: int) -> tuple[float, int]:
    """Return the mean accuracy over the second half of the rounds, and the number of simulated clients."""
    order = np.random.default_rng(split).permutation(len(public.labels))
    evaluated, trained = np.split(order, [len(order) // 6])
    inputs, labels = public.inputs.numpy(), public.labels.numpy()
    halves = ((inputs[rows], labels[rows]) for rows in (trained, evaluated))
    data = dpfed.data.from_arrays(*halves, classes=int(labels.max()) + 1)
    carved = len(order) // 2
    clients = max(2, (len(trained) - carved) // held)
    noise = build(config).privacy_target.noise_multiplier * clients / config.federation.cohort
    settings = {
        "data.public": carved,
        "data.partition": "iid",
        "data.partition_seed": split,
        "data.features": None,
        "data.orientations": None,
        "federation.clients": clients,
        "federation.cohort": clients,
        "federation.sampling": "all",
        "federation.rounds": rounds,
        "method.public_epochs": epochs,
        "privacy.epsilon": None,
        "privacy.noise_multiplier": noise,
        "run.seed": split,
        "run.evaluate_every": 1,
    }
    with tempfile.TemporaryDirectory() as folder:
        found = dpfed.run(config.to_dict(), settings, data=data, out=Path(folder) / "run", progress=False)
    return statistics.fmean(one["test_accuracy"] for one in found.metrics[rounds // 2 :]), clients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="+")
    parser.add_argument("--epochs", nargs="+", type=int, default=[1, 2, 5, 10])
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    lines = list(csv.DictReader(OUT.open(encoding="utf-8"))) if OUT.exists() else []
    for name in arguments.presets:
        config = parse(preset_tables(name), source=name)
        whole, seeds = whole_data(config), Seeds(root=config.data.partition_seed)
        held = max(1, round(len(whole.train_labels) / config.federation.clients))
        _, public = public_samples(config, whole, seeds, torch.device("cpu"))
        for epochs in arguments.epochs:
            found = [accuracy(config, public, held, epochs, at, arguments.rounds) for at in range(arguments.splits)]
            values = [100 * value for value, _ in found]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            numbers = (name, epochs, round(statistics.fmean(values), 2), round(error, 2), len(values), arguments.rounds)
            line = dict(
                zip(FIELDS, map(str, (*numbers, len(public.labels), found[0][1], len(public.labels) // 6)), strict=True)
            )
            lines = [one for one in lines if (one["preset"], one["public_epochs"]) != (name, str(epochs))] + [line]
            print(line, flush=True)
            with OUT.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(lines)


if __name__ == "__main__":
    main()
