"""Finished runs that a report compares, of a sweep or from run folders, and the commands that repeat them."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from dpfed import data, models
from dpfed.clients.losses import OWN
from dpfed.config.own_code import UserCodeFile
from dpfed.config.tables import flat_tables
from dpfed.errors import ConfigError, RunError
from dpfed.records.summary import FinishedRun, read_finished
from dpfed.runs.durable_files import put
from dpfed.runs.resuming import read_own_code
from dpfed.runs.sweep_folder import NAME, ListedRun, PublishedNumber, Sweep, read_sweep

SAME_RUN = "the same run"
ANOTHER_RUN = "another run with equal settings; secret noise and cohorts cannot be repeated"


def repeat_command(folder: Path, tables: Mapping[str, object], *, config: str, out: str | None = None) -> str:
    """Return the command line that repeats the run of `folder`, with a comment whether the new run is identical.

    tables: configuration of the run. config: path of config.toml for the reader of the command. A run that used Python
    objects or code typed in a session is repeated by a Python call instead.
    """
    own = read_own_code(folder)
    words = ANOTHER_RUN if _subtable(tables, "run").get("randomness") == "secure" else SAME_RUN
    if objects := _unnamed_objects(tables, own):
        given = "".join(f", {name}=..." for name in objects if name != "code")
        where = "" if out is None else f", out={out!r}"
        code = " after your code has run" if "code" in objects else ""
        return f"dpfed.run({config!r}{given}{where})      # in Python{code}: {words}"
    command = ["dpfed", "run", config]
    command += [word for one in own for word in ("--load", one.path)]
    command += [word for one in _data_root_setting(tables) for word in ("--set", one)]
    command += [] if out is None else ["--out", out]
    return f"{shlex.join(command)}      # {words}"


def _subtable(tables: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = tables.get(name)
    return found if isinstance(found, Mapping) else {}


def _unnamed_objects(tables: Mapping[str, object], own: tuple[UserCodeFile, ...]) -> list[str]:
    """Return inputs that no command can name: arguments of `dpfed.run`, and "code" for code typed in a session."""
    found = [] if all(one.sha256 for one in own) else ["code"]
    for key, check in (("data", data.check_name), ("model", models.check_name)):
        name = _subtable(tables, key).get("name")
        if isinstance(name, str) and not own and not _is_known_name(check, name):
            found.append(key)
    return found + (["loss"] if _subtable(tables, "local").get("loss") == OWN else [])


def _is_known_name(check: Callable[[str], None], name: str) -> bool:
    try:
        check(name)
    except ConfigError:
        return False
    return True


def _data_root_setting(tables: Mapping[str, object]) -> list[str]:
    """Return the setting of data.root as absolute path if it is relative and has the user's data file, else nothing."""
    table = _subtable(tables, "data")
    name, root = table.get("name"), table.get("root") or "."
    if not isinstance(name, str) or not isinstance(root, str) or not data.is_own(name) or Path(root).is_absolute():
        return []
    return [f"data.root={Path(root).absolute()}"] if (Path(root) / name).exists() else []


SEED = "run.seed"
_MOST_KEYS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class RunCollection:
    """Finished runs of a report, with texts for its page.

    missing_runs: runs of the sweep that are not finished
    repeat_commands: commands that make all runs again
    differing_values: for run folders, each key in which configurations differ, with its value in each of `folders`;
                      empty for a sweep, whose axes are the differing keys
    """

    title: str
    paper: str = ""
    note: str = ""
    quantities: tuple[str, ...] = ("test_accuracy", "best_test_accuracy", "epsilon", "uplink_megabytes_total")
    x: str | None = None
    runs: tuple[FinishedRun, ...]
    folders: tuple[str, ...] = ()
    differing_values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    missing_runs: tuple[ListedRun, ...] = ()
    published: tuple[PublishedNumber, ...] = ()
    repeat_commands: tuple[str, ...] = ()
    versions: Mapping[str, str]
    commit: str | None = None
    tuned_choices: tuple[Mapping[str, object], ...] = ()

    @property
    def difference_lines(self) -> tuple[str, ...]:
        """Return one line for each key in which the run folders differ."""
        found = []
        for key, values in self.differing_values.items():
            by_value: dict[str, list[str]] = {}
            for folder, value in zip(self.folders, values, strict=True):
                by_value.setdefault(value, []).append(folder)
            found.append(f"{key}: " + "; ".join(f"{value} in {', '.join(some)}" for value, some in by_value.items()))
        return tuple(found)


