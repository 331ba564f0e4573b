"""Registry of the names that code outside this package registers: schemes, methods, networks, data sets, server
rules, samplers.

This module does not import torch. A name stands for one object: it is an error to register a name from two places, or
to register the name of a built-in object.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dpfed.errors import ConfigError

Kind = Literal["scheme", "method", "model", "data set", "server rule", "sampler"]

VARIABLE = "DPFED_OWN_CODE"
"""Environment variable that names files of user-defined code."""
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A registered object, and the line of code that registered it."""

    registered_object: Any
    file: str
    line: int

    @property
    def source_line(self) -> str:
        return f"{self.file}, line {self.line}"


_KNOWN: dict[Kind, dict[str, Registration]] = {}


def register_object(kind: Kind, name: str, registered_object: Any, *, taken: Collection[str]) -> None:
    """Register the object `registered_object` under a name; `taken` are the names of the built-in objects of this kind.

    Raises ConfigError for a name that is taken or invalid, or that another line of code has registered.

    A line of code may register its name again (a cell that runs twice, a function that is called twice). In an
    interactive session any line may register a name again.
    """
    file, line = _registering_line()
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{kind} {name!r} ({file}, line {line}): a name has up to 64 letters, digits, '.', '_', '-'.")
    if name in taken:
        raise ConfigError(
            f"{kind} {name!r} ({file}, line {line}): is the name of an existing {kind}. Choose another name."
        )
    before = _KNOWN.setdefault(kind, {}).get(name)
    if before is not None and (before.file, before.line) != (file, line) and not _is_interactive(file):
        raise ConfigError(
            f"{kind} {name!r} ({file}, line {line}): is registered twice, first by {before.source_line}. Rename one."
        )
    _KNOWN[kind][name] = Registration(registered_object=registered_object, file=file, line=line)


def objects_of_kind(kind: Kind) -> Mapping[str, Any]:
    """Return the registered objects of this kind, by name."""
    return {name: one.registered_object for name, one in _KNOWN.get(kind, {}).items()}


def registering_file(kind: Kind, name: str) -> str | None:
    """Return the file that registered the name; None for a built-in name."""
    found = _KNOWN.get(kind, {}).get(name)
    return None if found is None else found.file


def has_registered(file: str) -> bool:
    """Return True if this file has registered a name."""
    return any(one.file == file for names in _KNOWN.values() for one in names.values())


def forget_file(file: str) -> None:
    """Remove all names registered by this file."""
    for names in _KNOWN.values():
        for name in [name for name, one in names.items() if one.file == file]:
            del names[name]


def _registering_line() -> tuple[str, int]:
    """Return file and line of the code outside of dpfed that called a function which registers a name."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_interactive(file: str) -> bool:
    """Return True if `file` is code of an interactive session, where a changed cell may register a name again."""
    return not hasattr(sys.modules["__main__"], "__file__") and not Path(file).is_file()


@contextmanager
def restore_named_files() -> Iterator[None]:
    """Context manager that restores $DPFED_OWN_CODE, the list of named files, on exit."""
    before = os.environ.get(VARIABLE)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        os.environ |= {} if before is None else {VARIABLE: before}
