"""Settings of other libraries, from a TOML or JSON file or an object, and the library whose names they have."""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_input
from dpfed.errors import ConfigError
from dpfed.explain.account import Explanation
from dpfed.explain.libraries import READERS


def explain(given: str) -> Explanation:
    """Return the explanation of a TOML or JSON file of settings, or of an object (module:object).

    Errors: ConfigError if the file or object cannot be read, or no reader knows its names.
    """
    try:
        settings = _flat(_object_settings(given) if _names_object(given) else _file_settings(Path(given)))
    except RecursionError:
        raise ConfigError(f"{given}: its tables are nested too deeply. Explain one table at a time.") from None
    for knows, read in READERS:
        if knows(settings):
            return read(settings)
    raise ConfigError(
        f"{given}: its names ({', '.join(sorted(settings)) or 'none'}) are not those of a library that is known. Use "
        "those of Flower (clipping_norm, num_sampled_clients), of filters of FLIP or NVFlare (sensitivity, epsilon; "
        "percentile), of Opacus (max_grad_norm), or noise_multiplier with clients_per_round or cohort_size."
    )


def _names_object(given: str) -> bool:
    module, colon, name = given.partition(":")
    return bool(colon) and not Path(given).exists() and all(part.isidentifier() for part in (*module.split("."), name))


def _file_settings(path: Path) -> Mapping[str, object]:
    try:
        text = read_input(path, at_most=LARGEST_DOCUMENT).decode("utf-8-sig")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML or JSON settings ({error}).") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: must be a table of settings, not {type(found).__name__}.")
    return found


def _object_settings(given: str) -> Mapping[str, object]:
    module, _, name = given.partition(":")
    try:
        one = getattr(importlib.import_module(module), name)
        one = one() if isinstance(one, type) else one
    except Exception as error:  # importing and making a user's object may raise anything
        raise ConfigError(f"{given}: cannot be loaded ({type(error).__name__}: {error}).") from error
    inner = getattr(one, "strategy", None)
    found = {
        key: value
        for source in (inner, one)
        for key, value in getattr(source, "__dict__", {}).items()
        if isinstance(value, int | float | str)
    }
    if (count := found.get("clipped_count_stddev")) and (noise := found.get("noise_multiplier")):
        # Flower's adaptive strategies hold the multiplier of the sum alone, not the one they were made with
        found["noise_multiplier"] = (float(noise) ** -2 + (2 * float(count)) ** -2) ** -0.5
    if getattr(one, "accountant", None) is not None:  # Flower's, which refuses unequal weights
        found["accountant"] = True
    return {**found, "class": type(one).__name__, "strategy_class": type(inner or one).__name__}


def _flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of all tables in one dictionary; names in lower case with underscores."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        name = key.lower().replace("-", "_").replace(" ", "_")
        for inner, one in (_flat(value) if isinstance(value, Mapping) else {name: value}).items():
            if inner in found and found[inner] != one:
                raise ConfigError(
                    f"{inner}: has two values, {found[inner]!r} and {one!r}, in different tables. Explain one table at "
                    "a time."
                )
            found[inner] = {"true": True, "false": False}.get(one.lower(), one) if isinstance(one, str) else one
    return found
