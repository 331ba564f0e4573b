"""Measured accuracy, epsilon, time and bits of presets, shown by `dpfed run --list`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, kw_only=True)
class ExpectedResults:
    """Measured results of one run of a preset.

    accuracy: test accuracy of the last round; epsilon: None if the preset is not private
    seconds: on two CPU cores; bits_per_parameter: bits of an upload, divided by the number of parameters
    """

    accuracy: float
    epsilon: float | None
    seconds: float
    bits_per_parameter: float


@cache
def expected_results() -> dict[str, ExpectedResults]:
    """Return the results of the measured presets by the preset's name, from the file that `benchmarks/presets.py`
    writes."""
    tables = tomllib.loads((files("dpfed.config") / "expected.toml").read_text(encoding="utf-8"))
    return {
        name: ExpectedResults(
            accuracy=table["accuracy"],
            epsilon=table.get("epsilon"),
            seconds=table["seconds"],
            bits_per_parameter=table["bits_per_parameter"],
        )
        for name, table in tables.items()
    }
