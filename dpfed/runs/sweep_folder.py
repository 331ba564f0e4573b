"""The folder of a sweep, whose file sweep.json lists all runs with their folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_text
from dpfed.errors import RunError
from dpfed.runs.durable_files import put
from dpfed.runs.quantities import quantity_of_key

NAME = "sweep.json"
_LONGEST = 500


@dataclass(frozen=True, kw_only=True)
class PublishedNumber:
    """One number published in a paper, in the unit in which the paper prints it (accuracies in percent).

    row:   name of the row of the sweep
    x:     value on the x axis; None if the number holds for the row at every x
    where: place of the number in the paper
    """

    row: str
    x: str | None
    quantity: str
    value: Annotated[float, Field(ge=-1e100, le=1e100)]
    where: str


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """One run of a sweep.

    row:    name of its row
    at:     its value on each axis, by the axis's name
    folder: its folder, relative to the folder of the sweep
    """

    row: str
    at: Mapping[str, str]
    folder: str


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Content of sweep.json."""

    title: str
    paper: str
    profile: str | None
    note: str
    quantities: tuple[str, ...]
    x: str | None
    rows: tuple[str, ...]
    runs: tuple[ListedRun, ...]
    published: tuple[PublishedNumber, ...]
    command: str
    versions: Mapping[str, str]
    commit: str | None
    tuned: tuple[Mapping[str, object], ...] = ()


_SWEEP = TypeAdapter(Sweep)


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write sweep.json into the folder. Raises RunError if it cannot be written."""
    target = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        put(target, (json.dumps(asdict(sweep), indent=2) + "\n").encode())
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror}).") from None


def read_sweep(folder: Path) -> Sweep:
    """Return the content of sweep.json. Raises RunError if it cannot be read or is invalid."""
    try:
        found = _SWEEP.validate_json(read_text(folder / NAME, at_most=LARGEST_DOCUMENT))
        for key in found.quantities:
            quantity_of_key(key, where="quantities")
        for one in found.runs:
            _check_inside(one.folder)
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / NAME}: is not a valid description of a sweep ({str(error)[:_LONGEST]}).") from None
    return found


def _check_inside(folder: str) -> None:
    path = Path(folder)
    if path.is_absolute() or ".." in path.parts or "\0" in folder:
        raise ValueError(f"the folder {folder[:100]!r} of a run is not inside the folder of the sweep")
