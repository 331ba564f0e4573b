"""Output of commands: JSON or tables on standard output, progress on standard error, and text files."""

import json
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from dpfed.errors import ConfigError, RunError
from dpfed.runs.durable_files import put

Flag = Annotated[bool, Parameter(negative="")]
"""Type of a Boolean option without a --no-... form."""
Settings = Annotated[list[str] | None, Parameter(name="--set", negative="")]
"""Type of the repeatable option --set table.key=value."""
Load = Annotated[list[Path] | None, Parameter(name="--load", negative="")]
"""Type of the repeatable option --load FILE.py, a user's Python file."""
# Wide enough that no number of a table is cut if the output is not a terminal.
_FILE_WIDTH = 140


def print_json(document: object) -> None:
    """Print one JSON document on standard output and nothing else."""
    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def console(*, to_stderr: bool = False) -> Console:
    """Return a console for tables (standard output) or progress (standard error)."""
    stream = sys.stderr if to_stderr else sys.stdout
    return Console(stderr=to_stderr, width=None if stream.isatty() else _FILE_WIDTH, highlight=False, markup=False)


def table_of(*headings: str, title: str | None = None, right: Collection[str] = ()) -> Table:
    """Return an empty table with these headings, whose cells are folded, not cut; numbers are in columns of `right`."""
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, overflow="fold", justify="right" if heading in right else "left")
    return table


def number_text(value: float | None) -> str:
    """Return a number as text for a table, or a dash for None; rounding is to nearest, so never use it for a guarantee.

    The text has four decimals, or scientific notation for very small and very large numbers.
    """
    if value is None:
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.4f}"
    return f"{value:.4g}"


@contextmanager
def training_extra(command: str) -> Iterator[None]:
    """Turn an ImportError of the block into a ConfigError that names the training extra."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"`{command}` needs the training extra ({error}): pip install 'dpfed[train]'.") from None


def write_file(file: Path, text: str) -> None:
    """Write a text file atomically. Raise RunError if it cannot be written."""
    try:
        put(file, text.encode())
    except OSError as error:
        raise RunError(f"{file}: cannot be written ({error.strerror}). Name another file.") from None
