"""FedScalar's Figures 2 and 3, and further gradient norms, bytes, and the variance of a round.

python experiments/fedscalar/run.py                  rows and seeds that are missing in curves.csv, then the figures
python experiments/fedscalar/run.py --seeds 4 7      only these seeds, or --rows FedAvg
python experiments/fedscalar/run.py --plot           the figures again
python experiments/fedscalar/run.py --profile smoke --out DIR

Rows and settings are those of figure-2.toml. A run folder has test accuracy and bytes; this script adds, on the whole
training set, the loss and the squared norm of its gradient. Writes curves.csv, variance.csv and the two figures.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpfed import compress
from dpfed.config.tables import Config
from dpfed.report.figures.figure import figure
from dpfed.round import run_round
from dpfed.runs.evaluate import evaluate
from dpfed.runs.experiment import Experiment, build
from dpfed.sources import TrainedClients
from dpfed.sweep.plan import plan

HERE = Path(__file__).parent
FIELDS = ("row", "seed", "round", "train_loss", "gradient_norm_squared", "test_accuracy", "uplink_bits_per_client")
DECODED_WITH = {"Gaussian": "gaussian", "Rademacher": "rademacher"}
NUMBER_AND_SEED = 32 + 64  # bits, without the frame around them
_AT_ONCE = 100  # rounds decoded together


def covariance_trace(updates: Tensor, vectors: str) -> float:
    """Return the exact total variance of (1/N) sum_n <x_n, v_n> v_n over the directions, for updates x [N, d].

    With E v = 0 and E v v^T = I the clients' terms are independent with mean x_n, and E (<x, v> v)(<x, v> v)^T is
    ||x||^2 I + 2 x x^T for a Gaussian, and that minus 2 diag(x^2) for signs (E v_i^4 is 3, or 1). The covariance is
    (1/N^2) sum_n (||x_n||^2 I + x_n x_n^T), minus (2/N^2) sum_n diag(x_n^2) for signs; its trace has the factor
    d + 1, or d - 1. The paper's Proposition III.1 counts the terms of equal index twice and puts ||x||^2 I where
    diag(x^2) belongs; it finds a difference d times as large.
    """
    clients, dimension = updates.shape
    factor = dimension + 1 if vectors == "gaussian" else dimension - 1
    return factor * float(updates.double().square().sum()) / clients**2


def variance_rows(experiment: Experiment, weights: Tensor, draws: int) -> list[dict[str, Any]]:
    """Return measured and exact variance of one round's step at `weights`, for both kinds of directions."""
    clients = np.arange(experiment.config.federation.clients)
    updates = experiment.method.clients.train(weights, clients, number=0, seeds=experiment.seeds)
    mean, rows = updates.mean(dim=0), []
    for name, vectors in DECODED_WITH.items():
        scheme = compress.get("fedscalar", vectors=vectors)
        errors: list[float] = []
        for draw in range(0, draws, _AT_ONCE):
            decoded = scheme.decode(scheme.encode(updates.repeat(_AT_ONCE, 1), seed=draw))
            steps = decoded.view(_AT_ONCE, len(clients), -1).mean(dim=1)
            errors += (steps - mean).double().square().sum(dim=1).tolist()
        rows.append(
            {
                "directions": name,
                "draws": len(errors),
                "measured": statistics.fmean(errors),
                "standard_error": statistics.stdev(errors) / len(errors) ** 0.5,
                "exact": covariance_trace(updates, vectors),
                "squared_norm_of_the_mean_update": float(mean.double().square().sum()),
            }
        )
    return rows


def losses(experiment: Experiment, weights: Tensor) -> tuple[float, float]:
    """Return the mean cross-entropy on all training images, and the squared norm of its gradient."""
    weights = weights.detach().clone().requires_grad_()
    inputs = torch.from_numpy(experiment.dataset.train_inputs)
    labels = torch.from_numpy(experiment.dataset.train_labels)
    loss = cross_entropy(experiment.model.forward(weights, inputs), labels)
    (gradient,) = torch.autograd.grad(loss, weights)
    return float(loss.detach()), float(gradient.double().square().sum())


