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
from dpfed.sweep.grid import Cell, Grid, expand, slug
from dpfed.version import __version__

State = Literal["to run", "interrupted", "finished", "after tuning"]


@dataclass(frozen=True, kw_only=True)
class PlannedSweep:
    """A checked experiment in a profile, the folder of its runs, and them: `whole`, and the part wanted now, `grid`."""

    file: Path
    experiment: ExperimentFile
    profile: str | None
    note: str
    folder: Path
    settings: tuple[str, ...]
    only: tuple[str, ...]
    grid: Grid
    whole: Grid
    published: tuple[PublishedNumber, ...]

    @property
    def title(self) -> str:
        return self.experiment.title

    def state(self, cell: Cell) -> State:
        """Return the state of the run; RunError if its folder holds another one."""
        return "after tuning" if cell.choice is not None else state_of(self.folder / cell.folder, cell)

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
    file: Path, *, profile: str | None, out: Path | None, settings: Sequence[str] = (), only: Sequence[str] = ()
) -> PlannedSweep:
    """Everything checked that needs no data. ConfigError for the file, RunError for a folder with other runs in it."""
    experiment = read_experiment(file)
    name, chosen = experiment.profile(profile)
    try:
        grid = expand(experiment, chosen, settings=settings, only=only)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    whole = grid
    with suppress(ConfigError):  # --set may be for the rows of --only
        whole = expand(experiment, chosen, settings=settings)
    numbers = experiment.published
    found = PlannedSweep(
        file=file,
        experiment=experiment,
        profile=name,
        note=_note(chosen.note, settings),
        folder=out or Path("runs") / _name(file, name),
        settings=tuple(settings),
        only=tuple(only),
        grid=grid,
        whole=whole,
        published=() if numbers is None else read_published(file.parent / numbers, experiment),
    )
    for cell in found.grid.runs:
        found.state(cell)
    return found


def state_of(folder: Path, cell: Cell) -> State:
    """Return the state of the run in `folder`; RunError if it is another run."""
    if not (folder / "config.toml").exists():
        return "to run"
    before = with_delta_of_run(folder, read_toml(folder / "config.toml"))
    there = flat_tables(parse_written_config(before, source=str(folder / "config.toml")).to_dict())
    here = _as_run(cell, folder, there)
    changed = [key for key in sorted(there.keys() | here.keys()) if there.get(key) != here.get(key)]
    if changed:
        words = "; ".join(f"{key} was {there.get(key)!r}, is {here.get(key)!r}" for key in changed)
        raise RunError(f"{folder}: holds another run of row {cell.row!r}: {words}. Use another --out, or remove it.")
    if code_hash(read_own_code(folder)) != code_hash(user_code_of_run(cell.config)):
        raise RunError(f"{folder}: ran with other code of your own (own_code.json). Use another --out, or remove it.")
    return "finished" if (folder / "summary.json").exists() else "interrupted"


def _as_run(cell: Cell, folder: Path, there: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a run of the cell writes into its folder. The default delta of records, whose number is not
    known without their data, is the folder's where that can be it."""
    given = parse(with_delta_of_run(folder, cell.config.to_dict()), source=f"row {cell.row!r}")
    here, record = flat_tables(with_derived_defaults(given).to_dict()), "local.record.delta"
    if given.local.record is not None and there.get(record, 1.0) <= LARGEST_DEFAULT_DELTA["record"]:
        return {record: there[record], **here}
    return dict(here)


def _note(note: str, settings: Sequence[str]) -> str:
    """Return the note of the profile, with the settings changed by --set: the page must not claim otherwise."""
    return "; ".join(words for words in (note, f"changed by --set: {', '.join(settings)}" if settings else "") if words)


def _name(file: Path, profile: str | None) -> str:
    words = [file.parent.name, file.stem, profile]
    return slug("-".join(word for word in words if word))


def listing(plan: PlannedSweep, tuned: Sequence[Mapping[str, object]]) -> Sweep:
    """Return the content of sweep.json: the whole grid of the profile, even if --only has run a part of it."""
    file = plan.experiment
    return Sweep(
        title=file.title,
        paper=file.paper,
        profile=plan.profile,
        note=plan.note,
        quantities=tuple(file.quantities),
        x=file.x,
        rows=tuple(dict.fromkeys(cell.row for cell in plan.whole.cells)),
        runs=tuple(ListedRun(row=cell.row, at=dict(cell.at), folder=cell.folder) for cell in plan.whole.cells),
        published=plan.published,
        command=_command(plan),
        versions={
            "dpfed": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        commit=_commit(plan.file.parent),
        tuned=tuple(tuned),
    )


def _command(plan: PlannedSweep) -> str:
    words = ["dpfed", "sweep", str(plan.file), "--out", str(plan.folder)]
    words += ["--profile", plan.profile] if plan.profile else []
    for setting in plan.settings:
        words += ["--set", setting]
    words += [word for file in named_files() for word in ("--load", file.path)]
    return shlex.join(words)


def _commit(folder: Path) -> str | None:
    """Return the git commit that the experiment's file is in; None where there is none."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
