"""Table of accuracy at a valid epsilon for finished sweeps; every run is audited.

    python benchmarks/accuracy.py SWEEP_FOLDER ... [--load FILE.py] [--out benchmarks/accuracy.md]

Each folder was written by `dpfed sweep`. A line is a row of the sweep at a point of its axes, over seeds: test accuracy
of the last round (mean and standard deviation), the largest epsilon and its lower bound, bits of an upload for each
parameter, megabytes of all uploads, and the number of runs that pass `dpfed audit FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accounting.rounding import downwards, upwards
from dpfed.audit.run import audit_run
from dpfed.config.own_code import load_files

HEADING = """# Accuracy at a true epsilon

Every epsilon is of the sampler that ran and holds for one client; it is an upper bound, rounded up. *Audited*: runs
whose files `dpfed audit FOLDER` passes. Test accuracy after the last round, mean and standard deviation over seeds.
Written by `benchmarks/accuracy.py` from the folders of the sweeps.
"""
COLUMNS = (
    "| row | at | seeds | accuracy | epsilon | neighbours | no account below | bits a parameter | MB in all | audited |"
)


def lines(folder: Path) -> Iterator[str]:
    """Return the table of one sweep."""
    sweep = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    yield f"\n## {sweep['title']}\n"
    yield COLUMNS
    yield "|---|---|--:|--:|--:|---|--:|--:|--:|--:|"
    groups: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for run in sweep["runs"]:
        point = ", ".join(f"{key} {value}" for key, value in run["at"].items() if key != "run.seed")
        if (folder / run["folder"] / "summary.json").exists():
            groups[run["row"], point].append(folder / run["folder"])
    for (row, point), runs in groups.items():
        yield line(row, point, runs)


def line(row: str, point: str, runs: list[Path]) -> str:
    """Return the table line of one row at one point, over its seeds."""
    summaries = [json.loads((run / "summary.json").read_text(encoding="utf-8")) for run in runs]
    scores = [100 * one["test_accuracy"] for one in summaries]
    spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    last = summaries[-1]
    return (
        f"| {row} | {point} | {len(runs)} | {statistics.mean(scores):.1f}%{spread} | {_epsilon(summaries)} | "
        f"{last.get('adjacency') or '–'} | {_lower(last)} | {last['uplink_bits_per_parameter']:.3g} | "
        f"{last['uplink_megabytes_total']:.4g} | "
        f"{_passed(runs, last)} |"
    )


def _epsilon(summaries: list[dict[str, Any]]) -> str:
    found = [one["epsilon"] for one in summaries if one["epsilon"] is not None]
    return upwards(max(found)) if found else "not private"


def _lower(summary: dict[str, Any]) -> str:
    bound = summary.get("lower_bound")
    return "–" if not bound else downwards(bound)


def _passed(runs: list[Path], last: dict[str, Any]) -> str:
    if last["epsilon"] is None:
        return "–"
    return f"{sum(audit_run(run).verdict == 'pass' for run in runs)} of {len(runs)}"


def main() -> None:
    """Write the table, again after every sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--load", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/accuracy.md"))
    given = parser.parse_args()
    load_files(given.load)
    page = HEADING
    for folder in given.folders:
        page += "\n".join(lines(folder)) + "\n"
        given.out.write_text(page, encoding="utf-8")
        print(f"{folder}: written to {given.out}", flush=True)


if __name__ == "__main__":
    main()
