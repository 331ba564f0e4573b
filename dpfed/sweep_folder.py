"""The folder of a sweep: sweep.json says what belongs to it, and where each run's folder is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accounting.input_file import LARGEST_DOCUMENT, read_text
from dpfed.errors import RunError

NAME = "sweep.json"


@dataclass(frozen=True, kw_only=True)
class Published:
    """One number that the paper prints, in the unit it prints (accuracies in percent); `x` is the axis's label,
    None for the row at every x."""

    row: str
    x: str | None
    quantity: str
    value: float
    where: str


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One run: its row, where it is on the axes, and its folder, relative to the sweep's."""

    row: str
    at: Mapping[str, str]
    folder: str


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What sweep.json holds."""

    title: str
    paper: str
    profile: str | None
    note: str
    quantities: tuple[str, ...]
    x: str | None
    rows: tuple[str, ...]
    runs: tuple[Listed, ...]
    published: tuple[Published, ...]
    command: str
    versions: Mapping[str, str]
    commit: str | None
    tuned: tuple[Mapping[str, Any], ...] = ()


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write sweep.json."""
    target, part = folder / NAME, folder / f"{NAME}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(asdict(sweep), indent=2) + "\n", encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror}).") from None


def read_sweep(folder: Path) -> Sweep:
    """What is in sweep.json; RunError where it cannot be read."""
    try:
        found = json.loads(read_text(folder / NAME, at_most=LARGEST_DOCUMENT))
        return Sweep(
            **{
                **found,
                "runs": tuple(Listed(**one) for one in found["runs"]),
                "published": tuple(Published(**one) for one in found["published"]),
                **{key: tuple(found[key]) for key in ("quantities", "rows", "tuned")},
            }
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder / NAME}: is no description of a sweep ({error}).") from None
