"""Run presets and record their results, which `dpfed run --list` shows.

    python benchmarks/presets.py [PRESET ...] [--file dpfed/config/expected.toml]

Default: every preset on the embedded digits. Other presets need DPFED_DATA_DIR. Presets not named keep their results.
Seconds are those of summary.json: training, without start-up and data loading.
"""

from __future__ import annotations

import argparse
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import dpfed
from dpfed.methods import catalogue

FILE = Path(__file__).parents[1] / "dpfed" / "config" / "expected.toml"
HEADING = "# What presets came to, seed 0, on two CPU cores. Written by benchmarks/presets.py.\n"


def measured(preset: str) -> dict[str, Any]:
    """Return the result of one run of an unchanged preset."""
    with tempfile.TemporaryDirectory() as folder:
        summary = dpfed.run(preset, out=Path(folder) / "run").summary
    epsilon = {} if summary["epsilon"] is None else {"epsilon": summary["epsilon"]}
    return {
        "accuracy": round(summary["test_accuracy"], 4),
        **epsilon,
        "seconds": round(summary["seconds"], 1),
        "bits_per_parameter": float(f"{summary['uplink_bits_per_parameter']:.3g}"),
    }


def written(tables: dict[str, dict[str, Any]]) -> str:
    """Return the results as TOML, one table per preset, sorted by name."""
    lines = [HEADING]
    for name in sorted(tables):
        lines += [f"\n[{name}]\n", *(f"{key} = {value!r}\n" for key, value in tables[name].items())]
    return "".join(lines)


def main() -> None:
    """Run the presets and write the file after each, so that an interruption loses no result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*")
    parser.add_argument("--file", type=Path, default=FILE)
    given = parser.parse_args()
    tables = tomllib.loads(given.file.read_text(encoding="utf-8")) if given.file.exists() else {}
    for preset in given.presets or [name for name in catalogue.preset_names() if name.endswith("-digits")]:
        tables[preset] = measured(preset)
        given.file.write_text(written(tables), encoding="utf-8")
        print(preset, tables[preset], flush=True)


if __name__ == "__main__":
    main()
