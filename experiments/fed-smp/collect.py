"""Collect single runs of Table I's rows and compare them with the paper.

python experiments/fed-smp/collect.py RUN_FOLDER ...     finished or not; rows are found by the settings
    [--load experiments/accuracy/ideas.py]               code that a run needs, as for `dpfed run`
    [--failed]                                           write runs whose audit fails, too, with that verdict

A whole sweep does not need this script: `dpfed sweep experiments/fed-smp/table-1.toml --out DIR`, then `dpfed report
DIR`. A private run must pass `dpfed audit FOLDER` unless --failed is given. Writes results.csv (one line per run,
replacing an earlier line), curves.csv and curves.png in this folder or in --out, and prints a Markdown table. The
paper's epsilon is for Poisson sampling, add-remove, Renyi orders and the classical conversion, for any sampler; the
valid epsilon is recomputed from the ledger.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tomllib
from pathlib import Path
from typing import Any

from accounting import Ledger, budget
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.audit.run import audit_run
from dpfed.config.own_code import load_files

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from curves import plot_curves  # noqa: E402

METHODS = {
    "fedavg": "FedAvg",
    "fedavg-topk": "FedAvg-topk",
    "fedavg-randk": "FedAvg-randk",
    "dp-fedavg": "DP-FedAvg",
    "fed-smp-topk": "Fed-SMP top-k",
    "fed-smp-randk": "Fed-SMP rand-k",
    "half-drawn": "Fed-SMP rand-k without d/k",  # without-factor.toml
}
FIELDS = (
    "row", "x", "seed", "rounds", "public_epochs", "test_accuracy", "best_test_accuracy", "published_best",
    "noise_multiplier", "epsilon_in_the_papers_way", "epsilon", "lower_bound", "uplink_megabytes", "audit",
    "device",
)  # fmt: skip
PICTURED = {
    ("FedAvg", ""), ("DP-FedAvg", ""), ("Fed-SMP top-k", "0.005"), ("Fed-SMP rand-k", "0.4"),
    ("Fed-SMP rand-k", "0.05"), ("FedAvg-randk", "0.05"), ("FedAvg-topk", "0.005"),
}  # fmt: skip
"""Methods and ratios in curves.png: main rows of Table I and of Figure 3."""
NEAREST = ("test_accuracy", "best_test_accuracy", "published_best", "uplink_megabytes")
CURVE_FIELDS = ("row", "x", "seed", "round", "test_accuracy", "epsilon", "uplink_megabytes")


def row_of(config: dict[str, Any]) -> str:
    """Return the row of table-1.toml or figure-3-fashion-mnist.toml: its method, and its block by sampler and noise."""
    name, privacy = METHODS[config["method"]["name"]], config.get("privacy")
    if config["method"].get("noiseless"):  # Figure 3's
        return f"{name.replace('Fed-SMP ', 'FedAvg-').replace('-k', 'k')}, shared coordinates"
    if privacy is None:
        return name
    if config["federation"]["sampling"] == "fixed":
        block = "the clients' public period" if public_epochs(config) == "clients" else "as published"
        return f"{name}, {block}"
    if privacy.get("noise_multiplier") == 1.4:
        return f"{name}, Poisson"
    epsilon = privacy["epsilon"]
    return f"{name}, {'tight' if epsilon == 1.01 else f'epsilon {upwards(epsilon)}'}"


def public_epochs(config: dict[str, Any]) -> str:
    """Return the server's passes over public samples, which determine top-k's coordinates; "" for other methods."""
    if config["method"]["name"] != "fed-smp-topk":
        return ""
    return str(config["method"].get("public_epochs", "client-steps"))


def read(folder: Path, *, failed: bool = False) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the run's line of results.csv, and its metrics. failed: True if the audit may fail."""
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    accuracies = [record["test_accuracy"] for record in metrics if record["test_accuracy"] is not None]
    line = {
        "row": row_of(config),
        "x": f"{config['method']['keep']:g}" if "keep" in config["method"] else "",
        "seed": config["run"]["seed"],
        "rounds": metrics[-1]["round"],
        "public_epochs": public_epochs(config),
        "test_accuracy": 100 * accuracies[-1],
        "best_test_accuracy": 100 * max(accuracies),
        "uplink_megabytes": metrics[-1]["uplink_megabytes"],
        "device": device(folder) + ("" if config["local"].get("precision", "float32") == "float32" else ", bf16"),
    }
    line["published_best"] = published().get((line["row"], line["x"]), "")
    line["audit"] = audit_run(folder).verdict if "privacy" in config else ""
    if line["audit"] not in ("", "pass", *(["fail"] if failed else [])):
        raise SystemExit(f"{folder}: `dpfed audit FOLDER` says {line['audit']}; nothing is written.")
    return line | epsilons(folder, config, line["rounds"]), metrics


