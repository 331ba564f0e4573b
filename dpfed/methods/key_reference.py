"""What can be said of every key of a configuration: from the tables, from methods, and from what a run would ignore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from dpfed.config.did_you_mean import did_you_mean
from dpfed.config.tables import Config, sections, shown
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import METHODS
from dpfed.methods.idle_keys import needs
from dpfed.methods.keys import takers

EXCLUDES: dict[str, tuple[str, ...]] = {
    "local.epochs": ("local.steps",),
    "local.record": ("privacy",),
    "method.keep": ("method.k",),
    "aggregation.lost": ("aggregation.dropout",),
    "method.error_feedback": ("privacy",),
}
"""Keys and tables that cannot be set together; the reference says so at both."""

_BOUNDS = (
    ("minimum", "from"),
    ("exclusiveMinimum", "above"),
    ("maximum", "to"),
    ("exclusiveMaximum", "below"),
)


@dataclass(frozen=True, kw_only=True)
class KeyFacts:
    """One key: `type` and `default` in words, `methods` that take it (None: all), the choice that it `needs` to have an
    effect (None: it always has), and the keys that it `excludes`."""

    name: str
    type: str
    default: str
    meaning: str
    methods: tuple[str, ...] | None
    needs: str | None
    excludes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `dpfed config --json`."""
        lists = {"methods": None if self.methods is None else list(self.methods), "excludes": list(self.excludes)}
        return {**vars(self), **lists}


def every_table() -> dict[str, str]:
    """Every table by its dotted name, and what it is about."""
    return {name: _text(table.__doc__) for name, table in sections() if name}


def keys_of(table: str) -> list[KeyFacts]:
    """The keys of one table, in their order."""
    model = dict(sections())[table]
    schema = schema_of(model)
    return [
        _facts(f"{table}.{key}", field.description or "", schema["properties"][key], _default(model, key))
        for key, field in model.model_fields.items()
        if f"{table}.{key}" not in every_table()
    ]


def key(name: str) -> KeyFacts:
    """The key of this dotted name; ConfigError with the one that may be meant otherwise."""
    table = name.rpartition(".")[0]
    known = {one.name: one for table in every_table() for one in keys_of(table)}
    if name not in known:
        likely = [one for one in known if one.rpartition(".")[0] == table] or list(known)
        hint = did_you_mean(name, likely) or did_you_mean(name.rpartition(".")[2], likely)
        raise ConfigError(f"{name}: is no key of a configuration.{hint} `dpfed config` lists them all.")
    return known[name]


def schema_of(model: type[BaseModel] = Config) -> dict[str, Any]:
    """The JSON schema of a table, every reference in it replaced by what it refers to."""
    schema = model.model_json_schema()
    resolved: dict[str, Any] = _resolved(schema, schema.get("$defs", {}))
    return resolved


def _facts(name: str, meaning: str, schema: dict[str, Any], default: str) -> KeyFacts:
    taken_by = takers(METHODS)
    methods = taken_by.get(name, taken_by.get(name.partition(".")[0]))
    pairs = [(one, other) for one, others in EXCLUDES.items() for other in others]
    excluded = [other for one, other in pairs if one == name] + [one for one, other in pairs if other == name]
    return KeyFacts(
        name=name,
        type=in_words(schema),
        default=default,
        meaning=_text(meaning),
        methods=None if methods is None else tuple(methods),
        needs=needs(name),
        excludes=tuple(excluded),
    )


def in_words(schema: dict[str, Any]) -> str:
    """What a JSON schema allows."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(in_words(one) for one in schema["anyOf"] if one.get("type") != "null"))
    if "enum" in schema or "const" in schema:
        allowed = sorted(schema.get("enum", [schema.get("const")]))  # their own order is that of the first import
        return ", ".join(f'"{one}"' for one in allowed)
    kind = schema.get("type")
    if kind == "array":
        return f"list of {in_words(schema.get('items', {}))}"
    if kind == "object":
        return "table"
    if kind == "boolean":
        return "true or false"
    name = {"integer": "whole number", "number": "number", "string": "text"}.get(str(kind), "value")
    return " ".join([name, *_bounds(schema)])


def _bounds(schema: dict[str, Any]) -> list[str]:
    return [f"{word} {_short(schema[name])}" for name, word in _BOUNDS if name in schema]


def _short(number: float) -> str:
    return str(number) if isinstance(number, int) and abs(number) < 10**6 else f"{number:g}"


def _default(model: type[BaseModel], key: str) -> str:
    value = model.model_fields[key].get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None or value == {}:
        return "none"
    return str(value).lower() if isinstance(value, bool) else shown(value).replace("'", '"')


def _text(words: str | None) -> str:
    return " ".join((words or "").split())


def _resolved(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_resolved(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _resolved(definitions[schema["$ref"].rpartition("/")[2]], definitions) | beside
    return {key: _resolved(value, definitions) for key, value in schema.items() if key != "$defs"}
