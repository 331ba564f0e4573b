"""Presets METHOD-DATASET: a data set's tables, the method's on top, then what the data set's [adjust.METHOD] says.

A method or scheme of one's own has them, too: its name, and the tables that it was registered with.
"""

from __future__ import annotations

import difflib
import tomllib
from importlib.resources import files
from typing import Any

from dpfed.config import registered
from dpfed.config.tables import override
from dpfed.errors import ConfigError


def names() -> list[str]:
    """Every preset, by name."""
    return [f"{method}-{data}" for data in _stems("data") for method in [*_stems("methods"), *_own()]]


def tables(name: str) -> dict[str, Any]:
    """The unchecked tables of a preset; ConfigError with the nearest name if there is none."""
    for data in _stems("data"):
        for method in _stems("methods"):
            if name == f"{method}-{data}":
                below = _load("data", data)
                adjusted = below.pop("adjust", {}).get(method, {})
                return _merged(_merged(below, _load("methods", method)), adjusted)
        for method, own in _own().items():
            if name == f"{method}-{data}":
                below = _load("data", data)
                below.pop("adjust", None)
                return _merged(below, own)
    nearest = difflib.get_close_matches(name, names(), n=1, cutoff=0)[0]
    raise ConfigError(
        f"{name}: neither a file nor a preset. `dpfed run --list` names the presets; the nearest is {nearest!r}."
    )


def _stems(folder: str) -> list[str]:
    found = (files(__name__) / folder).iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in found if entry.name.endswith(".toml"))


def _own() -> dict[str, dict[str, Any]]:
    """The tables of methods of one's own, and of schemes: not private, unless they say so."""
    found = {name: {"method": {"name": name}, "privacy": False} for name in registered.own("scheme")}
    for name, facts in registered.own("method").items():
        private = facts.privacy == "required" or "privacy" in facts.preset
        found[name] = _merged({"method": {"name": name}}, facts.preset) | ({} if private else {"privacy": False})
    return found


def _load(folder: str, stem: str) -> dict[str, Any]:
    return tomllib.loads((files(__name__) / folder / f"{stem}.toml").read_text(encoding="utf-8"))


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` wins key by key; `privacy = false` in a method's file takes the table away."""
    merged = override(below, [])
    for key, value in above.items():
        if value is False:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merged(merged.get(key, {}), value)
        else:
            merged[key] = value
    return merged
