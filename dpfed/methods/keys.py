"""Keys of a configuration: those that only some methods or choices have, and the reference of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from dpfed.config.limits import Table
from dpfed.config.tables import CHOICES, Config, all_tables, kinds_of_table, names_of_keys, quoted_kind, value_text
from dpfed.errors import ConfigError, did_you_mean
from dpfed.methods.catalogue import METHODS, all_methods
from dpfed.methods.choices import is_linear, sends_bernoulli_samples, sums_integers, weights_by_samples
from dpfed.methods.specification import MethodSpecification


def methods_by_key(methods: Mapping[str, MethodSpecification]) -> dict[str, list[str]]:
    """Return the names of the methods that have a key, for every key that only some methods have."""
    keys = dict.fromkeys(key for specification in methods.values() for key in specification.takes)
    return {key: [name for name, specification in methods.items() if key in specification.takes] for key in keys}


def unsupported_key_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield a message for each key that is set although this method does not have it."""
    for key, names in methods_by_key(all_methods()).items():
        if key not in specification.takes and differs_from_default(config, key):
            given = f"{key}={value_text(value_of_setting(config, key))}" if "." in key else f"[{key}]"
            yield (
                f"{given} with method.name={specification.name!r}: {specification.name} does not take it, it is for "
                f"{', '.join(names)}. Remove {'the key' if '.' in key else 'the table'}, or use one of them."
            )


def differs_from_default(config: Config, key: str) -> bool:
    """Return True if the value of the key or table differs from its default."""
    *path, name = key.split(".")
    table = value_of_setting(config, ".".join(path)) if path else config
    if table is None or name not in type(table).model_fields:
        return False
    default = type(table).model_fields[name].get_default(call_default_factory=True)
    return bool(getattr(table, name) != default)


def value_of_setting(config: Config, key: str) -> Any:
    """Return the value of the dotted key; None if its table is absent."""
    value: BaseModel | None = config
    for name in key.split("."):
        value = None if value is None else getattr(value, name)
    return value


@dataclass(frozen=True)
class Requirement:
    """Keys that have an effect with one choice only: the choice as text, and a test that a configuration makes it."""

    keys: tuple[str, ...]
    choice: str
    is_met: Callable[[Config, MethodSpecification], bool]


def _sums_decodable_integers(config: Config, specification: MethodSpecification) -> bool:
    """Return True if updates are rounded to integers, and the sum of these integers is decoded."""
    linear = is_linear(config, specification)
    return linear and sums_integers(config) and not sends_bernoulli_samples(config, specification)


RULES = (
    Requirement(
        ("privacy.factorisation", "privacy.factorisation_power"),
        "privacy.bands",
        lambda config, _: (
            config.privacy is not None and (config.privacy.bands is not None or config.federation.lanes is not None)
        ),
    ),
    Requirement(
        ("aggregation.steps", "aggregation.rotation", "aggregation.wrap_probability"),
        "a sum of integers that is decoded as one (aggregation.kind or integer noise, dp-fedavg, ...)",
        _sums_decodable_integers,
    ),
    Requirement(
        ("aggregation.clip_norm",),
        "numbers summed as integers without [privacy] (aggregation.kind), or method.noiseless",
        lambda config, specification: (
            (_sums_decodable_integers(config, specification) or config.method.noiseless) and config.privacy is None
        ),
    ),
    Requirement(
        ("aggregation.weights",),
        "clients that count by their numbers of samples: updates without [privacy], method.noiseless or votes",
        weights_by_samples,
    ),
    Requirement(
        ("privacy.missing_shares",),
        "shares of noise on a sum (privacy.placement='clients')",
        lambda config, _: config.privacy is not None and config.privacy.release == "sum",
    ),
    Requirement(
        ("privacy.correction",),
        "privacy.noise_std > 0 (Bernoulli samples that are private without noise need no correction)",
        lambda config, _: config.privacy is not None and bool(config.privacy.noise_std),
    ),
    Requirement(
        ("aggregation.dropout_at",), "aggregation.dropout > 0", lambda config, _: config.aggregation.dropout > 0
    ),
    Requirement(("local.momentum",), "local.optimizer='sgd'", lambda config, _: config.local.optimizer == "sgd"),
    Requirement(
        ("data.classes", "data.ignored"),
        "a file or folder of your own (data.name); other data sets have their own number of classes",
        lambda config, _: config.data.name.endswith((".safetensors", ".npz", ".csv", "/")),
    ),
    Requirement(
        ("data.inputs", "data.label", "data.client", "data.vocabulary", "data.fill", "data.range"),
        "a folder of tables (data.name ends in '/') or a CSV file",
        lambda config, _: any(
            name and name.endswith(("/", ".csv")) for name in (config.data.name, config.data.public_from)
        ),
    ),
    Requirement(
        ("data.orientations",), "data.features='scattering'", lambda config, _: config.data.features == "scattering"
    ),
    Requirement(
        ("method.public_epochs",),
        "coordinates that public samples rank (data.public > 0 with method.keep or method.k)",
        lambda config, _: config.data.public > 0 and not (config.method.keep is None and config.method.k is None),
    ),
    Requirement(("server.start_epochs",), "server.start='public'", lambda config, _: config.server.start == "public"),
    Requirement(("data.public_from",), "data.public > 0", lambda config, _: config.data.public > 0),
)


