"""All methods by name, their presets, and the presets' measured results.

A preset is METHOD-DATASET, for custom methods and schemes, too. The data set's tables are overridden by the method's,
then by the data set's [adjust.METHOD].
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from dpfed.config import own_code
from dpfed.errors import ConfigError, did_you_mean, require_name
from dpfed.methods import compressed, fed_avg, masks
from dpfed.methods.specification import MethodSpecification

FAMILIES = (fed_avg, masks, compressed)

METHODS: dict[str, MethodSpecification] = {one.name: one for family in FAMILIES for one in family.METHODS}
"""The built-in methods."""

_DIMENSION = 1 << 16


def all_methods() -> dict[str, MethodSpecification]:
    """Return the built-in methods, custom methods, and one method for each custom scheme.

    The method of a custom scheme has the scheme's name, and compresses the whole update by the scheme.
    """
    return {**METHODS, **_scheme_methods(), **own_code.objects_of_kind("method")}


def method_specification(name: str) -> MethodSpecification:
    """Return the method of this name; raises ConfigError, which suggests a similar name, if it is unknown."""
    known = METHODS if name in METHODS else all_methods()
    hint = " Load the file of a method of your own by --load FILE.py."
    require_name(f"method.name={name!r}: known are", name, known, hint)
    return known[name]


def _scheme_methods() -> dict[str, MethodSpecification]:
    schemes, methods = own_code.objects_of_kind("scheme"), own_code.objects_of_kind("method")
    taken = [name for name in schemes if name in METHODS]
    if taken:
        raise ConfigError(f"scheme {taken[0]!r}: is the name of an existing method. Choose another name.")
    return {name: _scheme_method(name, made) for name, made in schemes.items() if name not in methods}


def _scheme_method(name: str, made: Any) -> MethodSpecification:
    return MethodSpecification(
        name=name,
        scheme=name,
        paper="one's own",
        nominal_bits_per_parameter=most_bits(made),
        unbiased=getattr(made, "unbiased", False) is True,
        what=(made.__doc__ or "user-defined scheme").strip().splitlines()[0].rstrip("."),
    )


def most_bits(made: Callable[[], Any]) -> float:
    """Return the largest number of bits per parameter of the scheme that `made` returns, without headers.

    Returns 0 if the scheme has options without a default.
    """
    try:
        layout = made().layout(_DIMENSION)
    except (ConfigError, TypeError):
        return 0.0
    return float(8 * sum(part.most_bytes for part in layout.values()) / _DIMENSION)


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


def _merge_tables(below: Mapping[str, Any], above: Mapping[str, object]) -> dict[str, object]:
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


@dataclass(frozen=True, kw_only=True)
class ExpectedResults:
    """Measured results of one run of a preset.

    accuracy: test accuracy of the last round; epsilon: None if the preset is not private
    seconds: on two CPU cores; bits_per_parameter: bits of an upload, divided by the number of parameters
    """

    accuracy: float
    seconds: float
    bits_per_parameter: float
    epsilon: float | None = None


@cache
def expected_results() -> dict[str, ExpectedResults]:
    """Return the results of the measured presets by the preset's name, from the file that `benchmarks/presets.py`
    writes."""
    tables = tomllib.loads((files("dpfed.config") / "expected.toml").read_text(encoding="utf-8"))
    return {name: ExpectedResults(**table) for name, table in tables.items()}