def collect_runs(folders: Sequence[Path]) -> RunCollection:
    """Return the finished runs of the folder of a sweep, or of run folders. RunError if no run is finished."""
    if len(folders) == 1 and (folders[0] / NAME).exists():
        return _sweep_collection(folders[0], read_sweep(folders[0]))
    for folder in folders:
        if (folder / NAME).exists():
            raise ConfigError(f"{folder}: is the folder of a sweep. Give it as the only folder.")
    return _runs_collection(folders)


def write_results(runs: Sequence[FinishedRun], target: Path) -> None:
    """Write results.csv: one line per run, with its values on the axes and its whole summary."""
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


def _sweep_collection(folder: Path, sweep: Sweep) -> RunCollection:
    runs = [
        replace(read_finished(folder / one.folder), row=one.row, at=one.at)
        for one in sweep.runs
        if (folder / one.folder / "summary.json").exists()
    ]
    if not runs:
        raise RunError(f"{folder}: no run of this sweep is finished. Run `{sweep.command}` first.")
    there = {run.folder for run in runs}
    return RunCollection(
        title=sweep.title,
        paper=sweep.paper,
        note=_sweep_note(sweep),
        quantities=sweep.quantities,
        x=sweep.x,
        runs=tuple(runs),
        missing_runs=tuple(one for one in sweep.runs if folder / one.folder not in there),
        published=sweep.published,
        repeat_commands=(f"{sweep.command}      # {_repetition_text(runs)}",),
        versions=sweep.versions,
        commit=sweep.commit,
        tuned_choices=sweep.tuned,
    )


def _repetition_text(runs: Sequence[FinishedRun]) -> str:
    """Return a text that states which runs the sweep's command would repeat exactly."""
    secret = [run for run in runs if run.summary.randomness == "secure"]
    same, others = SAME_RUN.replace("run", "runs"), ANOTHER_RUN.replace("another run", "other runs")
    if not secret:
        return same
    return others if len(secret) == len(runs) else f"{same}, but for {len(secret)} of {len(runs)}: {others}"


def _sweep_note(sweep: Sweep) -> str:
    if not sweep.note:
        return ""
    words = f"Profile {sweep.profile}: {sweep.note}." if sweep.profile else f"{sweep.note[0].upper()}{sweep.note[1:]}."
    if sweep.published and (sweep.profile != "full" or "--set" in sweep.note):
        words += " This is not the paper's setting, which partly explains differences from its numbers."
    return words


def _runs_collection(folders: Sequence[Path]) -> RunCollection:
    """Return run folders as a collection: rows are methods; axes are keys that differ within a method, or the folder.

    The folder replaces the keys if more than `_MOST_KEYS` differ.
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
            alike = sum(one.folder.name == run.folder.name for one in runs) > 1
            at = {"folder": str(run.folder) if alike else run.folder.name}
        placed.append(replace(run, row=method, at={**at, SEED: str(run.summary.seed)}))
    _refuse_repeated(placed, configs)
    methods, data_sets = (run.summary.method for run in runs), (run.summary.dataset for run in runs)
    return RunCollection(
        title=" on ".join(", ".join(dict.fromkeys(names)) for names in (methods, data_sets)),
        runs=tuple(placed),
        folders=tuple(str(folder) for folder in folders),
        differing_values=_differing_keys(runs),
        repeat_commands=tuple(
            repeat_command(run.folder, run.config, config=str(run.folder / "config.toml")) for run in runs
        ),
        versions={},
    )


def _refuse_repeated(runs: Sequence[FinishedRun], configs: Sequence[Mapping[str, object]]) -> None:
    """Raise RunError if two folders hold a run of equal configuration and seed, with equal ledgers if it is secret."""
    for number, run in enumerate(runs):
        for earlier, other in zip(runs[:number], configs, strict=False):
            one, two = run.summary, earlier.summary
            same = (one.method, one.seed, configs[number]) == (two.method, two.seed, other)
            if same and (one.randomness != "secure" or one.ledger_head == two.ledger_head):
                raise RunError(
                    f"{run.folder}: has the configuration and the seed of {earlier.folder}. A mean over seeds would "
                    "count this run twice. Remove one of the folders."
                )


def _differing_keys(runs: Sequence[FinishedRun]) -> dict[str, tuple[str, ...]]:
    """Return every key in which the configurations differ, including the seed, with its value in each run."""
    configs = [flat_tables(run.config) for run in runs]
    found = {
        key: tuple(_value_text(config.get(key, "not set")) for config in configs) for key in sorted({*chain(*configs)})
    }
    return {key: values for key, values in found.items() if len(set(values)) > 1}


def _value_text(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)
