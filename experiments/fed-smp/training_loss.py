"""Training loss of Figure 3 over the compression ratio, for the saved models of a sweep.

python experiments/fed-smp/training_loss.py SWEEP_FOLDER [--out DIR]

A run does not measure training loss, because no epsilon covers it. This script needs the training data and the models;
its output is for experiments, not for release. The loss is the mean cross-entropy of the last model over all samples
of all clients. Writes training-loss.csv (one line per run) and training-loss.png and .pdf with means and deviations
over seeds (`--out`, default the sweep's folder).
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dpfed.config.tables import parse
from dpfed.models.flat import FlatModel
from dpfed.report.collection import collect_runs
from dpfed.report.figures.experiment import Point, plot_over_axis
from dpfed.report.figures.figure import distinct_looks
from dpfed.runs.evaluate import evaluate
from dpfed.runs.experiment import build

FIELDS = ("row", "x", "seed", "rounds", "training_loss", "training_accuracy", "test_accuracy")


def training_loss(folder: Path, config: Mapping[str, Any]) -> tuple[float, float]:
    """Return loss and accuracy of the folder's model on the clients' samples."""
    experiment = build(parse(config, source=str(folder)))
    dataset, rows = experiment.dataset, experiment.method.clients.partition.indices
    weights = flat_weights(experiment.model, folder / "model.safetensors")
    inputs, labels = torch.from_numpy(dataset.train_inputs[rows]), torch.from_numpy(dataset.train_labels[rows])
    found = evaluate(experiment.model, weights, inputs, labels)
    return found.loss, found.accuracy


def flat_weights(model: FlatModel, file: Path) -> torch.Tensor:
    """Return the saved tensors in the order of the model's weights [d]."""
    tensors = load_file(file)
    return torch.cat([tensors[block.name].flatten() for block in model.layout])


def draw(lines: list[dict[str, Any]], axis: str, target: Path) -> None:
    """Draw the loss over the sweep's axis; rows without the axis are horizontal lines."""
    losses: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        losses[line["row"], line["x"]].append(line["training_loss"])
    points = [
        Point(
            name=row,
            x=float(x) if x else None,
            mean=statistics.fmean(some),
            std=statistics.stdev(some) if len(some) > 1 else 0.0,
        )
        for (row, x), some in losses.items()
    ]
    looks = distinct_looks([line["row"] for line in lines])
    xlabel, ylabel = f"entries kept, as a part of all ({axis})", "training loss, last round"
    plot_over_axis(points, target, xlabel=xlabel, ylabel=ylabel, logarithmic=True, looks=looks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or arguments.folder
    found = collect_runs([arguments.folder])
    axis = found.x or "method.keep"
    lines: list[dict[str, Any]] = []
    for run in found.runs:
        loss, accuracy = training_loss(run.folder, run.config)
        tested = run.summary.test_accuracy
        values = (run.row, run.at.get(axis, ""), run.summary.seed, run.summary.rounds, loss, accuracy, tested)
        lines.append(dict(zip(FIELDS, values, strict=True)))
        print(f"{run.row} {run.at.get(axis, '')} seed {run.summary.seed}: {loss:.4f}")
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "training-loss.csv", "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        writer.writeheader()
        writer.writerows(lines)
    draw(lines, axis, out / "training-loss.png")


if __name__ == "__main__":
    main()