def train(experiment: Experiment, row: str, seed: int) -> Iterable[dict[str, Any]]:
    """Return a record for each round of a grid that is finer at the start."""
    state, config = experiment.start, experiment.config
    a_round = 32 * experiment.model.size if config.method.name == "fedavg" else NUMBER_AND_SEED
    test = tuple(map(torch.from_numpy, (experiment.dataset.test_inputs, experiment.dataset.test_labels)))
    while True:
        every = config.run.evaluate_every
        if state.round % every == 0 or (state.round < every and state.round % max(every // 10, 1) == 0):
            loss, gradient = losses(experiment, state.broadcast)
            yield {
                "row": row,
                "seed": seed,
                "round": state.round,
                "train_loss": loss,
                "gradient_norm_squared": gradient,
                "test_accuracy": evaluate(experiment.model, state.broadcast, *test).accuracy,
                "uplink_bits_per_client": a_round * state.round,
            }
        if state.round == config.federation.rounds:
            return
        source = TrainedClients(seeds=experiment.seeds)
        state = run_round(state, experiment.method, source, seeds=experiment.seeds, ledger=None).state


def experiments(profile: str) -> dict[tuple[str, int], Config]:
    """Return the configuration of every row and seed of figure-2.toml, seed by seed."""
    cells = plan(HERE / "figure-2.toml", profile=profile, out=None).grid.cells
    return {
        (cell.row, cell.config.run.seed): cell.config for cell in sorted(cells, key=lambda one: one.config.run.seed)
    }


def common_seeds(curves: Path) -> list[dict[str, str]]:
    """Return the records of seeds that all rows have, so that rows start from equal weights."""
    with curves.open(newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    seeds = [{record["seed"] for record in records if record["row"] == row} for row in {r["row"] for r in records}]
    return [record for record in records if record["seed"] in set.intersection(*seeds)]


def plot(curves: Path, out: Path) -> None:
    """Draw Figure 2 (loss, gradient) and Figure 3 (accuracy) over rounds and bytes: mean and range over seeds."""
    records = common_seeds(curves)
    names = list(dict.fromkeys(record["row"] for record in records))
    panels = {
        "figure-2.png": [("train_loss", "training loss"), ("gradient_norm_squared", "squared norm of the gradient")],
        "figure-3.png": [("test_accuracy", "test accuracy")],
    }
    for file_name, quantities in panels.items():
        with figure(out / file_name, columns=2 * len(quantities)) as axes:
            for number, (quantity, label) in enumerate(quantities):
                for axis, x in zip(axes[2 * number : 2 * number + 2], ("round", "uplink_bits_per_client"), strict=True):
                    for name in names:
                        _draw(axis, [record for record in records if record["row"] == name], x, quantity, name)
                    axis.set(xlabel="round" if x == "round" else "bits that a client has sent", ylabel=label)
                    axis.set_xscale("linear" if x == "round" else "log")
                    if quantity == "gradient_norm_squared":
                        axis.set_yscale("log")
            axes[0].legend(frameon=False, fontsize=8)


def table(curves: Path) -> str:
    """Return means over seeds at a few rounds as a Markdown table."""
    records = common_seeds(curves)
    lines = ["| | seeds | round | training loss | squared norm of the gradient | test accuracy | bits a client |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for name in dict.fromkeys(record["row"] for record in records):
        for round in ("600", "2000", "10000"):
            here = [record for record in records if record["row"] == name and record["round"] == round]
            if here:
                loss, gradient, accuracy = (
                    statistics.fmean(float(record[key]) for record in here)
                    for key in ("train_loss", "gradient_norm_squared", "test_accuracy")
                )
                lines.append(
                    f"| {name} | {len(here)} | {int(round):,} | {loss:.3f} | {gradient:.4f} | {accuracy:.1%} | "
                    f"{int(here[0]['uplink_bits_per_client']):,} |"
                )
    return "\n".join(lines)


def _draw(axis: Any, records: list[dict[str, str]], x: str, quantity: str, name: str) -> None:
    rounds = sorted({int(record["round"]) for record in records})
    at = {round: [record for record in records if int(record["round"]) == round] for round in rounds}
    rounds = [round for round in rounds if x == "round" or round > 0]
    along = [float(at[round][0][x]) for round in rounds]
    values = [[float(record[quantity]) for record in at[round]] for round in rounds]
    (line,) = axis.plot(along, [statistics.fmean(v) for v in values], label=name, linewidth=1.2)
    axis.fill_between(
        along, [min(v) for v in values], [max(v) for v in values], color=line.get_color(), alpha=0.2, lw=0
    )


def _append(path: Path, rows: list[dict[str, Any]]) -> None:
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def _finished(curves: Path) -> set[tuple[str, int]]:
    if not curves.exists():
        return set()
    with curves.open(newline="", encoding="utf-8") as file:
        return {(record["row"], int(record["seed"])) for record in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="full", choices=("smoke", "cpu", "full"))
    parser.add_argument("--rows", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="*")
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    curves, variance = arguments.out / "curves.csv", arguments.out / "variance.csv"
    arguments.out.mkdir(parents=True, exist_ok=True)
    configs = experiments(arguments.profile)
    if not arguments.plot:
        if not variance.exists():
            first = build(next(iter(configs.values())))
            draws = 100 if arguments.profile == "smoke" else 20_000
            _append(variance, variance_rows(first, first.start.broadcast, draws))
        for (row, seed), config in configs.items():
            wanted = row in (arguments.rows or [row]) and seed in (arguments.seeds or [seed])
            if wanted and (row, seed) not in _finished(curves):
                _append(curves, list(train(build(config), row, seed)))
                print(f"{row}, seed {seed}: done", flush=True)
    plot(curves, arguments.out)
    print(table(curves))


if __name__ == "__main__":
    main()
