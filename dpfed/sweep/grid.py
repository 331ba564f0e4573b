"""Grid of an experiment: every row at every point of its axes, as checked configurations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpfed.config.tables import Config, flat_tables, override, parse
from dpfed.errors import ConfigError
from dpfed.methods import presets
from dpfed.runs.experiment import check_configuration
from dpfed.sweep.experiment_file import ExperimentFile, Row, SweepProfile, known_row
from dpfed.sweep.row_settings import Axes, RowSettings, put_all, values_at

SEED = "run.seed"
TUNING = "_tune"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: a row at one point of its axes, labelled. `folder` is relative to the sweep's; `choice` is the number
    of the choice that it waits for, if it is tuned."""

    row: str
    at: Mapping[str, str]
    config: Config
    folder: str
    choice: int | None = None

    def with_values(self, values: Mapping[str, object]) -> Cell:
        """Return the run with the values that were chosen for it."""
        config = parse(put_all(self.config.to_dict(), values), source=f"row {self.row!r}, tuned")
        return replace(self, config=config, choice=None)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Choice of [tune] for a row at a point without the seed: the run of every candidate, and the keys it sets."""

    row: str
    at: Mapping[str, str]
    runs: tuple[Cell, ...]
    values: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All runs. A tuned cell has the values of its choice's first candidate until others are put in."""

    cells: tuple[Cell, ...]
    choices: tuple[Choice, ...]

    @property
    def runs(self) -> tuple[Cell, ...]:
        """Every run, those that choose first."""
        return (*(cell for choice in self.choices for cell in choice.runs), *self.cells)


def expand(
    experiment: ExperimentFile, profile: SweepProfile, *, settings: Sequence[str] = (), only: Sequence[str] = ()
) -> Grid:
    """Expand the grid. Every configuration is parsed and checked without its data; ConfigError names the row.

    A later level wins: preset, [base], [axes], row, profile, `settings` (table.key=value).
    """
    for name in only:
        known_row(name, experiment, where="--only")
    rows = [row for row in experiment.row if row.name in (profile.rows or [row.name])]
    known = {row.name: _settings(experiment, row) for row in rows}
    for key in profile.drop:
        if not any(one.has(key) for one in known.values()):
            raise ConfigError(f"profile: drop {key!r}: no row has such a key. Remove it from drop.")
    given: dict[str, object] = flat_tables(override({}, settings))
    own_axes = {name for one in known.values() for name in one.axes}
    grid = Grid(cells=(), choices=())
    for row in rows:
        if row.name not in (only or [row.name]):
            continue
        mine = known[row.name]
        axes = {name: values for name, values in profile.axes.items() if name in mine.axes or name not in own_axes}
        mine = mine.without(profile.drop).with_last(profile.set).with_axes(axes).with_last(given)
        tuned = _tuned(experiment, row) if profile.tune else {}
        grid = _with_row(grid, experiment, row, mine, tuned)
    if not grid.cells:
        raise ConfigError(f"--only {', '.join(only)}: not in this profile, which has {', '.join(known)}.")
    _check_folders(grid.runs)
    return grid


def slug(text: str) -> str:
    """Return the text as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9.,=+_-]+", "-", text).strip("-._").lower()


def _settings(experiment: ExperimentFile, row: Row) -> RowSettings:
    """Return the settings of a row in the file, without the profiles."""
    base = dict(experiment.base)
    preset, drop = base.pop("preset", None), base.pop("drop", [])
    preset = row.preset or preset
    if not isinstance(drop, list) or not isinstance(preset, str | None):
        raise ConfigError("[base]: preset must be a name, drop a list of keys.")
    start = RowSettings(where=f"row {row.name!r}", tables=presets.preset_tables(preset) if preset else {})
    common = start.without(drop).with_settings(flat_tables(base)).with_axes(experiment.axes)
    return common.without(row.drop, must_be_there=True).with_settings(row.set).with_axes(row.axes)


def _with_row(grid: Grid, experiment: ExperimentFile, row: Row, settings: RowSettings, tuned: Axes) -> Grid:
    tuned = {name: values for name, values in tuned.items() if name not in settings.last}
    if not tuned:
        return replace(grid, cells=(*grid.cells, *_cells(row.name, settings)))
    for name in tuned:
        if name in settings.axes:
            raise ConfigError(f"row {row.name!r}: {name!r} is an axis and tuned; it can be one of them only.")
    cells, choices = list(grid.cells), list(grid.choices)
    choices += _choices(experiment, row.name, settings, tuned)
    first = settings.with_settings(values_at({name: values[0] for name, values in tuned.items()}))
    for cell in _cells(row.name, first):
        (number,) = (i for i, one in enumerate(choices) if one.row == row.name and one.at == _but_seed(cell.at))
        cells.append(replace(cell, choice=number))
    return Grid(cells=tuple(cells), choices=tuple(choices))


def _tuned(experiment: ExperimentFile, row: Row) -> Axes:
    if experiment.tune is None:
        if row.tune:
            raise ConfigError(f"row {row.name!r}: tune without a [tune] table. Add one; it may be empty.")
        return {}
    return experiment.tune.axes if row.tune is None else row.tune


def _choices(experiment: ExperimentFile, row: str, settings: RowSettings, tuned: Axes) -> list[Choice]:
    tune = experiment.tune
    assert tune is not None
    fixed: dict[str, object] = {SEED: tune.seed}
    if tune.validation is not None:
        fixed["data.validation"] = tune.validation
    found = []
    for at, here in replace(settings, axes=_but_seed(settings.axes)).points():
        candidates = here.with_last(fixed).with_axes(tuned)
        runs = _cells(row, candidates, before=at, parent=f"{TUNING}/")
        if any(cell.config.data.validation is None for cell in runs):
            raise ConfigError(
                f"row {row!r}: [tune] needs a validation set. Give tune.validation, the number of training samples to "
                "set aside in the runs that choose, or data.validation for all runs."
            )
        values = RowSettings(where=here.where, tables={}, axes=tuned).points()
        found.append(
            Choice(row=row, at=at, runs=tuple(runs), values=tuple(flat_tables(one.tables) for _, one in values))
        )
    return found


def _but_seed(axes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in axes.items() if name != SEED}


def _cells(row: str, settings: RowSettings, *, before: Mapping[str, str] | None = None, parent: str = "") -> list[Cell]:
    cells = []
    for labels, here in settings.points():
        at = {**(before or {}), **labels}
        words = ",".join(f"{name}={value}" for name, value in at.items())
        source = f"{settings.where}{f' at {words}' if words else ''}"
        config = parse(here.to_tables(), source=source)
        try:
            check_configuration(config)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
        cells.append(Cell(row=row, at=at, config=config, folder=f"{parent}{slug(row)}/{slug(words) or 'run'}"))
    return cells


def _check_folders(cells: Sequence[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.folder, cell)
        if other is not cell:
            raise ConfigError(f"rows {other.row!r} and {cell.row!r} would share the folder {cell.folder}. Rename one.")
