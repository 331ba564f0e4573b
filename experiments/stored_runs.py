"""Files of the runs behind a table: config, ledger, summary, diagnostics and metrics, without models.

python experiments/stored_runs.py pack SWEEP RESULTS.csv     add a sweep's runs; RESULTS.tar.xz is beside the results
python experiments/stored_runs.py unpack RESULTS.csv FOLDER  FOLDER/ROW/run.seed=SEED, if all digests are right
    [--load experiments/accuracy/ideas.py]                   code that the runs need, as for `dpfed run`

Other axes than the seed are part of a row's name: ROW__method.keep=0.1. No run is added whose audit fails or is
incomplete. Then `dpfed audit FOLDER/ROW/run.seed=SEED` makes every check of a run that needs no model. A line of
RESULTS.csv has the commit of its sweep and the SHA-256 of its run's files.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from dpfed.audit.run import audit_run
from dpfed.config.own_code import load_files

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


def lines_of(results: Path) -> list[dict[str, str]]:
    """Return the lines of a file of results; an empty list without the file."""
    return list(csv.DictReader(results.read_text(encoding="utf-8").splitlines())) if results.exists() else []


def pack(sweep: Path, results: Path) -> None:
    """Add a sweep's finished runs to the results and their archive; lines are sorted by row and seed."""
    commit = json.loads((sweep / "sweep.json").read_text())["commit"]
    with tempfile.TemporaryDirectory() as name:
        old = Path(name)
        unpack(results, old)
        runs = {(line["row"], line["seed"]): (run_folder(old, line), line) for line in lines_of(results)}
        for run in (file.parent for file in sorted(sweep.glob("*/run.seed=*/summary.json"))):
            seed, _, others = run.name.removeprefix("run.seed=").partition("__")
            key = "__".join(filter(None, (run.parent.name, others))), seed
            if key in runs and digest(run) == digest(runs[key][0]):
                continue
            if (verdict := audit_run(run).verdict) != "pass":
                sys.exit(f"{run}: its audit says {verdict}.")
            summary = json.loads((run / "summary.json").read_text())
            line = {"row": key[0], "seed": key[1], "commit": commit} | {one: summary.get(one) for one in FIELDS}
            runs[key] = run, line | {"files_sha256": digest(run)}
        with tarfile.open(archive_of(results), "w:xz", preset=9) as archive:
            for key in sorted(runs):
                for name in FILES:
                    content = (runs[key][0] / name).read_bytes()
                    about = tarfile.TarInfo(f"{key[0]}/run.seed={key[1]}/{name}")
                    about.size = len(content)
                    archive.addfile(about, io.BytesIO(content))
    with results.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ("row", "seed", *FIELDS, "commit", "files_sha256"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(runs[key][1] for key in sorted(runs))


def unpack(results: Path, folder: Path) -> list[Path]:
    """Write the runs of a file of results and return their folders; ends with a message if a digest is wrong."""
    runs, lines = [], lines_of(results)
    if lines:
        with tarfile.open(archive_of(results)) as archive:
            safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.11.4
            archive.extractall(folder, **safe)
    for line in lines:
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
    parser.add_argument("--load", type=Path, nargs="*", default=[])
    given = parser.parse_args()
    load_files(given.load)
    {"pack": pack, "unpack": unpack}[given.do](given.first, given.second)
