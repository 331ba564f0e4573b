"""Comparison of FedPM and FedMask with FedAvg, and of private FedPM with DP-FedAvg and Fed-SMP.

python experiments/fedpm-masks/run.py                    every row that is missing in results.csv, then the figures;
                                                         rows differ if their method.public_epochs differ
python experiments/fedpm-masks/run.py digits-private     rows of one group; also --row NAME and --seed N
python experiments/fedpm-masks/run.py --plot             the figures again

Writes results.csv (one line per row and seed), curves.csv (one line per evaluated round) and a figure for each group.
Fashion-MNIST and MNIST are read from $DPFED_DATA_DIR. Settings are the presets' with the changes in ROWS.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpfed.audit.run import audit_run
from dpfed.config.tables import Config, override, parse
from dpfed.methods import catalogue
from dpfed.models.frozen import load_mask
from dpfed.runs import loop as federation
from dpfed.runs.evaluate import evaluate
from dpfed.runs.experiment import Experiment, build
from dpfed.runs.sweep_folder import SAFELY

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from curves import plot_curves  # noqa: E402

RESULTS, CURVES = HERE / "results.csv", HERE / "curves.csv"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of a table: a preset, keys set on top of it, keys removed from it, and seeds."""

    preset: str
    settings: Sequence[str] = ()
    without: Sequence[str] = ()
    seeds: int = 1


IID = (
    "model.name=strided-cnn",
    "federation.clients=10",
    "federation.cohort=10",
    "federation.sampling=all",
    "federation.rounds=20",
    "local.epochs=1",
    "local.batch_size=128",
    "local.learning_rate_decay=1.0",
)
FEDAVG = (*IID, "local.learning_rate=0.05", "local.momentum=0.9")
# Bernoulli samples of the mask's probabilities, as in FedPM without privacy, not of their change.
OF_THE_MASK = ("mask.bound=", "privacy.edge=", "privacy.count_bits=", "privacy.clip_metric=fisher", "server.average=")
MASKS_OF_DIGITS = (*OF_THE_MASK, "privacy.linf_clip=0.4", "mask.edge=0.2")
SAME = ("privacy.adjacency=zero-out", "model.hidden=[256]")
EUCLIDEAN = ("privacy.clip_metric=euclidean",)  # the metric of the clip norms in these rows
WAY = (*MASKS_OF_DIGITS, *EUCLIDEAN)
SEEN = (*WAY, "privacy.release=uploads")
SAME_CNN = ("privacy.adjacency=zero-out", "model.name=strided-cnn", "federation.rounds=60", "run.evaluate_every=2")

AVERAGED = (*SAME_CNN, "method.keep=0.05", "server.learning_rate=2.0", "server.average=0.8")

