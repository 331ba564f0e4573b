"""Plan of a sweep: its grid of configurations, and the state of each run's folder."""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from accounting.caveats import LARGEST_DEFAULT_DELTA
from dpfed.config.own_code import code_hash, named_files
from dpfed.config.tables import Config, flat_tables, override, parse, parse_written_config, read_toml
from dpfed.errors import ConfigError, RunError
from dpfed.methods import catalogue
from dpfed.runs.experiment import check_configuration, user_code_of_run, with_derived_defaults
from dpfed.runs.resuming import read_own_code, with_delta_of_run
from dpfed.runs.sweep_folder import ListedRun, PublishedNumber, Sweep
from dpfed.sweep.experiment_file import (
    Axes,
    ExperimentFile,
    Row,
    RowSettings,
    SweepProfile,
    put_keys,
    read_experiment,
    read_published,
    require_row,
    values_at,
)
from dpfed.version import __version__

SEED = "run.seed"
TUNING = "_tune"


@dataclass(frozen=True, kw_only=True)
class GridCell:
    """One run: a row at one point of its axes. `at`: labels by axis; `folder`: relative to the folder of the sweep.

    `choice`: index of the tuning choice that must precede this run, None if the run is not tuned."""

    row: str
    at: Mapping[str, str]
    config: Config
    folder: str
    choice: int | None = None

    def with_chosen_values(self, values: Mapping[str, object]) -> GridCell:
        """Return the run with the values chosen by tuning."""
        config = parse(put_keys(self.config.to_dict(), values), source=f"row {self.row!r}, tuned")
        return replace(self, config=config, choice=None)


