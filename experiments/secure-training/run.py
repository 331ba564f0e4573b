"""Fed-SMP and FedPM with secure sums and a dropout of a tenth in every round, compared with a trusted sum.

python experiments/secure-training/run.py               rows and seeds that are missing in results.csv, then the table
python experiments/secure-training/run.py --table       only the table

Embedded digits, 650 clients, Poisson cohorts of 65, zero-out, epsilon 3 at delta 650^-1.1, 60 rounds.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from accounting.rounding import upwards
from dpfed.audit.run import audit_run
from dpfed.config.tables import override, parse
from dpfed.methods import catalogue
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

RESULTS = Path(__file__).parent / "results.csv"
SEEDS = 5
FIELDS = (
    "row", "seed", "test_accuracy", "epsilon", "server_epsilon", "server_epsilon_rounds", "aborted_rounds", "rounds",
    "uplink_bytes_per_client_round", "secure_sum_bytes_per_client_round", "seconds", "audit",
)  # fmt: skip

DELTA = f"privacy.delta={650**-1.1!r}"
ZERO_OUT = ("privacy.adjacency=zero-out",)
LOST = ("aggregation.dropout=0.1",)
PROTOCOL = ("aggregation.kind=protocol", "aggregation.neighbours=20")
SHARES = (*ZERO_OUT, "privacy.noise=discrete-gaussian", "privacy.placement=clients")
CHARGED = ("privacy.missing_shares=charged",)
SKELLAM = (*ZERO_OUT, "privacy.noise=skellam", "privacy.placement=clients")
FED_SMP, FEDPM = "fed-smp-randk-digits", "fedpm-private-digits"

ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Fed-SMP, trusted sum, Gaussian noise of the server": (FED_SMP, ZERO_OUT),
    "Fed-SMP, trusted sum, discrete Gaussian shares": (FED_SMP, SHARES),
    "Fed-SMP, protocol, 10% lost, shares sized for it": (FED_SMP, (*SHARES, *PROTOCOL, *LOST)),
    "Fed-SMP, protocol, 10% lost, charged what arrived": (FED_SMP, (*SHARES, *PROTOCOL, *LOST, *CHARGED)),
    "Fed-SMP, protocol, 10% lost, Skellam shares sized": (FED_SMP, (*SKELLAM, *PROTOCOL, *LOST)),
    "FedPM, trusted sum": (FEDPM, ()),
    "FedPM, protocol, 10% lost": (FEDPM, (*PROTOCOL, *LOST)),
}


def run_row(name: str, seed: int) -> dict[str, Any]:
    preset, settings = ROWS[name]
    config = parse(
        override(catalogue.preset_tables(preset), [*settings, DELTA, f"run.seed={seed}", "run.evaluate_every=60"]),
        source=name,
    )
    with tempfile.TemporaryDirectory() as folder:
        outcome = federation.run(build(config), Path(folder) / "run")
        verdict = audit_run(outcome.folder).verdict
    if verdict != "pass":
        raise SystemExit(f"{name}, seed {seed}: `dpfed audit FOLDER` says {verdict}; no line is written.")
    return {"row": name, "seed": seed, **{key: outcome.summary[key] for key in FIELDS[2:-1]}, "audit": verdict}


def done() -> list[dict[str, str]]:
    if not RESULTS.exists():
        return []
    with open(RESULTS, newline="") as file:
        return list(csv.DictReader(file))


def run_missing() -> None:
    present = {(line["row"], int(line["seed"])) for line in done()}
    new = not RESULTS.exists()
    for seed in range(SEEDS):
        for name in ROWS:
            if (name, seed) in present:
                continue
            record = run_row(name, seed)
            with open(RESULTS, "a", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                if new:
                    writer.writeheader()
                    new = False
                writer.writerow(record)
            print(name, seed, f"{record['test_accuracy']:.2%}", f"{record['seconds']:.1f} s", flush=True)


def print_table() -> None:
    print(
        "| | accuracy, mean and each seed | epsilon, zero-out | against the server "
        "| bytes a client and round | aborted |"
    )
    print("|---|---|--:|--:|--:|--:|")
    for name in ROWS:
        lines = [line for line in done() if line["row"] == name]
        if not lines:
            continue
        accuracies = [float(line["test_accuracy"]) for line in lines]
        server = max((float(line["server_epsilon"] or 0) for line in lines), default=0)
        times = lines[0]["server_epsilon_rounds"]
        print(
            f"| {name} | {statistics.mean(accuracies):.1%} ({', '.join(f'{a:.1%}' for a in accuracies)}) "
            f"| {upwards(max(float(line['epsilon']) for line in lines))} "
            f"| {f'{upwards(server)} if drawn {times} times' if server else '–'} "
            f"| {lines[0]['uplink_bytes_per_client_round']} (of them {lines[0]['secure_sum_bytes_per_client_round']}) "
            f"| {sum(int(line['aborted_rounds']) for line in lines)} of {sum(int(line['rounds']) for line in lines)} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only print the table")
    torch.set_num_threads(1)
    if not parser.parse_args().table:
        run_missing()
    print_table()
