"""What goes to standard output: one JSON document, or tables for people."""

import json
import sys
from typing import Any

from rich.console import Console

# Wide enough that no number is cut when the output is not a terminal.
_WIDTH_OF_A_FILE = 140


def print_json(document: Any) -> None:
    """One JSON document on standard output and nothing else."""
    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def console(*, to_stderr: bool = False) -> Console:
    """A console for tables (standard output) or progress (standard error)."""
    stream = sys.stderr if to_stderr else sys.stdout
    return Console(stderr=to_stderr, width=None if stream.isatty() else _WIDTH_OF_A_FILE, highlight=False, markup=False)


def number(value: float | None, digits: int = 4) -> str:
    """A number for a table, to nearest (so no guarantee: accounting.rounding): fixed digits where that is readable,
    else scientific; a dash for none."""
    if value is None:
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}g}"