ROWS: dict[str, dict[str, Row]] = {
    **{
        data: {
            "fedpm": Row(preset=f"fedpm-{data}"),
            "fedmask": Row(preset=f"fedmask-{data}"),
            "fedavg": Row(preset=f"fedavg-{data}", settings=FEDAVG),
        }
        for data in ("fashion-mnist", "mnist")
    },
    "digits-private": {
        "fedpm": Row(preset="fedpm-private-digits", settings=("privacy.count_bits=6",), seeds=5),
        "fedpm, masks": Row(preset="fedpm-private-digits", settings=MASKS_OF_DIGITS, seeds=5),
        "dp-fedavg": Row(preset="dp-fedavg-digits", settings=SAME, seeds=5),
        "fed-smp-topk, p = .1": Row(preset="fed-smp-topk-digits", settings=SAME, seeds=5),
        "fed-smp-topk, 7 bits": Row(preset="fed-smp-topk-digits", settings=(*SAME, "method.keep=0.218"), seeds=5),
    },
    "mnist-private": {
        "fedpm": Row(preset="fedpm-private-mnist", settings=("run.evaluate_every=2",), seeds=3),
        "dp-fedavg": Row(preset="dp-fedavg-mnist", settings=SAME_CNN, seeds=3),
        "fed-smp-topk, p = .05": Row(preset="fed-smp-topk-mnist", settings=(*SAME_CNN, "method.keep=0.05"), seeds=3),
        "fed-smp-topk, p = .05, averaged": Row(preset="fed-smp-topk-mnist", settings=AVERAGED, seeds=3),
    },
    # (a) every upload visible, (b) a sum of Bernoulli samples, (c) noise, Bernoulli samples and a sum
    "digits-ways": {
        "a, clip 1, noise .3": Row(
            preset="fedpm-private-digits",
            settings=(*SEEN, "privacy.clip_norm=1.0", "privacy.noise_std=0.3", "server.learning_rate=0.1"),
            without=("privacy.epsilon", "privacy.linf_clip"),
        ),
        "a, clip 3.32, noise .1": Row(
            preset="fedpm-private-digits",
            settings=(*SEEN, "privacy.clip_norm=3.32", "privacy.noise_std=0.1"),
            without=("privacy.epsilon", "privacy.linf_clip"),
        ),
        "b": Row(preset="fedpm-private-digits", settings=WAY, without=("privacy.linf_clip",)),
        "c, clip 3.32, noise .2": Row(
            preset="fedpm-private-digits",
            settings=(*WAY, "privacy.clip_norm=3.32", "privacy.noise_std=0.2"),
            without=("privacy.epsilon", "privacy.linf_clip"),
            seeds=3,
        ),
        "c, edge .1, noise .3": Row(
            preset="fedpm-private-digits",
            settings=(*WAY, "mask.edge=0.1", "mask.scale=3.0", "privacy.noise_std=0.3"),
            without=("privacy.linf_clip",),
            seeds=3,
        ),
        "dp-fedavg": Row(preset="dp-fedavg-digits", settings=(*SAME, "privacy.epsilon=1.9"), seeds=3),
    },
    # Bernoulli samples of updates of ordinary weights
    "digits-signs": {
        "signs": Row(
            preset="stochastic-sign-digits",
            settings=(
                *("privacy.noise=coins", "privacy.epsilon=3", "privacy.adjacency=zero-out", "privacy.edge=0.2"),
                *("method.options.bound=0.3", "server.learning_rate=1.0", "server.average=0.8"),
            ),
            seeds=5,
        ),
        "dp-fedavg": Row(preset="dp-fedavg-digits", settings=("privacy.adjacency=zero-out",), seeds=5),
    },
    "fashion-mnist-private": {
        "fedpm": Row(preset="fedpm-private-fashion-mnist", settings=("run.evaluate_every=2",), seeds=3),
        "dp-fedavg": Row(preset="dp-fedavg-fashion-mnist", settings=SAME_CNN, seeds=3),
        "fed-smp-topk, p = .005": Row(preset="fed-smp-topk-fashion-mnist", settings=SAME_CNN),
        "fed-smp-topk, p = .05": Row(
            preset="fed-smp-topk-fashion-mnist", settings=(*SAME_CNN, "method.keep=0.05"), seeds=3
        ),
        "fed-smp-topk, p = .05, averaged": Row(preset="fed-smp-topk-fashion-mnist", settings=AVERAGED, seeds=3),
    },
}


def tables_of(row: Row, seed: int) -> dict[str, Any]:
    """Return the tables of the configuration."""
    tables = override(catalogue.preset_tables(row.preset), [*row.settings, f"run.seed={seed}"])
    for path in row.without:
        table, key = path.split(".")
        del tables[table][key]
    if "privacy" in tables:
        tables["privacy"]["delta"] = tables["federation"]["clients"] ** -1.1
    return tables


def accuracy_of_mask_file(path: Path, experiment: Experiment) -> float:
    """Return the test accuracy of the network rebuilt from the mask file alone."""
    model, weights = load_mask(path)
    inputs, labels = experiment.dataset.test_inputs, experiment.dataset.test_labels
    return evaluate(model, weights, torch.from_numpy(inputs), torch.from_numpy(labels)).accuracy


