"""Presets METHOD-DATASET. The data set's tables are overridden by the method's, then by the data set's [adjust.METHOD].

Custom methods and schemes have presets, too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from importlib.resources import files
from typing import Any

from dpfed.config.did_you_mean import did_you_mean
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import all_methods

_DATA = files("dpfed.config") / "data_presets"


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return [f"{method}-{data}" for data in data_sets() for method in sorted(tables_of_methods())]


def preset_tables(name: str) -> dict[str, Any]:
    """Return the tables of a preset, not validated; raises ConfigError, which suggests a similar name, if it is
    unknown."""
    for data in data_sets():
        method = name.removesuffix(f"-{data}")
        if method != name and method in tables_of_methods():
            below = tomllib.loads((_DATA / f"{data}.toml").read_text(encoding="utf-8"))
            adjusted = below.pop("adjust", {}).get(method, {})
            return _merge_tables(_merge_tables(below, tables_of_methods()[method]), adjusted)
    named = any(word in name for data in data_sets() for word in data.split("-") if not word.isdigit())
    hint = did_you_mean(name, [one for one in preset_names() if named or one.endswith("-digits")])
    raise ConfigError(f"{name}: neither a file nor a preset. `dpfed run --list` names the presets.{hint}")


def tables_of_methods() -> dict[str, dict[str, Any]]:
    """Return the tables that methods set, by the preset's method part; `privacy = False` removes the data set's
    [privacy]."""
    found = {}
    for method in all_methods().values():
        for name, given in (method.presets or {method.name: {}}).items():
            public = {} if method.privacy == "required" else {"privacy": False}
            found[name] = {**public, **given, "method": {"name": method.name, **given.get("method", {})}}
    return found


def data_sets() -> list[str]:
    """Return the names of the data sets that have presets."""
    return sorted(entry.name.removesuffix(".toml") for entry in _DATA.iterdir() if entry.name.endswith(".toml"))


def _merge_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` overridden by `above`, key by key; the value False in `above` removes the entry of `below`."""
    merged = deepcopy(dict(below))
    for key, value in above.items():
        if value is False:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = _merge_tables(merged.get(key, {}), value)
        else:
            merged[key] = value
    return merged
