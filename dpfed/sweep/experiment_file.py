"""TOML file of an experiment, and the settings of its rows.

An unknown key is an error.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_text
from dpfed.config.tables import flat_tables, override, read_toml, set_key, value_text
from dpfed.errors import ConfigError, did_you_mean, require_name
from dpfed.runs.sweep_folder import PublishedNumber, quantity_of_key

Axes = Mapping[str, Sequence[object]]


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Configuration `tables`, `axes` that override them, and `final` keys that override even the axes.

    A value of an axis is a value of the key named by the axis, or a table of several keys with a `label`. `place`: the
    row, for error messages.
    """

    place: str
    tables: Mapping[str, object]
    axes: Axes = field(default_factory=dict)
    final: Mapping[str, object] = field(default_factory=dict)

    def without_keys(self, keys: Sequence[str], *, must_be_there: bool = False) -> RowSettings:
        """Return the settings without these keys or tables, and without axes of these keys."""
        for key in keys:
            if must_be_there and not self.has_key(key):
                raise ConfigError(f"{self.place}: drop {key!r}: no such key is set. Remove it from drop.")
        return replace(
            self,
            tables=_tables_without(self.tables, keys),
            axes={name: values for name, values in self.axes.items() if not _is_below(name, keys)},
        )

    def has_key(self, key: str) -> bool:
        """Return True if the key, or a key below it, is set or is an axis."""
        return any(_is_below(name, [key]) for name in (*flat_tables(self.tables), *self.axes))

    def with_settings(self, settings: Mapping[str, object]) -> RowSettings:
        """Return the settings with these dotted keys set; an axis with the name of such a key has only this value."""
        pinned = {name: [settings[name]] for name in self.axes if name in settings}
        return replace(self, tables=put_keys(self.tables, settings), axes={**self.axes, **pinned})

    def with_final(self, settings: Mapping[str, object]) -> RowSettings:
        """Return the settings with these dotted keys set, which override even tables of an axis."""
        return replace(self.with_settings(settings), final={**self.final, **settings})

    def with_axes(self, axes: Axes) -> RowSettings:
        """Return the settings with these axes added; an existing axis of the same name is replaced at its position."""
        for name, values in axes.items():
            labels = [value_label(value) for value in values]
            if len(set(labels)) < len(labels) or "" in labels:
                raise ConfigError(
                    f"{self.place}: axis {name!r}: its values are {labels}; they must differ, and a table among them "
                    "needs a `label`."
                )
        return replace(self, axes={**self.axes, **axes})

    def axis_points(self) -> list[tuple[dict[str, str], RowSettings]]:
        """Return (labels by axis, settings with the axis values set and without axes) for every point of the axes."""
        found = []
        for values in itertools.product(*self.axes.values()):
            point = dict(zip(self.axes, values, strict=True))
            labels = {name: value_label(value) for name, value in point.items()}
            found.append((labels, replace(self, tables=put_keys(self.tables, values_at(point)), axes={})))
        return found

    def to_tables(self) -> dict[str, object]:
        """Return the tables of a run configuration."""
        return put_keys(self.tables, self.final)


def value_label(value: object) -> str:
    """Return the text of an axis value that tables, folder names and the column x of published numbers show."""
    match value:
        case Mapping():
            return str(value.get("label", ""))
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case list():
            return "+".join(map(value_label, value))
    return str(value)


def values_at(point: Mapping[str, object]) -> dict[str, object]:
    """Return the dotted keys that a point of the axes sets, in the order of the axes."""
    found: dict[str, object] = {}
    for name, value in point.items():
        if isinstance(value, Mapping):
            found |= {key: one for key, one in flat_tables(value).items() if key != "label"}
        else:
            found[name] = value
    return found