def device(folder: Path) -> str:
    """Return the name of the GPU, or the device, of a finished run; "cpu" for a run without a summary."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return summary.get("gpu") or summary.get("device") or "cpu"


def epsilons(folder: Path, config: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return epsilon from the ledger, and by the paper's formula for this number of rounds."""
    if "privacy" not in config:
        return dict.fromkeys(("noise_multiplier", "epsilon_in_the_papers_way", "epsilon", "lower_bound"), "")
    federation = config["federation"]
    delta = config["privacy"].get("delta") or federation["clients"] ** -1.1  # folders of version 0.2 lack the key
    ledger = Ledger.read(folder / "ledger.jsonl")
    holds = ledger.guarantee(delta)
    noise = ledger.releases[-1].mechanism.mechanism.noise_multiplier
    plan = budget.Plan(
        clients=federation["clients"],
        cohort=federation["cohort"],
        sampling="poisson",
        adjacency=Adjacency.ADD_REMOVE,
        delta=delta,
    )
    theirs = budget.epsilon(plan, noise_multiplier=noise, rounds=rounds, accountant="rdp", conversion="classical")
    return {
        "noise_multiplier": noise,
        "epsilon_in_the_papers_way": theirs,
        "epsilon": holds.epsilon,
        "lower_bound": holds.lower_bound or "",
    }


def published() -> dict[tuple[str, str], float]:
    with (HERE / "table-1.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["quantity"] == "best_test_accuracy"]
    return {(line["row"], line["x"]): float(line["value"]) for line in lines}


def merge(path: Path, fields: tuple[str, ...], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write the new lines and the file's lines of other runs; a run is identified by row, ratio and seed."""
    gone = {(line["row"], line["x"], str(line["seed"])) for line in new}
    old: list[dict[str, Any]] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            old = [line for line in csv.DictReader(file) if (line["row"], line["x"], line["seed"]) not in gone]
    rounded = [{k: f"{v:.6g}" if k in NEAREST and isinstance(v, float) else v for k, v in line.items()} for line in new]
    lines = sorted([*old, *rounded], key=lambda line: (line["row"], line["x"], str(line["seed"])))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    def number(value: str, digits: int) -> str:
        return f"{float(value):.{digits}f}" if str(value) else ""

    def safely(value: str) -> str:
        return upwards(float(value)) if str(value) else ""

    head = (
        "| | p | public epochs | seed | rounds | last | best | published | noise "
        "| epsilon, the paper's way, add-remove | epsilon that holds | neighbours | audit | device |"
    )
    rows = [
        f"| {line['row']} | {line['x']} | {line['public_epochs']} | {line['seed']} | {line['rounds']} | "
        f"{number(line['test_accuracy'], 2)} | "
        f"{number(line['best_test_accuracy'], 2)} | {number(line['published_best'], 2)} | "
        f"{safely(line['noise_multiplier'])} | {safely(line['epsilon_in_the_papers_way'])} | "
        f"{safely(line['epsilon'])} | {neighbours(line['row'])} | {line.get('audit') or ''} | "
        f"{line.get('device') or ''} |"
        for line in lines
    ]
    return "\n".join([head, "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|---|---|---|", *rows])


def neighbours(row: str) -> str:
    """Return the neighbours that the epsilon of a row's sampler is for: fixed size as published, Poisson otherwise."""
    block = row.partition(", ")[2]
    return {
        "": "",
        "shared coordinates": "",
        "as published": "replace-one",
        "the clients' public period": "replace-one",
    }.get(block, "add-remove")


def mean_of_seeds(points: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return a row's point of one round, as the mean over seeds."""
    here = [[point[field] for point in points if point[field] not in ("", None)] for field in CURVE_FIELDS[3:]]
    return {
        field: statistics.fmean(map(float, values)) if values else None
        for field, values in zip(CURVE_FIELDS[3:], here, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--failed", action="store_true")
    parser.add_argument("--load", type=Path, nargs="*", default=[])
    arguments = parser.parse_args()
    load_files(arguments.load)
    found = [read(folder, failed=arguments.failed) for folder in arguments.folders]
    lines = merge(arguments.out / "results.csv", FIELDS, [line for line, _ in found])
    points = [
        {field: record[field] for field in CURVE_FIELDS[3:]} | {field: line[field] for field in CURVE_FIELDS[:3]}
        for line, metrics in found
        for record in metrics
        if record["test_accuracy"] is not None
    ]
    curves = merge(arguments.out / "curves.csv", CURVE_FIELDS, points)
    runs: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for point in curves:
        method, comma, block = point["row"].partition(", ")
        if (method, point["x"]) not in PICTURED:
            continue
        name = method + (f" {point['x']}" if point["x"] else "") + comma + block
        runs.setdefault(name, {}).setdefault(int(point["round"]), []).append(point)
    means = {name: [mean_of_seeds(of[number]) for number in sorted(of)] for name, of in runs.items()}
    plot_curves(means, arguments.out / "curves.png")
    print(table(lines))


if __name__ == "__main__":
    main()
