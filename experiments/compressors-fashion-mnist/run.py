"""Accuracy over rounds and megabytes of every method without privacy, on Fashion-MNIST with FedMRN's network.

    DPFED_DATA_DIR=... python experiments/compressors-fashion-mnist/run.py [--rounds 12] [--only fedmrns,drive]

Appends one line per evaluated round to curves.csv in this folder; methods already in the file are skipped. Then
draws curves.png.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path

from dpfed.config.tables import override, parse
from dpfed.methods import catalogue
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

HERE = Path(__file__).parent
COMMON = [
    "model.name=cnn-4-bn",
    "federation.clients=100",
    "federation.cohort=10",
    "federation.sampling=fixed",
    "local.epochs=1",
    "local.batch_size=60",
    "local.momentum=0.0",
    "local.learning_rate=0.1",
    "local.learning_rate_decay=1.0",
    "run.evaluate_every=2",
]
ROWS: dict[str, tuple[str, list[str]]] = {
    "fedavg": ("fedavg", []),
    "drive": ("drive", []),
    "eden 1 bit": ("eden", ["method.options.bits=1"]),
    "fedmrns": ("fedmrns", []),
    "fedmrn": ("fedmrn", []),
    "signsgd": ("signsgd", ["local.learning_rate=0.01"]),
    "terngrad": ("terngrad", []),
    "top-k 3%": ("fedavg-topk", ["method.keep=0.03"]),
    "rand-k 3%": ("fedavg-randk", ["method.keep=0.03", "local.learning_rate=0.01", "server.learning_rate=0.3"]),
    "qsgd 16 levels": ("qsgd", []),
    "fedsparsify 97%": ("fedsparsify", ["method.options.sparsity=0.97"]),
    "stochastic sign": ("stochastic-sign", ["local.learning_rate=0.01"]),
    "fedscalar p=20": ("fedscalar", ["method.options.projections=20", "server.learning_rate=0.003"]),
    "fedpm (strided-cnn)": ("fedpm", ["model.name=strided-cnn", "local.optimizer=adam"]),
    "fedmask (strided-cnn)": ("fedmask", ["model.name=strided-cnn", "local.optimizer=adam"]),
}
COLUMNS = ["row", "method", "round", "test_accuracy", "uplink_megabytes", "bits_per_parameter", "seconds"]


def run(row: str, rounds: int) -> list[dict[str, object]]:
    """Return the lines of one method."""
    method, settings = ROWS[row]
    tables = catalogue.preset_tables(f"{method}-fashion-mnist")
    config = parse(override(tables, [*COMMON, f"federation.rounds={rounds}", *settings]), source=row)
    with tempfile.TemporaryDirectory() as folder:
        outcome = federation.run(build(config), Path(folder) / "run", on_round=lambda record: print(row, record))
    return [
        {
            "row": row,
            "method": method,
            "round": record["round"],
            "test_accuracy": record["test_accuracy"],
            "uplink_megabytes": record["uplink_megabytes"],
            "bits_per_parameter": outcome.summary["uplink_bits_per_parameter"],
            "seconds": outcome.summary["seconds"],
        }
        for record in outcome.metrics
        if record["test_accuracy"] is not None
    ]


def draw(source: Path, target: Path) -> None:
    """Draw accuracy over rounds, and over uplink megabytes on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves: dict[str, list[dict[str, str]]] = {}
    for line in csv.DictReader(source.open()):
        curves.setdefault(line["row"], []).append(line)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.6), sharey=True)
    colours = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]
    for colour, (row, lines) in zip(colours, curves.items(), strict=False):
        accuracy = [100 * float(line["test_accuracy"]) for line in lines]
        left.plot([int(line["round"]) for line in lines], accuracy, color=colour, label=row)
        right.plot([float(line["uplink_megabytes"]) for line in lines], accuracy, color=colour)
    left.set(xlabel="round", ylabel="test accuracy, %")
    right.set(xlabel="uplink of all clients, MB", xscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="center right", fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0, 0.84, 1))
    figure.savefig(target, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", default=",".join(ROWS))
    chosen = parser.parse_args()
    target = HERE / "curves.csv"
    done = {line["row"] for line in csv.DictReader(target.open())} if target.exists() else set()
    for row in chosen.only.split(","):
        if row in done:
            continue
        lines = run(row, chosen.rounds)
        fresh = not target.exists()
        with target.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if fresh:
                writer.writeheader()
            writer.writerows(lines)
    draw(target, HERE / "curves.png")


if __name__ == "__main__":
    main()
