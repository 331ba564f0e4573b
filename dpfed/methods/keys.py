"""Keys of the configuration that only some methods have: each method's facts say which it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from dpfed.config.tables import Config, shown
from dpfed.methods.facts import MethodFacts


def takers(methods: Mapping[str, MethodFacts]) -> dict[str, list[str]]:
    """Which methods take a key, for every key that not all of them take."""
    keys = dict.fromkeys(key for facts in methods.values() for key in facts.takes)
    return {key: [name for name, facts in methods.items() if key in facts.takes] for key in keys}


def not_taken(config: Config, facts: MethodFacts, methods: Mapping[str, MethodFacts]) -> Iterator[str]:
    """What is wrong with keys that are set and that this method does not take."""
    for key, names in takers(methods).items():
        if key not in facts.takes and is_set(config, key):
            given = f"{key}={shown(value_of(config, key))}" if "." in key else f"[{key}]"
            yield (
                f"{given} with method.name={facts.name!r}: {facts.name} does not take it, it is for "
                f"{', '.join(names)}. Remove {'the key' if '.' in key else 'the table'}, or use one of them."
            )


def is_set(config: Config, key: str) -> bool:
    """Whether the key, or the table, is away from its default."""
    *path, name = key.split(".")
    table = value_of(config, ".".join(path)) if path else config
    if table is None or name not in type(table).model_fields:
        return False
    default = type(table).model_fields[name].get_default(call_default_factory=True)
    return bool(getattr(table, name) != default)


def value_of(config: Config, key: str) -> Any:
    """What the dotted key says; None where its table is absent."""
    value: BaseModel | None = config
    for name in key.split("."):
        value = None if value is None else getattr(value, name)
    return value
