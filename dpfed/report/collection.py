"""The finished runs that a report is about: of a sweep's folder, or of run folders."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfed.errors import ConfigError, RunError
from dpfed.sweep_folder import NAME, Listed, Published, Sweep, read_sweep

SEED = "run.seed"


@dataclass(frozen=True, kw_only=True, eq=False)
class OneRun:
    """A finished run: `at` is where it is on the axes, `metrics` the lines of metrics.jsonl."""

    row: str
    at: Mapping[str, str]
    folder: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Collection:
    """What a report shows. `missing` runs are listed but not finished; `repeat` are the commands that make them all."""

    title: str
    paper: str = ""
    note: str = ""
    quantities: tuple[str, ...] = ("test_accuracy", "best_test_accuracy", "epsilon", "uplink_megabytes_total")
    x: str | None = None
    runs: tuple[OneRun, ...]
    missing: tuple[Listed, ...] = ()
    published: tuple[Published, ...] = ()
    repeat: tuple[str, ...] = ()
    versions: Mapping[str, str]
    commit: str | None = None
    tuned: tuple[Mapping[str, Any], ...] = ()


def collect(folders: Sequence[Path]) -> Collection:
    """What is in a sweep's folder, or in one or more run folders. RunError where nothing is finished there."""
    if len(folders) == 1 and (folders[0] / NAME).exists():
        return _of_sweep(folders[0], read_sweep(folders[0]))
    for folder in folders:
        if (folder / NAME).exists():
            raise ConfigError(f"{folder}: is the folder of a sweep. Make a report of it alone.")
    return _of_runs(folders)


def write_results(runs: Sequence[OneRun], target: Path) -> None:
    """results.csv: one line a run, with where it is on the axes and everything in its summary."""
    axes = list(dict.fromkeys(name for run in runs for name in run.at))
    keys = list(dict.fromkeys(key for run in runs for key in run.summary if key != "not_protected"))
    with open(target, "w", encoding="utf-8", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(["row", *axes, *keys, "folder"])
        for run in runs:
            values = [*(run.at.get(name, "") for name in axes), *(run.summary.get(key) for key in keys)]
            lines.writerow([run.row, *("" if value is None else value for value in values), str(run.folder)])


def _of_sweep(folder: Path, sweep: Sweep) -> Collection:
    runs = [
        _read(folder / one.folder, one.row, one.at)
        for one in sweep.runs
        if (folder / one.folder / "summary.json").exists()
    ]
    if not runs:
        raise RunError(f"{folder}: no run of it is finished. Run `{sweep.command}` first.")
    there = {run.folder for run in runs}
    return Collection(
        title=sweep.title,
        paper=sweep.paper,
        note=f"Profile {sweep.profile}: {sweep.note}" if sweep.profile and sweep.note else "",
        quantities=sweep.quantities,
        x=sweep.x,
        runs=tuple(runs),
        missing=tuple(one for one in sweep.runs if folder / one.folder not in there),
        published=sweep.published,
        repeat=(sweep.command,),
        versions=sweep.versions,
        commit=sweep.commit,
        tuned=sweep.tuned,
    )


def _of_runs(folders: Sequence[Path]) -> Collection:
    """Runs that differ in nothing but their seed are one row."""
    rows: dict[str, str] = {}
    runs = []
    for folder in folders:
        run = _read(folder, folder.name, {})
        config = json.dumps({**run.config, "run": {**run.config.get("run", {}), "seed": 0}}, sort_keys=True)
        row = rows.setdefault(config, _free(run.summary["method"], folder, rows.values()))
        runs.append(replace(run, row=row, at={SEED: str(run.summary["seed"])}))
    sets = ", ".join(dict.fromkeys(str(run.summary["dataset"]) for run in runs))
    return Collection(
        title=f"{', '.join(dict.fromkeys(run.row for run in runs))} on {sets}",
        runs=tuple(runs),
        repeat=tuple(f"dpfed run {folder / 'config.toml'}" for folder in folders),
        versions={},
    )


def _free(method: str, folder: Path, taken: Any) -> str:
    return method if method not in taken else folder.resolve().name


def _read(folder: Path, row: str, at: Mapping[str, str]) -> OneRun:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
        metrics = [json.loads(line) for line in lines]
        summary["seconds"] = max(summary["seconds"], _seconds_of_rounds(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder}: is no folder of a finished run ({error}). `dpfed run` makes them.") from None
    return OneRun(row=row, at=at, folder=folder, config=config, summary=summary, metrics=metrics)


def _seconds_of_rounds(folder: Path) -> float:
    """The summary of a resumed run counts from where it went on; its rounds know better."""
    file = folder / "diagnostics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return float(sum(json.loads(line).get("seconds", 0.0) for line in lines))
