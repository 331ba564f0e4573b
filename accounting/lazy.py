"""Names that a package offers, whose modules are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping


def modules(package: str, *paths: str) -> dict[str, str]:
    """Return the homes of modules of a package that it offers itself, each by the last part of its path."""
    return {path.rpartition(".")[2]: f"{package}.{path}" for path in paths}


def names(module: str, *offered: str) -> dict[str, str]:
    """Return the homes of names that are taken from a module."""
    return dict.fromkeys(offered, f"{module}:")


def found(package: str, name: str, homes: Mapping[str, str]) -> object:
    """Return what the package offers under this name, imported now; AttributeError if that is nothing."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    path, inside, _ = homes[name].partition(":")
    module = importlib.import_module(path)
    return getattr(module, name) if inside else module
