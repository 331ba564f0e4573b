"""The finished runs of a report: from a sweep's folder, or from run folders."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from dpfed.config.tables import flat_tables
from dpfed.errors import ConfigError, RunError
from dpfed.report.finished_run import FinishedRun, read_finished
from dpfed.report.repeat import ANOTHER, SAME, repeated
from dpfed.runs.durable_files import put
from dpfed.runs.sweep_folder import NAME, ListedRun, PublishedNumber, Sweep, read_sweep

SEED = "run.seed"
_MOST_KEYS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Collection:
    """Runs of a report. `missing` runs are listed but not finished; `repeat` are the commands that make all of them.

    differing: for run folders, the keys in which their configurations differ, with the value in each of `folders`;
    empty for a sweep, whose axes name them.
    """

    title: str
    paper: str = ""
    note: str = ""
    quantities: tuple[str, ...] = ("test_accuracy", "best_test_accuracy", "epsilon", "uplink_megabytes_total")
    x: str | None = None
    runs: tuple[FinishedRun, ...]
    folders: tuple[str, ...] = ()
    differing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    missing: tuple[ListedRun, ...] = ()
    published: tuple[PublishedNumber, ...] = ()
    repeat: tuple[str, ...] = ()
    versions: Mapping[str, str]
    commit: str | None = None
    tuned: tuple[Mapping[str, object], ...] = ()

    @property
    def differences(self) -> tuple[str, ...]:
        """Return the differences between run folders, a line for each key."""
        found = []
        for key, values in self.differing.items():
            by_value: dict[str, list[str]] = {}
            for folder, value in zip(self.folders, values, strict=True):
                by_value.setdefault(value, []).append(folder)
            found.append(f"{key}: " + "; ".join(f"{value} in {', '.join(some)}" for value, some in by_value.items()))
        return tuple(found)


def collect(folders: Sequence[Path]) -> Collection:
    """Return the runs of a sweep's folder, or of run folders. RunError if none is finished."""
    if len(folders) == 1 and (folders[0] / NAME).exists():
        return _sweep_collection(folders[0], read_sweep(folders[0]))
    for folder in folders:
        if (folder / NAME).exists():
            raise ConfigError(f"{folder}: is the folder of a sweep. Make a report of it alone.")
    return _runs_collection(folders)


def write_results(runs: Sequence[FinishedRun], target: Path) -> None:
    """Write results.csv: one line a run, with its place on the axes and everything in its summary."""
    axes = list(dict.fromkeys(name for run in runs for name in run.at))
    summaries = [run.summary.to_dict() for run in runs]
    keys = list(dict.fromkeys(key for one in summaries for key in one if key not in ("not_protected", "notes")))
    stream = io.StringIO(newline="")
    lines = csv.writer(stream)
    lines.writerow(["row", *axes, *keys, "folder"])
    for run, summary in zip(runs, summaries, strict=True):
        values = [*(run.at.get(name, "") for name in axes), *(summary.get(key) for key in keys)]
        lines.writerow([run.row, *("" if value is None else value for value in values), str(run.folder)])
    put(target, stream.getvalue().encode())


def _sweep_collection(folder: Path, sweep: Sweep) -> Collection:
    runs = [
        replace(read_finished(folder / one.folder), row=one.row, at=one.at)
        for one in sweep.runs
        if (folder / one.folder / "summary.json").exists()
    ]
    if not runs:
        raise RunError(f"{folder}: no run of it is finished. Run `{sweep.command}` first.")
    there = {run.folder for run in runs}
    return Collection(
        title=sweep.title,
        paper=sweep.paper,
        note=_note(sweep),
        quantities=sweep.quantities,
        x=sweep.x,
        runs=tuple(runs),
        missing=tuple(one for one in sweep.runs if folder / one.folder not in there),
        published=sweep.published,
        repeat=(f"{sweep.command}      # {_what_it_makes(runs)}",),
        versions=sweep.versions,
        commit=sweep.commit,
        tuned=sweep.tuned,
    )


def _what_it_makes(runs: Sequence[FinishedRun]) -> str:
    """Return whether the sweep's command, run anew, makes the same runs."""
    secret = [run for run in runs if run.summary.randomness == "secure"]
    same, others = SAME.replace("run", "runs"), ANOTHER.replace("another run", "other runs")
    if not secret:
        return same
    return others if len(secret) == len(runs) else f"{same}, but for {len(secret)} of {len(runs)}: {others}"


def _note(sweep: Sweep) -> str:
    if not sweep.note:
        return ""
    words = f"Profile {sweep.profile}: {sweep.note}." if sweep.profile else f"{sweep.note[0].upper()}{sweep.note[1:]}."
    if sweep.published and (sweep.profile != "full" or "--set" in sweep.note):
        words += " This is not the paper's setting, and differences from its numbers come from that, too."
    return words


def _runs_collection(folders: Sequence[Path]) -> Collection:
    """Return run folders as a collection: rows are methods; axes are the keys that differ within a method, or the
    folder.
    """
    runs = [read_finished(folder) for folder in folders]
    configs = [{key: value for key, value in flat_tables(run.config).items() if key != SEED} for run in runs]
    placed = []
    for run, config in zip(runs, configs, strict=True):
        method = run.summary.method
        like = [other for other, one in zip(configs, runs, strict=True) if one.summary.method == method]
        varying = [key for key in sorted({*chain(*like)}) if any(other.get(key) != config.get(key) for other in like)]
        at = {key: str(config.get(key, "–")) for key in varying}
        if len(varying) > _MOST_KEYS:
            at = {"folder": run.folder.name}
        placed.append(replace(run, row=method, at={**at, SEED: str(run.summary.seed)}))
    _refuse_repeated(placed, configs)
    methods, data_sets = (run.summary.method for run in runs), (run.summary.dataset for run in runs)
    return Collection(
        title=" on ".join(", ".join(dict.fromkeys(names)) for names in (methods, data_sets)),
        runs=tuple(placed),
        folders=tuple(str(folder) for folder in folders),
        differing=_differing(runs),
        repeat=tuple(repeated(run.folder, run.config, config=str(run.folder / "config.toml")) for run in runs),
        versions={},
    )


def _refuse_repeated(runs: Sequence[FinishedRun], configs: Sequence[Mapping[str, object]]) -> None:
    """Raise ConfigError for a run that is given twice: it is no second seed."""
    for number, run in enumerate(runs):
        for earlier, other in zip(runs[:number], configs, strict=False):
            same = (run.summary.method, run.summary.seed) == (earlier.summary.method, earlier.summary.seed)
            if same and configs[number] == other:
                raise RunError(
                    f"{run.folder}: is the run of {earlier.folder} again, of the same configuration and seed. A mean "
                    "over seeds would count it twice. Leave one of them out."
                )


def _differing(runs: Sequence[FinishedRun]) -> dict[str, tuple[str, ...]]:
    """Return every key in which configurations differ, the seed included, and its values."""
    configs = [flat_tables(run.config) for run in runs]
    found = {
        key: tuple(_value_text(config.get(key, "not set")) for config in configs) for key in sorted({*chain(*configs)})
    }
    return {key: values for key, values in found.items() if len(set(values)) > 1}


def _value_text(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)
