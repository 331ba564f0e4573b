"""The numbers that a paper prints, from the CSV beside an experiment."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_text
from dpfed.config.tables import shown
from dpfed.errors import ConfigError
from dpfed.run.sweep_folder import Published
from dpfed.sweep.experiment_file import ExperimentFile, Row, known_row
from dpfed.sweep.row_settings import label

_LARGEST = 1e100
_COLUMNS = ["row", "x", "quantity", "value", "where"]


def read_published(path: Path, experiment: ExperimentFile) -> tuple[Published, ...]:
    """The lines of the CSV; ConfigError for one that no run of the experiment can be held against."""
    try:
        reader = csv.DictReader(io.StringIO(read_text(path, at_most=LARGEST_DOCUMENT), newline=""))
        if reader.fieldnames != _COLUMNS:
            raise ConfigError(f"{path}: the first line must be {','.join(_COLUMNS)}, not {shown(reader.fieldnames)}.")
        lines = [_checked(f"{path}, line {reader.line_num}", line, experiment) for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: the published numbers cannot be read ({error}).") from None
    keys = [(line.row, line.x, line.quantity) for line in lines]
    for row, x, quantity in keys:
        if keys.count((row, x, quantity)) > 1:
            raise ConfigError(f"{path}: {quantity} of {row!r}{f' at {x}' if x else ''} is there twice.")
    return tuple(lines)


def _checked(where: str, line: dict[str | Any, str | Any], experiment: ExperimentFile) -> Published:
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
        raise ConfigError(f"{where}: value={shown(line['value'])} must be a number, at most {_LARGEST:g}.")
    (row,) = (one for one in experiment.row if one.name == line["row"])
    return Published(
        row=line["row"],
        x=_at(where, line["x"], row, experiment),
        quantity=line["quantity"],
        value=value,
        where=line["where"],
    )


def _at(where: str, given: str, row: Row, experiment: ExperimentFile) -> str | None:
    """The value of the x axis, as labels are written."""
    axes = [experiment.axes, row.axes, *(profile.axes for profile in experiment.profiles.values())]
    values = [label(value) for each in axes for value in each.get(experiment.x or "", [])]
    if not given:
        return None
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