def put_keys(tables: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """Return the tables with these dotted keys set. ConfigError for a key below a value."""
    result = override(dict(tables), [])
    for key, value in settings.items():
        set_key(result, key, value, given=key, form="table.key, as in federation.rounds")
    return result


def _is_below(name: str, keys: Sequence[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in keys)


def _tables_without(tables: Mapping[str, object], keys: Sequence[str], path: str = "") -> dict[str, object]:
    kept = {}
    for key, value in tables.items():
        name = f"{path}{key}"
        if name not in keys:
            kept[key] = _tables_without(value, keys, f"{name}.") if isinstance(value, Mapping) else value
    return kept


_LARGEST = 1e100
_COLUMNS = ["row", "x", "quantity", "value", "where"]
FlatSettings = Annotated[dict[str, object], BeforeValidator(flat_tables)]
AxesTable = Annotated[dict[str, Annotated[list[object], Field(min_length=1)]], BeforeValidator(flat_tables)]


class _ExperimentTable(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Row(_ExperimentTable):
    """[[row]] One row of the table: its `preset`, keys to `drop`, keys to `set`, and further `axes`.

    `tune` replaces the axes of [tune] for this row; {} tunes nothing."""

    name: Annotated[str, Field(min_length=1)]
    preset: str | None = None
    drop: list[str] = []
    set: FlatSettings = {}
    axes: AxesTable = {}
    tune: AxesTable | None = None


class SweepProfile(_ExperimentTable):
    """[profiles.NAME] A variant of the experiment, such as a smaller one; `note` describes the difference to the paper.

    An axis replaces the axis of that name in each row that has it; an axis that no row has is added to all rows.
    tune = false tunes nothing."""

    note: str = ""
    rows: list[str] | None = None
    drop: list[str] = []
    set: FlatSettings = {}
    axes: AxesTable = {}
    tune: bool = True


class Tune(_ExperimentTable):
    """[tune] Hyperparameters chosen before the runs of all seeds, for each row at each point of its other axes.

    Each candidate is run once with `seed`; the choice is by validation accuracy after the last round. `validation`:
    number of training samples set aside in those runs; default: data.validation of the row."""

    axes: AxesTable = {}
    seed: Annotated[int, Field(ge=0)] = 0
    validation: Annotated[int, Field(ge=1)] | None = None


class ExperimentFile(_ExperimentTable):
    """Content of the file. `published`: name of the CSV in its folder; `x`: axis of the figure."""

    title: str
    paper: str = ""
    published: str | None = None
    quantities: Annotated[list[str], Field(min_length=1)] = [
        "test_accuracy",
        "best_test_accuracy",
        "epsilon",
        "uplink_megabytes_total",
    ]
    x: str | None = None
    base: dict[str, object] = {}
    axes: AxesTable = {}
    row: Annotated[list[Row], Field(min_length=1)]
    profiles: dict[str, SweepProfile] = {}
    tune: Tune | None = None

    def profile(self, name: str | None) -> tuple[str | None, SweepProfile]:
        """Return (name, profile); without a name, the profile "full" if it exists, else one that changes nothing."""
        if name is None:
            return ("full", self.profiles["full"]) if "full" in self.profiles else (None, SweepProfile())
        if name not in self.profiles:
            raise ConfigError(f"--profile {name}: the file has {', '.join(self.profiles) or 'no profiles'}.")
        return name, self.profiles[name]


def read_experiment(path: Path) -> ExperimentFile:
    """Read and validate the file; ConfigError lists every mistake. `expand_grid` validates the runs."""
    try:
        found = ExperimentFile.model_validate(read_toml(path))
    except ValidationError as error:
        problems = "\n  ".join(_problem_text(item) for item in error.errors(include_url=False))
        raise ConfigError(f"{path}:\n  {problems}") from None
    names = [row.name for row in found.row]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: row {name!r} is there twice. Give every row a different name.")
    for key in found.quantities:
        quantity_of_key(key, where=f"{path}: quantities")
    for profile, table in found.profiles.items():
        for name in table.rows or []:
            require_row(name, found, where=f"{path}: profiles.{profile}.rows")
    axes = [found.axes, *(row.axes for row in found.row), *(one.axes for one in found.profiles.values())]
    known = {key for each in axes for key in each}  # without those of [tune], which are no axes of the runs
    if found.x is not None and found.x not in known:
        raise ConfigError(f"{path}: x={found.x!r} is no axis; axes are {', '.join(sorted(known)) or 'none'}.")
    return found


def require_row(name: str, experiment: ExperimentFile, *, where: str) -> None:
    """Raise ConfigError unless the experiment has a row of this name."""
    require_name(f"{where}: there is no row {name!r}; rows are", name, [row.name for row in experiment.row])


_TABLES: dict[tuple[str, ...], type[BaseModel]] = {(): ExperimentFile, ("row",): Row, ("tune",): Tune}


def _problem_text(item: ErrorDetails) -> str:
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
    """Read the published numbers; raise ConfigError for a line that no run of the experiment can be compared with."""
    try:
        reader = csv.DictReader(io.StringIO(read_text(path, at_most=LARGEST_DOCUMENT), newline=""))
        if reader.fieldnames != _COLUMNS:
            raise ConfigError(
                f"{path}: the first line must be {','.join(_COLUMNS)}, not {value_text(reader.fieldnames)}."
            )
        lines = [_published_number(f"{path}, line {reader.line_num}", line, experiment) for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: the published numbers cannot be read ({error}).") from None
    keys = [(line.row, line.x, line.quantity) for line in lines]
    for row, x, name in keys:
        if keys.count((row, x, name)) > 1:
            raise ConfigError(f"{path}: {name} of {row!r}{f' at {x}' if x else ''} is there twice.")
    return tuple(lines)


def _published_number(where: str, line: dict[str, str], experiment: ExperimentFile) -> PublishedNumber:
    if None in line or None in line.values():
        raise ConfigError(f"{where}: must have {len(_COLUMNS)} columns; put quotes around a text with commas.")
    require_row(line["row"], experiment, where=where)
    if line["quantity"] not in experiment.quantities:
        raise ConfigError(
            f"{where}: {line['quantity']!r} is no quantity here; quantities are {', '.join(experiment.quantities)}."
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
        x=_x_label(where, line["x"], row, experiment),
        quantity=line["quantity"],
        value=value,
        where=line["where"],
    )


def _x_label(where: str, given: str, row: Row, experiment: ExperimentFile) -> str | None:
    """Return the label of the given value of the x axis; ConfigError if no run has this value."""
    if not given:
        return None
    axes = [experiment.axes, row.axes, *(profile.axes for profile in experiment.profiles.values())]
    values = [value_label(value) for each in axes for value in each.get(experiment.x or "", [])]
    x = _number_label(given)
    if x not in values:
        known = ", ".join(dict.fromkeys(values)) or "none: name the axis in `x`"
        raise ConfigError(f"{where}: no run has {experiment.x or 'x'}={given}; values are {known}.")
    return x


def _number_label(text: str) -> str:
    try:
        return value_label(float(text)) if text.strip() not in ("true", "false") else text
    except ValueError:
        return text
