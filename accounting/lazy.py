"""Lazy exports of a package: the module of a name is imported at the first use of the name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping


def modules(package: str, *paths: str) -> dict[str, str]:
    """Return the import path of each exported module, by the last part of its dotted path."""
    return {path.rpartition(".")[2]: f"{package}.{path}" for path in paths}


def names(module: str, *offered: str) -> dict[str, str]:
    """Return the import path of each name that a package exports from `module`."""
    return dict.fromkeys(offered, f"{module}:")


def load_exported(package: str, name: str, homes: Mapping[str, str]) -> object:
    """Import and return the exported module or object of this name. Errors: AttributeError if the package exports no
    such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    path, inside, _ = homes[name].partition(":")
    module = importlib.import_module(path)
    return getattr(module, name) if inside else module
