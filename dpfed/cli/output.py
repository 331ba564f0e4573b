"""Output of commands: one JSON document or tables on standard output, progress on standard error, files."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from dpfed.errors import ConfigError, RunError
from dpfed.runs.durable_files import put

Flag = Annotated[bool, Parameter(negative="")]
"""Type of an option that is given or not, without a --no-... form."""
Settings = Annotated[list[str] | None, Parameter(name="--set", negative="")]
"""Type of settings on top of a configuration, table.key=value each; may be given again."""
Load = Annotated[list[Path] | None, Parameter(name="--load", negative="")]
"""Type of paths of a user's Python files; may be given again."""
# Wide enough that no number is cut when the output is not a terminal.
_WIDTH_OF_A_FILE = 140


def print_json(document: object) -> None:
    """Print one JSON document on standard output and nothing else."""
    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def console(*, to_stderr: bool = False) -> Console:
    """Return a console for tables (standard output) or progress (standard error)."""
    stream = sys.stderr if to_stderr else sys.stdout
    return Console(stderr=to_stderr, width=None if stream.isatty() else _WIDTH_OF_A_FILE, highlight=False, markup=False)


def number(value: float | None, digits: int = 4) -> str:
    """Return a number of a table, rounded to nearest, so no guarantee (see accounting.rounding); a dash for None.

    Fixed digits if that is readable, else scientific.
    """
    if value is None:
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}g}"


@contextmanager
def training_extra(command: str) -> Iterator[None]:
    """Context of imports that need the training extra. Raise ConfigError if it is not installed."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"`{command}` needs the training extra ({error}): pip install 'dpfed[train]'.") from None


def write_file(file: Path, text: str) -> None:
    """Write a text file whole. Raise RunError if that is not possible."""
    try:
        put(file, text.encode())
    except OSError as error:
        raise RunError(f"{file}: cannot be written ({error.strerror}). Name another file.") from None
