"""FedMRN, Figure 6: duration of a client's training and of encoding its message.

python experiments/fedmrn/figure_6.py [--profile smoke|cpu|full] [--device cpu|cuda] [--out DIR]

There is no TOML for `dpfed sweep`, because only one client's work is timed. Rows and settings are those of
table-1-cifar-10.toml, on random images of its shape. The paper's figure shows means of 10 measurements without numbers;
its text states "up to one third of local training time" for the compression of EDEN and DRIVE. Times on a CPU are
process times of one thread, so that other work on the machine does not count. Writes figure-6.csv and figure-6.png.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch

from dpfed import data
from dpfed.aggregation.ranks import Task
from dpfed.config.tables import Config, override, parse
from dpfed.data.dataset import Dataset
from dpfed.report.figures.figure import figure
from dpfed.runs.experiment import build
from dpfed.stages.chain import client_halves
from dpfed.sweep.plan import plan

HERE = Path(__file__).parent
IMAGES = 500  # a client's share of CIFAR-10


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Number of measurements, epochs, network and input shape of a profile (None: as in Table 1)."""

    times: int
    epochs: int
    shape: tuple[int, ...] = (3, 32, 32)
    small: bool = False


PROFILES = {
    "smoke": Profile(times=2, epochs=1, shape=(1, 8, 8), small=True),
    "cpu": Profile(times=3, epochs=1),
    "full": Profile(times=10, epochs=10),
}


def configurations(profile: Profile, device: str) -> dict[str, Config]:
    """Return Table 1's IID rows for one client with random images."""
    file = HERE / "table-1-cifar-10.toml"
    settings = [
        "data.name=random-images",
        "federation.clients=1",
        "federation.cohort=1",
        "federation.sampling=all",
        f"local.epochs={profile.epochs}",
        f"run.device={device}",
        *(["model.name=mlp"] if profile.small else []),
    ]
    cells = [cell for cell in plan(file, profile="cpu", out=None).grid.cells if cell.at["split"] == "IID"]
    tables = {cell.row: cell.config.to_dict() for cell in cells}
    tables["FedAvg on FedPM's network"] = tables["FedAvg"] | {"model": tables["FedPM"]["model"]}
    for one in tables.values():
        one["data"] = {"name": "random-images"}
    return {row: parse(override(one, settings), source=row) for row, one in tables.items()}


def random_images(shape: tuple[int, ...]) -> Dataset:
    """Return random images and labels of the right shapes."""
    draw = np.random.default_rng(0)
    inputs = draw.standard_normal((IMAGES + 10, *shape)).astype(np.float32)
    labels = draw.integers(0, 10, IMAGES + 10)
    return Dataset(
        name="random-images",
        train_inputs=inputs[:IMAGES],
        train_labels=labels[:IMAGES],
        test_inputs=inputs[IMAGES:],
        test_labels=labels[IMAGES:],
        classes=10,
    )


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return process time on a CPU, or wall-clock time with synchronisation on a GPU."""
    on_gpu = device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    if on_gpu:
        torch.cuda.synchronize(device)
    start = clock()
    work()
    if on_gpu:
        torch.cuda.synchronize(device)
    return clock() - start


def measure(row: str, config: Config, times: int) -> dict[str, str | float]:
    """Return means and deviations over `times` measurements, after one warm-up."""
    experiment = build(config)
    method, weights, client = experiment.method, experiment.start.broadcast, np.zeros(1, dtype=np.int64)
    now = method.announce(Task(state=experiment.start, cohort=client, participants=client), experiment.seeds)
    training, coding = [], []
    for number in range(times + 1):
        moves: list[torch.Tensor] = []

        def train(number: int = number, moves: list[torch.Tensor] = moves) -> None:
            moves.append(method.clients.train(weights, client, number=number, seeds=experiment.seeds))

        def encode(number: int = number, moves: list[torch.Tensor] = moves) -> None:
            rows = client_halves(method.stages.before_wire, moves[0], client, now)
            method.stages.wire.messages(rows, client, now)

        training.append(seconds(train, experiment.device))
        coding.append(seconds(encode, experiment.device))
    return {
        "row": row,
        "training_seconds": fmean(training[1:]),
        "training_deviation": stdev(training[1:]),
        "message_seconds": fmean(coding[1:]),
        "message_deviation": stdev(coding[1:]),
        "parameters": experiment.model.size,
    }


def plot(rows: list[dict[str, str | float]], path: Path) -> None:
    with figure(path) as axis:
        names = [str(row["row"]) for row in rows]
        training = [float(row["training_seconds"]) for row in rows]
        message = [float(row["message_seconds"]) for row in rows]
        axis.bar(names, training, label="local training")
        axis.bar(names, message, bottom=training, label="making the message")
        axis.set(ylabel="seconds of one client")
        axis.tick_params(axis="x", rotation=45)
        axis.legend(frameon=False, fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="full", choices=PROFILES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    profile = PROFILES[arguments.profile]
    torch.set_num_threads(1)
    data.register("random-images", random_images(profile.shape))
    rows = []
    for row, config in configurations(profile, arguments.device).items():
        rows.append(measure(row, config, profile.times))
        print(f"{row}: training {rows[-1]['training_seconds']:.3g} s, message {rows[-1]['message_seconds']:.3g} s")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "figure-6.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    plot(rows, arguments.out / "figure-6.png")


if __name__ == "__main__":
    main()
