"""TOML file of an experiment (rows, axes, profiles, tuning), and the CSV of published numbers beside it.

An unknown key is an error.
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_text
from dpfed.config.did_you_mean import did_you_mean
from dpfed.config.tables import flat_tables, read_toml, value_text
from dpfed.errors import ConfigError
from dpfed.runs.quantities import quantity_of_key
from dpfed.runs.sweep_folder import PublishedNumber
from dpfed.sweep.row_settings import label

_LARGEST = 1e100
_COLUMNS = ["row", "x", "quantity", "value", "where"]
FlatSettings = Annotated[dict[str, object], BeforeValidator(flat_tables)]
Axes = Annotated[dict[str, Annotated[list[object], Field(min_length=1)]], BeforeValidator(flat_tables)]


class _ExperimentTable(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Row(_ExperimentTable):
    """[[row]] One line of the table: its own `preset`, keys to `drop`, to `set`, more `axes`; `tune` replaces the
    axes of [tune] for this row, {} tunes nothing."""

    name: Annotated[str, Field(min_length=1)]
    preset: str | None = None
    drop: list[str] = []
    set: FlatSettings = {}
    axes: Axes = {}
    tune: Axes | None = None


class SweepProfile(_ExperimentTable):
    """[profiles.NAME] What is smaller or other here than in the paper, said in `note`. Its axes replace those of the
    same name where a row has them; one that no row has is new to all. tune = false tunes nothing."""

    note: str = ""
    rows: list[str] | None = None
    drop: list[str] = []
    set: FlatSettings = {}
    axes: Axes = {}
    tune: bool = True


class Tune(_ExperimentTable):
    """[tune] Hyperparameters chosen by validation accuracy after the last round of one run with `seed`, for each row at
    each point of its other axes, before the runs of all seeds. `validation` training samples are set aside in those
    runs; without it, data.validation of the row is."""

    axes: Axes = {}
    seed: Annotated[int, Field(ge=0)] = 0
    validation: Annotated[int, Field(ge=1)] | None = None


class ExperimentFile(_ExperimentTable):
    """A whole file. `published` is a CSV beside it, `x` the axis of the figure."""

    title: str
    paper: str = ""
    published: str | None = None
    quantities: list[str] = ["test_accuracy", "best_test_accuracy", "epsilon", "uplink_megabytes_total"]
    x: str | None = None
    base: dict[str, object] = {}
    axes: Axes = {}
    row: Annotated[list[Row], Field(min_length=1)]
    profiles: dict[str, SweepProfile] = {}
    tune: Tune | None = None

    def profile(self, name: str | None) -> tuple[str | None, SweepProfile]:
        """Return the profile of that name; without a name "full" if it exists, else a profile that changes nothing."""
        if name is None:
            return ("full", self.profiles["full"]) if "full" in self.profiles else (None, SweepProfile())
        if name not in self.profiles:
            raise ConfigError(f"--profile {name}: the file has {', '.join(self.profiles) or 'no profiles'}.")
        return name, self.profiles[name]


def read_experiment(path: Path) -> ExperimentFile:
    """Read and check the file; raise ConfigError with every mistake in it. Configurations are checked by `grid`."""
    try:
        found = ExperimentFile.model_validate(read_toml(path))
    except ValidationError as error:
        problems = "\n  ".join(_problem(item) for item in error.errors(include_url=False))
        raise ConfigError(f"{path}:\n  {problems}") from None
    names = [row.name for row in found.row]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: row {name!r} is there twice. Give every row a name of its own.")
    for key in found.quantities:
        quantity_of_key(key, where=f"{path}: quantities")
    for profile, table in found.profiles.items():
        for name in table.rows or []:
            known_row(name, found, where=f"{path}: profiles.{profile}.rows")
    known = {key for axes in all_axes(found) for key in axes}
    if found.x is not None and found.x not in known:
        raise ConfigError(f"{path}: x={found.x!r} is no axis; axes are {', '.join(sorted(known)) or 'none'}.")
    return found


def all_axes(experiment: ExperimentFile) -> list[dict[str, list[object]]]:
    """Every table of axes in the file, but those that are tuned."""
    profiles = [profile.axes for profile in experiment.profiles.values()]
    return [experiment.axes, *(row.axes for row in experiment.row), *profiles]


def known_row(name: str, experiment: ExperimentFile, *, where: str) -> None:
    """ConfigError unless the experiment has a row of that name."""
    names = [row.name for row in experiment.row]
    if name not in names:
        hint = did_you_mean(name, names)
        raise ConfigError(f"{where}: there is no row {name!r}; rows are {', '.join(names)}.{hint}")


_TABLES: dict[tuple[str, ...], type[BaseModel]] = {(): ExperimentFile, ("row",): Row, ("tune",): Tune}


def _problem(item: Any) -> str:
    location = [str(part) for part in item["loc"]]
    where = ".".join(location)
    if item["type"] == "extra_forbidden":
        names = tuple(part for part in location[:-1] if not part.isdigit())
        table = SweepProfile if names[:1] == ("profiles",) else _TABLES.get(names, ExperimentFile)
        known = sorted(table.model_fields)
        return f"{where}: unknown key; known here: {', '.join(known)}.{did_you_mean(location[-1], known)}"
    if item["type"] == "missing":
        return f"{where}: is missing and has no default."
    return f"{where}={value_text(item['input'])}: {item['msg']}."


def read_published(path: Path, experiment: ExperimentFile) -> tuple[PublishedNumber, ...]:
    """Read the lines of the CSV; raise ConfigError for one that no run of the experiment can be compared with."""
    try:
        reader = csv.DictReader(io.StringIO(read_text(path, at_most=LARGEST_DOCUMENT), newline=""))
        if reader.fieldnames != _COLUMNS:
            raise ConfigError(
                f"{path}: the first line must be {','.join(_COLUMNS)}, not {value_text(reader.fieldnames)}."
            )
        lines = [_published(f"{path}, line {reader.line_num}", line, experiment) for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: the published numbers cannot be read ({error}).") from None
    keys = [(line.row, line.x, line.quantity) for line in lines]
    for row, x, name in keys:
        if keys.count((row, x, name)) > 1:
            raise ConfigError(f"{path}: {name} of {row!r}{f' at {x}' if x else ''} is there twice.")
    return tuple(lines)


def _published(where: str, line: dict[str | Any, str | Any], experiment: ExperimentFile) -> PublishedNumber:
    if None in line or None in line.values():
        raise ConfigError(f"{where}: must have {len(_COLUMNS)} columns; put quotes around a text with commas.")
    known_row(line["row"], experiment, where=where)
    if line["quantity"] not in experiment.quantities:
        raise ConfigError(
            f"{where}: {line['quantity']!r} is not shown; quantities are {', '.join(experiment.quantities)}."
        )
    try:
        value = float(line["value"])
    except ValueError:
        value = math.nan
    if not abs(value) <= _LARGEST:
        raise ConfigError(f"{where}: value={value_text(line['value'])} must be a number, at most {_LARGEST:g}.")
    (row,) = (one for one in experiment.row if one.name == line["row"])
    return PublishedNumber(
        row=line["row"],
        x=_at(where, line["x"], row, experiment),
        quantity=line["quantity"],
        value=value,
        where=line["where"],
    )


def _at(where: str, given: str, row: Row, experiment: ExperimentFile) -> str | None:
    """Return the value of the x axis, as labels are written."""
    if not given:
        return None
    axes = [experiment.axes, row.axes, *(profile.axes for profile in experiment.profiles.values())]
    values = [label(value) for each in axes for value in each.get(experiment.x or "", [])]
    x = _number_label(given)
    if x not in values:
        known = ", ".join(dict.fromkeys(values)) or "none: name the axis in `x`"
        raise ConfigError(f"{where}: nothing runs at {experiment.x or 'x'}={given}; values are {known}.")
    return x


def _number_label(text: str) -> str:
    try:
        return label(float(text)) if text.strip() not in ("true", "false") else text
    except ValueError:
        return text