def idle_key_messages(config: Config, specification: MethodSpecification) -> Iterator[str]:
    """Yield a message for each key that differs from its default and has no effect with the other settings."""
    for rule in RULES:
        for name in rule.keys:
            if differs_from_default(config, name) and not rule.is_met(config, specification):
                given = f"{name}={value_of_setting(config, name)!r}"
                yield f"{given} has no effect here: it is for {rule.choice}. Set that, or remove the key."


def required_choice(name: str) -> str | None:
    """Return the choice with which the key has an effect, as text; None if it has an effect with every choice."""
    return next((rule.choice for rule in RULES if name in rule.keys), None)


EXCLUDES: dict[str, tuple[str, ...]] = {
    "local.epochs": ("local.steps",),
    "local.record": ("privacy",),
    "method.keep": ("method.k",),
    "aggregation.lost": ("aggregation.dropout",),
}
"""Keys and tables that cannot be set together; the reference of each key lists the keys that it excludes."""

_BOUNDS = (
    ("minimum", "from"),
    ("exclusiveMinimum", "above"),
    ("maximum", "to"),
    ("exclusiveMaximum", "below"),
)


STATED_DEFAULT = "see meaning"
"""Default of a key that may be absent and whose meaning states what then holds."""


@dataclass(frozen=True, kw_only=True)
class KeyRecord:
    """Reference of one key; `type` and `default` are text.

    methods:  names of the methods with this key; None if all methods have it
    needs:    the choice with which the key has an effect, as text; None if it always has one
    excludes: keys that cannot be set together with this key
    """

    name: str
    type: str
    default: str
    meaning: str
    methods: tuple[str, ...] | None
    needs: str | None
    excludes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `dpfed config --json`."""
        lists = {"methods": None if self.methods is None else list(self.methods), "excludes": list(self.excludes)}
        return {**vars(self), **lists}


def table_descriptions() -> dict[str, str]:
    """Return the description of every table by the table's dotted name."""
    return {name: _one_line(_common_base(tables[0]).__doc__) for name, tables in all_tables() if name}


def keys_of_table(table: str) -> list[KeyRecord]:
    """Return the keys of one table, those of all its kinds, in their order."""
    return _key_records(table, dict(all_tables())[table])


@dataclass(frozen=True, kw_only=True)
class KindOfTable:
    """Keys of one kind of a table; `choice` is the setting that selects the kind, empty for keys of all kinds."""

    choice: str
    meaning: str
    keys: list[KeyRecord]


def keys_by_kind(table: str) -> list[KindOfTable]:
    """Return the keys of a table: first those of all its kinds, then those of each kind."""
    tables = dict(all_tables())[table]
    always = [one for one in keys_of_table(table) if _required_choice(table, one.name.rpartition(".")[2]) is None]
    common = [one.name for one in always]
    found = [KindOfTable(choice="", meaning="", keys=always)]
    for one in tables if table in CHOICES else ():
        own = [
            replace(key, needs=required_choice(key.name))
            for key in _key_records(table, (one,))
            if key.name not in common
        ]
        kinds = [quoted_kind(kind) for kind, other in kinds_of_table(table).items() if other is one]
        choice = f"{table}.{CHOICES[table]} = {' or '.join(kinds)}"
        found.append(KindOfTable(choice=choice, meaning=_one_line(one.__doc__), keys=own))
    return found


def _key_records(table: str, tables: Sequence[type[BaseModel]]) -> list[KeyRecord]:
    names = [key for key in names_of_keys(tables) if f"{table}.{key}" not in table_descriptions()]
    return [_key_record(table, key, [one for one in tables if key in one.model_fields]) for key in names]


def _common_base(table: type[BaseModel]) -> type[BaseModel]:
    """Return the base class with the keys that all kinds of a table have."""
    return next(one for one in reversed(table.__mro__) if issubclass(one, Table) and one is not Table)