def run(group: str, name: str, seed: int) -> None:
    """Train one row and append its lines; the line of results.csv is written last and marks the row as complete."""
    experiment = build(parse(tables_of(ROWS[group][name], seed), source=f"{group}/{name}"))
    with tempfile.TemporaryDirectory() as folder:
        outcome = federation.run(experiment, Path(folder) / "run")
        verdict = None if experiment.privacy_target is None else audit_run(outcome.folder).verdict
        if verdict not in (None, "pass"):
            raise SystemExit(f"{group}/{name}, seed {seed}: `dpfed audit FOLDER` says {verdict}; no line is written.")
        mask = outcome.folder / "model.mask.safetensors"
        from_file = accuracy_of_mask_file(mask, experiment) if mask.exists() else None
    about = {"group": group, "row": name, "seed": seed}
    kept = ("round", "test_accuracy", "epsilon", "uplink_megabytes")
    append(
        CURVES,
        [
            about | {k: m[k] if k in SAFELY else _short(m[k]) for k in kept}
            for m in outcome.metrics
            if m["test_accuracy"] is not None
        ],
    )
    kept = ("parameters", "rounds", "test_accuracy", "best_test_accuracy", "epsilon", "delta", "adjacency")
    kept += ("clip_norm", "noise_multiplier", "uplink_bits_per_parameter", "uplink_megabytes_total")
    line = about | {"public_epochs": period_of(experiment.config)}
    line |= {k: outcome.summary[k] if k in SAFELY else _short(outcome.summary[k]) for k in kept}
    line["mask_file_bits_per_parameter"] = _short(outcome.summary.get("model_bits_per_parameter"))
    line["mask_file_accuracy"] = _short(from_file)
    line["audit"] = verdict
    line["seconds"] = round(outcome.summary["seconds"])
    append(RESULTS, [line])
    print(group, name, f"seed {seed}", {k: v for k, v in line.items() if k not in about}, flush=True)


def period_of(config: Config) -> str:
    """Return the passes over public samples, which determine coordinates; "" for methods without public samples."""
    table = config.method
    return str(table.public_epochs) if config.data.public and (table.keep, table.k) != (None, None) else ""


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def append(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    fresh = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        if fresh:
            writer.writeheader()
        writer.writerows(lines)


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def plot() -> None:
    """Draw a figure for each group with rows, for the first seed."""
    lines = read(CURVES)
    for group in ROWS:
        curves: dict[str, dict[int, dict[str, Any]]] = {}
        for line in lines:
            if line["group"] == group and line["seed"] == "0":
                # An interrupted and repeated row has its rounds twice; the last line counts.
                curves.setdefault(line["row"], {})[int(line["round"])] = {
                    k: float(v) if v else None for k, v in line.items() if k not in ("group", "row", "seed")
                }
        if curves:
            plot_curves({name: list(rounds.values()) for name, rounds in curves.items()}, HERE / f"{group}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(ROWS)}; default: all")
    parser.add_argument("--row", action="append", help="only rows of this name; may be given again")
    parser.add_argument("--seed", type=int, action="append", help="only this seed; may be given again")
    parser.add_argument("--plot", action="store_true", help="draw the figures and stop")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.groups) - set(ROWS)):
        parser.error(f"unknown group {unknown[0]!r}: must be of {', '.join(ROWS)}")
    done = {(line["group"], line["row"], int(line["seed"]), line["public_epochs"]) for line in read(RESULTS)}
    for group in [] if chosen.plot else chosen.groups or list(ROWS):
        for name, row in ROWS[group].items():
            for seed in range(row.seeds):
                wanted = (not chosen.row or name in chosen.row) and (not chosen.seed or seed in chosen.seed)
                period = period_of(parse(tables_of(row, seed), source=f"{group}/{name}"))
                if wanted and (group, name, seed, period) not in done:
                    run(group, name, seed)
    plot()


if __name__ == "__main__":
    main()
