"""Plan of a sweep: the experiment, its grid, and the state of each run's folder."""

from __future__ import annotations

import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from accounting.caveats import LARGEST_DEFAULT_DELTA
from dpfed.config.own_code import code_hash, named_files
from dpfed.config.tables import flat_tables, parse, parse_written_config, read_toml
from dpfed.errors import ConfigError, RunError
from dpfed.runs.experiment import user_code_of_run, with_derived_defaults
from dpfed.runs.resuming import read_own_code, with_delta_of_run
from dpfed.runs.sweep_folder import ListedRun, PublishedNumber, Sweep
from dpfed.sweep.experiment_file import ExperimentFile, read_experiment, read_published
from dpfed.sweep.grid import Grid, GridCell, expand_grid, folder_name
from dpfed.version import __version__

State = Literal["to run", "interrupted", "finished", "after tuning"]


@dataclass(frozen=True, kw_only=True)
class PlannedSweep:
    """A validated experiment with a profile. `whole_grid`: all its runs; `grid`: those selected by --only."""

    file: Path
    experiment: ExperimentFile
    profile: str | None
    note: str
    folder: Path
    settings: tuple[str, ...]
    neighbours: str | None
    only: tuple[str, ...]
    grid: Grid
    whole_grid: Grid
    published: tuple[PublishedNumber, ...]

    @property
    def title(self) -> str:
        return self.experiment.title

    def state(self, cell: GridCell) -> State:
        """Return the state of the run; RunError if its folder holds a different run."""
        return "after tuning" if cell.choice is not None else folder_state(self.folder / cell.folder, cell)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of --dry-run."""
        return {
            "title": self.title,
            "profile": self.profile,
            "note": self.note,
            "out": str(self.folder),
            "runs": [
                {
                    "row": cell.row,
                    "at": dict(cell.at),
                    "folder": cell.folder,
                    "state": self.state(cell),
                    "config": cell.config.to_dict(),
                }
                for cell in self.grid.runs
            ],
        }


def plan(
    file: Path,
    *,
    profile: str | None,
    out: Path | None,
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
    neighbours: str | None = None,
) -> PlannedSweep:
    """Return the sweep, validated without data. ConfigError for a wrong file, RunError for a folder of other runs."""
    experiment = read_experiment(file)
    name, chosen = experiment.profile(profile)
    try:
        grid = expand_grid(experiment, chosen, settings=settings, only=only, neighbours=neighbours)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    whole = grid
    with suppress(ConfigError):  # a --set may be valid only for the rows of --only
        whole = expand_grid(experiment, chosen, settings=settings, neighbours=neighbours)
    numbers = experiment.published
    found = PlannedSweep(
        file=file,
        experiment=experiment,
        profile=name,
        note=_profile_note(chosen.note, settings, neighbours),
        folder=out or Path("runs") / _default_folder_name(file, name),
        settings=tuple(settings),
        neighbours=neighbours,
        only=tuple(only),
        grid=grid,
        whole_grid=whole,
        published=() if numbers is None else read_published(file.parent / numbers, experiment),
    )
    for cell in found.grid.runs:
        found.state(cell)
    return found


def folder_state(folder: Path, cell: GridCell) -> State:
    """Return the state of the run in `folder`; RunError if the folder holds a run other than `cell`."""
    if not (folder / "config.toml").exists():
        return "to run"
    before = with_delta_of_run(folder, read_toml(folder / "config.toml"))
    there = flat_tables(parse_written_config(before, source=str(folder / "config.toml")).to_dict())
    here = _keys_of_run(cell, folder, there)
    changed = [key for key in sorted(there.keys() | here.keys()) if there.get(key) != here.get(key)]
    if changed:
        words = "; ".join(f"{key} was {there.get(key)!r}, is {here.get(key)!r}" for key in changed)
        raise RunError(
            f"{folder}: holds a different run of row {cell.row!r}: {words}. Give another --out, or remove the folder."
        )
    if code_hash(read_own_code(folder)) != code_hash(user_code_of_run(cell.config)):
        raise RunError(
            f"{folder}: was run with different custom code (own_code.json). Give another --out, or remove the folder."
        )
    return "finished" if (folder / "summary.json").exists() else "interrupted"


def _keys_of_run(cell: GridCell, folder: Path, there: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a run of the cell writes into its folder.

    The default delta of records depends on their number, which is unknown without data; it is taken from the folder if
    the folder's value can be that default."""
    given = parse(with_delta_of_run(folder, cell.config.to_dict()), source=f"row {cell.row!r}")
    here, record = flat_tables(with_derived_defaults(given).to_dict()), "local.record.delta"
    if given.local.record is not None and there.get(record, 1.0) <= LARGEST_DEFAULT_DELTA["record"]:
        return {record: there[record], **here}
    return dict(here)


def _profile_note(note: str, settings: Sequence[str], neighbours: str | None) -> str:
    """Return the note of the profile and the settings changed by options, so that the page shows every deviation."""
    changed = f"changed by --set: {', '.join(settings)}" if settings else ""
    equal = f"neighbours of all private rows: {neighbours}" if neighbours else ""
    return "; ".join(words for words in (note, changed, equal) if words)


def _default_folder_name(file: Path, profile: str | None) -> str:
    words = [file.parent.name, file.stem, profile]
    return folder_name("-".join(word for word in words if word))


def sweep_listing(plan: PlannedSweep, tuned: Sequence[Mapping[str, object]]) -> Sweep:
    """Return the content of sweep.json: the whole grid of the profile, even if --only selects a part of it."""
    file = plan.experiment
    return Sweep(
        title=file.title,
        paper=file.paper,
        profile=plan.profile,
        note=plan.note,
        quantities=tuple(file.quantities),
        x=file.x,
        rows=tuple(dict.fromkeys(cell.row for cell in plan.whole_grid.cells)),
        runs=tuple(ListedRun(row=cell.row, at=dict(cell.at), folder=cell.folder) for cell in plan.whole_grid.cells),
        published=plan.published,
        command=_sweep_command(plan),
        versions={
            "dpfed": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        commit=_git_commit(plan.file.parent),
        tuned=tuple(tuned),
    )


def _sweep_command(plan: PlannedSweep) -> str:
    words = ["dpfed", "sweep", str(plan.file), "--out", str(plan.folder)]
    words += ["--profile", plan.profile] if plan.profile else []
    for setting in plan.settings:
        words += ["--set", setting]
    words += ["--neighbours", plan.neighbours] if plan.neighbours else []
    words += [word for file in named_files() for word in ("--load", file.path)]
    return shlex.join(words)


def _git_commit(folder: Path) -> str | None:
    """Return the git commit checked out in the folder of the experiment's file, or None without git."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