def key_named(name: str) -> KeyRecord:
    """Return the key of this dotted name; raises ConfigError, which suggests a similar key, if it is unknown."""
    table = name.rpartition(".")[0]
    known = {one.name: one for table in table_descriptions() for one in keys_of_table(table)}
    if name not in known:
        likely = [one for one in known if one.rpartition(".")[0] == table] or list(known)
        hint = did_you_mean(name, likely) or did_you_mean(name.rpartition(".")[2], likely)
        raise ConfigError(f"{name}: is no key of a configuration.{hint} `dpfed config` lists all keys.")
    return known[name]


@cache
def schema_of(model: type[BaseModel] = Config) -> dict[str, Any]:
    """Return the JSON schema of a table, with every reference replaced by the definition it refers to; one object for
    all callers, which leave it as it is."""
    schema = model.model_json_schema()
    resolved: dict[str, object] = _resolve_references(schema, schema.get("$defs", {}))
    return resolved


def _key_record(table: str, key: str, tables: Sequence[type[BaseModel]]) -> KeyRecord:
    """Return the reference of one key; `tables` are the kinds of the table that have the key."""
    name, taken_by = f"{table}.{key}", methods_by_key(METHODS)
    methods = taken_by.get(name, taken_by.get(table))
    pairs = [(one, other) for one, others in EXCLUDES.items() for other in others]
    excluded = [other for one, other in pairs if one == name] + [one for one, other in pairs if other == name]
    types = {"anyOf": [schema_of(one)["properties"][key] for one in tables]}
    texts = [_one_line(one.model_fields[key].description) for one in tables]
    meaning, default = " ".join(dict.fromkeys(text for text in texts if text)), _default_text(tables[0], key)
    return KeyRecord(
        name=name,
        type=schema_text(types),
        default=STATED_DEFAULT if default == "none" and "default: " in meaning.lower() else default,
        meaning=meaning,
        methods=None if methods is None else tuple(methods),
        needs=_required_choice(table, key) or required_choice(name),
        excludes=tuple(excluded),
    )


def _required_choice(table: str, key: str) -> str | None:
    """Return the choices with which the table has the key, as text; None if the table has it with every choice."""
    kinds = kinds_of_table(table) if table in CHOICES else {}
    able = [kind for kind, one in kinds.items() if key in one.model_fields]
    return None if len(able) == len(kinds) else f"{table}.{CHOICES[table]}={' or '.join(map(quoted_kind, able))}"


def schema_text(schema: dict[str, Any]) -> str:
    """Return the values that a JSON schema allows, as text."""
    parts = list(_schema_branches(schema))
    # Sorted, because the order of the values in a schema depends on the order of imports.
    choices = [part.get("enum", [part["const"]] if "const" in part else []) for part in parts]
    named = sorted({f'"{one}"' for choice in choices for one in choice})
    others = [_type_text(part) for part, choice in zip(parts, choices, strict=True) if not choice]
    return " or ".join(dict.fromkeys([", ".join(named), *others] if named else others))


def _schema_branches(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for one in schema.get("anyOf", ()):
        yield from _schema_branches(one)
    if "anyOf" not in schema and schema.get("type") != "null":
        yield schema


def _type_text(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    if kind == "array":
        return f"list of {schema_text(schema.get('items', {}))}"
    if kind == "object":
        return "table"
    if kind == "boolean":
        return "true or false"
    name = {"integer": "whole number", "number": "number", "string": "text"}.get(str(kind), "value")
    return " ".join([name, *(f"{word} {_short_number(schema[bound])}" for bound, word in _BOUNDS if bound in schema)])


def _short_number(number: float) -> str:
    return str(number) if isinstance(number, int) and abs(number) < 10**6 else f"{number:g}"


def _default_text(model: type[BaseModel], key: str) -> str:
    value = model.model_fields[key].get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None or value == {}:
        return "none"
    return str(value).lower() if isinstance(value, bool) else value_text(value).replace("'", '"')


def _one_line(words: str | None) -> str:
    return " ".join((words or "").split())


def _resolve_references(schema: object, definitions: dict[str, object]) -> Any:
    if isinstance(schema, list):
        return [_resolve_references(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _resolve_references(definitions[schema["$ref"].rpartition("/")[2]], definitions) | beside
    names = {"oneOf": "anyOf"}  # a table without its choice may match several kinds, which oneOf forbids
    left = {key: value for key, value in schema.items() if key not in ("$defs", "discriminator")}
    return {names.get(key, key): _resolve_references(value, definitions) for key, value in left.items()}
