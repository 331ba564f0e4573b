"""Files of the runs behind a table: config, ledger, summary, diagnostics and metrics, without models.

python experiments/stored_runs.py pack SWEEP RESULTS.csv     from a sweep's folder; RESULTS.tar.xz is beside it
python experiments/stored_runs.py unpack RESULTS.csv FOLDER  FOLDER/ROW/run.seed=SEED, if all digests are right

Then `dpfed audit FOLDER/ROW/run.seed=SEED` makes every check of a run that needs no model. A line of RESULTS.csv has
the SHA-256 of its run's files.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

FILES = ("config.toml", "diagnostics.jsonl", "ledger.jsonl", "metrics.jsonl", "summary.json")
FIELDS = (
    "test_accuracy", "public_samples_alone", "epsilon", "delta", "adjacency", "noise_multiplier",
    "uplink_bits_per_parameter", "uplink_megabytes_total",
)  # fmt: skip


def digest(run: Path) -> str:
    """Return the SHA-256 of the names, lengths and contents of a run's files."""
    contents = [(name, (run / name).read_bytes()) for name in FILES]
    return hashlib.sha256(b"".join(f"{name} {len(one)}\n".encode() + one for name, one in contents)).hexdigest()


def run_folder(folder: Path, line: dict[str, str]) -> Path:
    """Return the folder of a line's run."""
    return folder / line["row"] / f"run.seed={line['seed']}"


def archive_of(results: Path) -> Path:
    """Return the archive beside a file of results."""
    return results.with_suffix(".tar.xz")


def pack(sweep: Path, results: Path) -> None:
    """Write the results and the archive of a sweep's runs, in the order of their folders."""
    lines = []
    with tarfile.open(archive_of(results), "w:xz", preset=9) as archive:
        for run in sorted(file.parent for file in sweep.glob("*/run.seed=*/summary.json")):
            summary = json.loads((run / "summary.json").read_text())
            line = {"row": run.parent.name, "seed": run.name.partition("=")[2]}
            lines.append(line | {key: summary.get(key) for key in FIELDS} | {"files_sha256": digest(run)})
            for name in FILES:
                content, about = (run / name).read_bytes(), tarfile.TarInfo(f"{line['row']}/{run.name}/{name}")
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
    with results.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ("row", "seed", *FIELDS, "files_sha256"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def unpack(results: Path, folder: Path) -> list[Path]:
    """Write the runs of a file of results and return their folders; ends with a message if a digest is wrong."""
    with tarfile.open(archive_of(results)) as archive:
        archive.extractall(folder, filter="data")
    runs = []
    with results.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            run = run_folder(folder, line)
            if digest(run) != line["files_sha256"]:
                sys.exit(f"{run}: its files are not those of {results}, line {line['row']}, seed {line['seed']}.")
            runs.append(run)
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["pack", "unpack"])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    given = parser.parse_args()
    {"pack": pack, "unpack": unpack}[given.do](given.first, given.second)
