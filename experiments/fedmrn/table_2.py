"""FedMRN, Table 2: accuracy lost compared with FedAvg, in points, summed over the three splits of Table 1.

python experiments/fedmrn/table_2.py fashion-mnist=runs/fedmrn-table-1-fashion-mnist-full svhn=DIR ...
python experiments/fedmrn/table_2.py --published        computes Table 2 from the paper's Table 1

The table needs no further runs: DIR is the folder of `dpfed sweep experiments/fedmrn/table-1-DATA.toml --out DIR`.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from dpfed.sweep.plan import plan

HERE = Path(__file__).parent
DATA = ("fashion-mnist", "svhn", "cifar-10", "cifar-100")
Accuracies = dict[tuple[str, str], float]  # (row, split) -> percent


def losses(accuracies: Accuracies) -> dict[str, float]:
    """Return the sum over splits of (accuracy - FedAvg's accuracy), for rows with all of FedAvg's splits."""
    splits = [split for row, split in accuracies if row == "FedAvg"]
    rows = dict.fromkeys(row for row, _ in accuracies if row != "FedAvg")
    return {
        row: sum(accuracies[row, split] - accuracies["FedAvg", split] for split in splits)
        for row in rows
        if all((row, split) in accuracies for split in splits)
    }


def published_accuracies(data: str) -> Accuracies:
    with (HERE / f"table-1-{data}.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["quantity"] == "test_accuracy"]
    return {(line["row"], line["x"]): float(line["value"]) for line in lines}


def published_losses(data: str) -> dict[str, float]:
    with (HERE / "table-2.csv").open(encoding="utf-8", newline="") as file:
        return {line["row"]: float(line[data]) for line in csv.DictReader(file)}


def accuracies_of_runs(data: str, folder: Path, profile: str) -> Accuracies:
    """Return the mean over seeds of the last accuracy of finished runs."""
    found = defaultdict(list)
    for cell in plan(HERE / f"table-1-{data}.toml", profile=profile, out=folder).grid.cells:
        summary = folder / cell.folder / "summary.json"
        if summary.exists():
            accuracy = json.loads(summary.read_text(encoding="utf-8"))["test_accuracy"]
            found[cell.row, cell.at["split"]].append(100 * accuracy)
    return {key: fmean(values) for key, values in found.items()}


def table(columns: dict[str, dict[str, float]]) -> Iterable[str]:
    rows = dict.fromkeys(row for column in columns.values() for row in column)
    yield "| | " + " | ".join(f"{data} | published" for data in columns) + " |"
    yield "|---|" + "--:|" * (2 * len(columns))
    for row in rows:
        cells = [
            f"{ours[row]:+.1f} | {published_losses(data).get(row, float('nan')):+.1f}" if row in ours else " | "
            for data, ours in columns.items()
        ]
        yield f"| {row} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", metavar="DATA=DIR")
    parser.add_argument("--profile", default="full")
    parser.add_argument("--published", action="store_true")
    arguments = parser.parse_args()
    if arguments.published:
        print("\n".join(table({data: losses(published_accuracies(data)) for data in DATA})))
        return
    columns = {}
    for given in arguments.folders:
        data, _, folder = given.partition("=")
        if data not in DATA or not folder:
            parser.error(f"{given}: must be DATA=DIR with DATA one of {', '.join(DATA)}.")
        columns[data] = losses(accuracies_of_runs(data, Path(folder), arguments.profile))
    print("\n".join(table(columns)))


if __name__ == "__main__":
    main()
