"""Folder of a sweep, whose file sweep.json lists all runs, and the quantities that its tables show.

The quantities are those of summary.json that tables can show, with label, unit, and number of digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_text
from accounting.rounding import downwards, upwards
from dpfed.errors import RunError, require_name
from dpfed.runs.durable_files import put

SAFELY: Mapping[str, Callable[[float], str]] = {
    "epsilon": upwards,
    "server_epsilon": upwards,
    "hostile_clients_epsilon": upwards,
    "project_epsilon": upwards,
    "project_delta": upwards,
    "delta": upwards,
    "advantage": upwards,
    "noise_multiplier": upwards,
    "lower_bound": downwards,
    "clip_norm": downwards,
}
"""Rounding functions of keys of summary.json that are rounded in the safe direction; other keys are rounded to
nearest."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A quantity in tables: `scale` times the value of a key of summary.json, in `unit`, with `digits` decimals.

    `accounting.rounding` chooses the digits of guarantees (`SAFELY`).

    over_seeds: statistic over runs with different seeds; for upper bounds the largest, because their mean is no bound
    """

    key: str
    label: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 2
    over_seeds: Literal["mean", "largest", "smallest"] = "mean"

    @property
    def heading(self) -> str:
        """Heading of a table's column: the label with its unit."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def printed(self, value: float, digits: int | None = None) -> str:
        """Return a value in `unit` as text; `digits` overrides the usual number of decimals."""
        if self.key in SAFELY:
            return SAFELY[self.key](value)
        return f"{value:,.{self.digits if digits is None else digits}f}"

    def difference(self, value: float, digits: int | None = None) -> str:
        """Return the difference of two values as text with its sign, rounded like a value; without a sign if it
        rounds to zero."""
        shown = self.printed(value, digits)
        if not float(shown.replace(",", "")):
            return shown.removeprefix("-")
        return shown if value < 0 else f"+{shown}"


def _percent_quantity(key: str, label: str) -> Quantity:
    return Quantity(key=key, label=label, unit="%", scale=100.0)


QUANTITIES: dict[str, Quantity] = {
    one.key: one
    for one in (
        _percent_quantity("test_accuracy", "test accuracy, last round"),
        _percent_quantity("best_test_accuracy", "test accuracy, best over rounds"),
        _percent_quantity("validation_accuracy", "validation accuracy, last round"),
        *(
            Quantity(key=f"{half}_{key}", label=f"{half} {key}, last round", digits=4)
            for half in ("test", "validation")
            for key in ("loss", "mae", "rmse", "r2")
        ),
        Quantity(key="epsilon", label="epsilon", digits=4, over_seeds="largest"),
        Quantity(key="lower_bound", label="epsilon at least", digits=4, over_seeds="smallest"),
        Quantity(key="server_epsilon", label="epsilon against the server", digits=4, over_seeds="largest"),
        Quantity(
            key="hostile_clients_epsilon",
            label="epsilon whatever clients send",
            digits=4,
            over_seeds="largest",
        ),
        Quantity(key="delta", label="delta", digits=8, over_seeds="largest"),
        Quantity(key="noise_multiplier", label="noise multiplier", digits=4),
        Quantity(key="clip_norm", label="clip norm", digits=4),
        Quantity(key="rounds", label="rounds", digits=0),
        Quantity(key="parameters", label="parameters", digits=0),
        Quantity(key="uplink_bits_per_parameter", label="uplink", unit="bits a parameter", digits=4),
        Quantity(
            key="mask_entropy_bits_per_parameter",
            label="uplink by the entropy of a mask's ones (FedPM's measure)",
            unit="bits a parameter",
            digits=4,
        ),
        Quantity(key="model_bits_per_parameter", label="stored model", unit="bits a parameter", digits=4),
        Quantity(key="uplink_bytes_per_client_round", label="uplink a client and round", unit="bytes", digits=0),
        Quantity(key="downlink_bytes_per_client_round", label="downlink a client and round", unit="bytes", digits=0),
        Quantity(key="secure_sum_bytes_per_client_round", label="of it for the secure sum", unit="bytes", digits=0),
        Quantity(key="uplink_megabytes_total", label="uplink of all clients", unit="MB"),
        Quantity(key="seconds", label="time", unit="s", digits=1),
    )
}


def quantity_of_key(key: str, *, where: str) -> Quantity:
    """Return the quantity with this key. Raises ConfigError for an unknown key; its message begins with `where`."""
    require_name(f"{where}: quantity {key!r} is none of", key, QUANTITIES)
    return QUANTITIES[key]


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
    quantities: Annotated[tuple[str, ...], Field(min_length=1)]
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
    write_json(folder / NAME, asdict(sweep))


def write_json(target: Path, document: Mapping[str, object] | Sequence[Mapping[str, object]]) -> None:
    """Write the document as JSON and create its folder. RunError if the file cannot be written."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        put(target, (json.dumps(document, indent=2) + "\n").encode())
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