@dataclass(frozen=True, kw_only=True)
class TuningChoice:
    """Tuning of a row at one point without seed: the run of every candidate, and the keys that each candidate sets."""

    row: str
    at: Mapping[str, str]
    runs: tuple[GridCell, ...]
    values: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All runs of an experiment. A tuned cell has the values of the first candidate until a choice is made."""

    cells: tuple[GridCell, ...]
    choices: tuple[TuningChoice, ...]

    @property
    def runs(self) -> tuple[GridCell, ...]:
        """Every run; the runs of tuning precede all others."""
        return (*(cell for choice in self.choices for cell in choice.runs), *self.cells)


def expand_grid(
    experiment: ExperimentFile,
    profile: SweepProfile,
    *,
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
    neighbours: str | None = None,
) -> Grid:
    """Return the grid of an experiment. Configurations are validated without their data; ConfigError names the row.

    Later levels override earlier ones: preset, [base], [axes], row, profile, `settings` (table.key=value), `neighbours`
    (privacy.adjacency of the rows that have [privacy]).
    """
    for name in only:
        require_row(name, experiment, where="--only")
    rows = [row for row in experiment.row if row.name in (profile.rows or [row.name])]
    known = {row.name: _row_settings(experiment, row) for row in rows}
    for key in profile.drop:
        if not any(one.has_key(key) for one in known.values()):
            raise ConfigError(f"profile: drop {key!r}: no row has such a key. Remove it from drop.")
    given: dict[str, object] = flat_tables(override({}, settings))
    own_axes = {name for one in known.values() for name in one.axes}
    grid = Grid(cells=(), choices=())
    for row in rows:
        if row.name not in (only or [row.name]):
            continue
        mine = known[row.name]
        axes = {name: values for name, values in profile.axes.items() if name in mine.axes or name not in own_axes}
        mine = mine.without_keys(profile.drop).with_final(profile.set).with_axes(axes).with_final(given)
        if neighbours is not None and mine.has_key("privacy"):
            mine = mine.with_final({"privacy.adjacency": neighbours})
        tuned = _tuned_axes(experiment, row) if profile.tune else {}
        grid = _grid_with_row(grid, experiment, row, mine, tuned)
    if not grid.cells:
        raise ConfigError(f"--only {', '.join(only)}: not in this profile, which has {', '.join(known)}.")
    _check_folders(grid.runs)
    return grid


def folder_name(text: str) -> str:
    """Return the text with only characters that are safe in a folder name; its checksum if it has none of these."""
    return re.sub(r"[^A-Za-z0-9.=+_-]+", "-", text).strip("-._").lower() or f"{zlib.crc32(text.encode()):08x}"


def _row_settings(experiment: ExperimentFile, row: Row) -> RowSettings:
    """Return the settings of a row in the file, without any profile."""
    base = dict(experiment.base)
    preset, drop = base.pop("preset", None), base.pop("drop", [])
    preset = row.preset or preset
    if not isinstance(drop, list) or not isinstance(preset, str | None):
        raise ConfigError("[base]: preset must be a name, drop a list of keys.")
    start = RowSettings(place=f"row {row.name!r}", tables=catalogue.preset_tables(preset) if preset else {})
    common = start.without_keys(drop).with_settings(flat_tables(base)).with_axes(experiment.axes)
    return common.without_keys(row.drop, must_be_there=True).with_settings(row.set).with_axes(row.axes)


def _grid_with_row(grid: Grid, experiment: ExperimentFile, row: Row, settings: RowSettings, tuned: Axes) -> Grid:
    tuned = {name: values for name, values in tuned.items() if name not in settings.final}
    if not tuned:
        return replace(grid, cells=(*grid.cells, *_row_cells(row.name, settings)))
    for name in tuned:
        if name in settings.axes:
            raise ConfigError(f"row {row.name!r}: {name!r} is an axis and tuned; it can be only one of them.")
    cells, choices = list(grid.cells), list(grid.choices)
    choices += _row_choices(experiment, row.name, settings, tuned)
    first = settings.with_settings(values_at({name: values[0] for name, values in tuned.items()}))
    for cell in _row_cells(row.name, first):
        (number,) = (i for i, one in enumerate(choices) if one.row == row.name and one.at == _without_seed(cell.at))
        cells.append(replace(cell, choice=number))
    return Grid(cells=tuple(cells), choices=tuple(choices))


def _tuned_axes(experiment: ExperimentFile, row: Row) -> Axes:
    if experiment.tune is None:
        if row.tune:
            raise ConfigError(f"row {row.name!r}: tune without a [tune] table. Add one; it may be empty.")
        return {}
    return experiment.tune.axes if row.tune is None else row.tune


def _row_choices(experiment: ExperimentFile, row: str, settings: RowSettings, tuned: Axes) -> list[TuningChoice]:
    tune = experiment.tune
    assert tune is not None
    fixed: dict[str, object] = {SEED: tune.seed}
    if tune.validation is not None:
        fixed["data.validation"] = tune.validation
    found = []
    for at, here in replace(settings, axes=_without_seed(settings.axes)).axis_points():
        candidates = here.with_final(fixed).with_axes(tuned)
        runs = _row_cells(row, candidates, before=at, parent=f"{TUNING}/")
        if any(cell.config.data.validation is None for cell in runs):
            raise ConfigError(
                f"row {row!r}: [tune] needs a validation set. Give tune.validation, the number of training samples to "
                "set aside in the runs that choose, or data.validation for all runs."
            )
        values = RowSettings(place=here.place, tables={}, axes=tuned).axis_points()
        found.append(
            TuningChoice(row=row, at=at, runs=tuple(runs), values=tuple(flat_tables(one.tables) for _, one in values))
        )
    return found


def _without_seed(axes: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in axes.items() if name != SEED}


def _row_cells(
    row: str, settings: RowSettings, *, before: Mapping[str, str] | None = None, parent: str = ""
) -> list[GridCell]:
    cells = []
    for labels, here in settings.axis_points():
        at = {**(before or {}), **labels}
        words = [f"{name}={value}" for name, value in at.items()]
        source = f"{settings.place}{' at ' if words else ''}{', '.join(words)}"
        config = parse(here.to_tables(), source=source)
        try:
            check_configuration(config)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
        folder = "__".join(map(folder_name, words)) or "run"
        cells.append(GridCell(row=row, at=at, config=config, folder=f"{parent}{folder_name(row)}/{folder}"))
    return cells


def _check_folders(cells: Sequence[GridCell]) -> None:
    seen: dict[str, GridCell] = {}
    for cell in cells:
        other = seen.setdefault(cell.folder, cell)
        if other is not cell:
            raise ConfigError(f"rows {other.row!r} and {cell.row!r} would share the folder {cell.folder}. Rename one.")


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
    grid: Grid
    whole_grid: Grid
    published: tuple[PublishedNumber, ...]

    def state(self, cell: GridCell) -> State:
        """Return the state of the run; RunError if its folder holds a different run."""
        return "after tuning" if cell.choice is not None else folder_state(self.folder / cell.folder, cell)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of --dry-run."""
        return {
            "title": self.experiment.title,
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
        folder=out
        or Path("runs") / folder_name("-".join(word for word in (file.parent.name, file.stem, name) if word)),
        settings=tuple(settings),
        neighbours=neighbours,
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


def _keys_of_run(cell: GridCell, folder: Path, there: Mapping[str, Any]) -> dict[str, object]:
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
    equal = f"neighbours of all rows with [privacy]: {neighbours}" if neighbours else ""
    return "; ".join(words for words in (note, changed, equal) if words)


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
