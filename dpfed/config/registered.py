"""Names that code outside this package has registered: schemes, methods, networks, data sets, server rules.

The tables do not import torch. A name stands for one object: a second registration from another place is an error, and
so is the name of a built-in object.
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

Kind = Literal["scheme", "method", "model", "data set", "server rule"]

VARIABLE = "DPFED_OWN_CODE"
"""Environment variable that names files of user-defined code."""
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A registered object, and the line of code that registered it."""

    thing: Any
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line}"


_KNOWN: dict[Kind, dict[str, Registration]] = {}


def add(kind: Kind, name: str, thing: Any, *, taken: Collection[str]) -> None:
    """Register `thing` under a name.

    ConfigError for a name that is `taken`, is invalid, or was registered by another line of code.

    The same line may register again (a cell that runs twice, a function that is called twice), and so may any line of
    an interactive session.
    """
    file, line = _caller()
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{kind} {name!r} ({file}, line {line}): a name has up to 64 letters, digits, '.', '_', '-'.")
    if name in taken:
        raise ConfigError(
            f"{kind} {name!r} ({file}, line {line}): is the name of a {kind} that is there already. Choose another."
        )
    before = _KNOWN.setdefault(kind, {}).get(name)
    if before is not None and (before.file, before.line) != (file, line) and not _typed(file):
        raise ConfigError(
            f"{kind} {name!r} ({file}, line {line}): is registered twice, first by {before.place}. Rename one of them."
        )
    _KNOWN[kind][name] = Registration(thing=thing, file=file, line=line)


def own(kind: Kind) -> Mapping[str, Any]:
    """Return name -> object, of this kind."""
    return {name: one.thing for name, one in _KNOWN.get(kind, {}).items()}


def file_of(kind: Kind, name: str) -> str | None:
    """Return the file that registered the name; None for a built-in name."""
    found = _KNOWN.get(kind, {}).get(name)
    return None if found is None else found.file


def registers(file: str) -> bool:
    """Return True if something is registered from this file."""
    return any(one.file == file for names in _KNOWN.values() for one in names.values())


def forget(file: str) -> None:
    """Remove all names registered by this file."""
    for names in _KNOWN.values():
        for name in [name for name, one in names.items() if one.file == file]:
            del names[name]


def _caller() -> tuple[str, int]:
    """Return the line outside of dpfed that registers."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _typed(file: str) -> bool:
    """Return True if this is code of an interactive session, where a changed cell registers again."""
    return not hasattr(sys.modules["__main__"], "__file__") and not Path(file).is_file()


@contextmanager
def as_before() -> Iterator[None]:
    """Restore the list of named files (`dpfed/config/own_code.py`) on leaving."""
    before = os.environ.get(VARIABLE)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        os.environ |= {} if before is None else {VARIABLE: before}
