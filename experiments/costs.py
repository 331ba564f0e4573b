"""Estimate the hours of the papers' experiments on two CPU cores, by their profile "full", and write costs.csv.

    python experiments/costs.py

A run takes rounds x clients x steps x milliseconds of a step, by the cost model that local.strategy = "auto" uses
(`dpfed.clients.plan`, fitted on two cores); a step of the LSTM is measured. Evaluation and encoding are left out. Model
and counts are equal on all machines, so the estimate is, too.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

from dpfed import models
from dpfed.clients.plan import step_cost
from dpfed.config.own_code import load_files
from dpfed.config.tables import Config
from dpfed.sweep.experiment_file import read_experiment
from dpfed.sweep.plan import expand_grid

HERE = Path(__file__).parent
FOLDERS = ("fed-smp", "fedpm", "fedmrn", "fedscalar")
DATA = {
    "cifar-10": ((3, 32, 32), 10, 50_000),
    "cifar-100": ((3, 32, 32), 100, 50_000),
    "digits": ((8, 8), 10, 1438),
    "emnist-balanced": ((1, 28, 28), 47, 112_800),
    "fashion-mnist": ((1, 28, 28), 10, 60_000),
    "mnist": ((1, 28, 28), 10, 60_000),
    "shakespeare-leaf": ((80,), 80, 3_400_000),  # four fifths of the 4.2 million windows that LEAF states
    "svhn": ((3, 32, 32), 10, 73_257),
    "svhn-extra": ((3, 32, 32), 10, 604_388),
}
"""Shape of a sample, classes and training samples of each data set."""
MEASURED = {"char-lstm": 17.0}
"""Milliseconds of a step on two cores, where the model leaves out recurrent layers: 33 ms on one core, batch 4."""


@cache
def milliseconds(model: str, options: tuple[tuple[str, tuple[int, ...]], ...], data: str, batch: int) -> float:
    """Return the time of one client's step on two cores, one client a core."""
    if model in MEASURED:
        return MEASURED[model]
    shape, classes, _ = DATA[data]
    network = models.build(model, shape, classes, **dict(options))
    return step_cost(network, torch.zeros(1, *shape), batch).milliseconds_in_a_loop()


def hours(config: Config) -> float:
    """Return the estimated hours of one run."""
    samples = min(config.data.train_samples or math.inf, DATA[config.data.name][2]) - config.data.public
    local, clients = config.local, config.federation.clients
    steps = local.steps or (local.epochs or 1) * math.ceil(samples / clients / local.batch_size)
    hidden = config.model.hidden
    options = () if hidden is None else (("hidden", tuple(hidden)),)
    each = milliseconds(config.model.name, options, config.data.name, local.batch_size)
    return config.federation.rounds * config.round_size * steps * each / 3.6e6


def lines() -> Iterator[tuple[str, int, str]]:
    """Yield name, runs and hours of every experiment file, in order."""
    load_files([HERE / "accuracy" / "ideas.py"])  # methods of fed-smp/without-factor.toml
    for folder in FOLDERS:
        for path in sorted((HERE / folder).glob("*.toml")):
            experiment = read_experiment(path)
            runs = expand_grid(experiment, experiment.profile("full")[1]).runs
            yield f"{folder}/{path.stem}", len(runs), f"{float(f'{sum(hours(run.config) for run in runs):.2g}'):g}"


if __name__ == "__main__":
    with (HERE / "costs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("experiment", "runs", "hours"))
        writer.writerows(lines())
