"""The configuration of a run: typed tables, an unknown key is an error."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError, model_validator

from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_text
from dpfed.config.did_you_mean import did_you_mean
from dpfed.config.kinds import noise_of_method
from dpfed.config.privacy_tables import Audit, Privacy
from dpfed.config.samples_tables import Data, Federation, Model
from dpfed.config.server_tables import Aggregation, RunTable, ServerTable
from dpfed.config.table import Table
from dpfed.config.training_tables import Local, Mask, MethodTable
from dpfed.errors import ConfigError

_MOST_SHOWN = 200


class Config(Table):
    """A whole run."""

    data: Data
    model: Model
    federation: Federation
    local: Local
    method: MethodTable
    mask: Mask | None = None
    privacy: Privacy | None = None
    aggregation: Aggregation = Aggregation()
    audit: Audit = Audit()
    server: ServerTable = ServerTable()
    run: RunTable = RunTable()

    @model_validator(mode="before")
    @classmethod
    def _with_kind_of_noise(cls, tables: Any) -> Any:
        """privacy.noise where it is not given: what the method's uploads, and the sum, can have."""
        privacy = tables.get("privacy") if isinstance(tables, Mapping) else None
        if not isinstance(privacy, Mapping):
            return tables
        name, kind = (_said(tables, "method", "name"), _said(tables, "aggregation", "kind"))
        fixed = noise_of_method(str(name))
        exact = kind not in (None, "plain") or _said(tables, "run", "release") is True
        default = "discrete-gaussian" if exact else "gaussian"
        given = privacy.get("noise")
        noise = fixed if fixed is not None and given in (None, "gaussian") and fixed != "coins" else given
        noise = noise or fixed or default
        return {**tables, "privacy": {**_without_defaults_of_others(privacy, noise), "noise": noise}}

    def with_delta(self, delta: float) -> Config:
        """Return the configuration with this delta for its unit of privacy, [privacy] or [local.record]."""
        if self.privacy is not None:
            return self.model_copy(update={"privacy": self.privacy.model_copy(update={"delta": delta})})
        if self.local.record is None:
            return self
        record = self.local.record.model_copy(update={"delta": delta})
        return self.model_copy(update={"local": self.local.model_copy(update={"record": record})})

    def to_dict(self) -> dict[str, Any]:
        """Plain tables without the keys that are not set, as TOML wants them."""
        return _without_none(self.model_dump(mode="json"))


def _without_defaults_of_others(privacy: Mapping[str, Any], noise: Any) -> dict[str, Any]:
    """Return [privacy] without keys of other kinds of noise that hold their default: it has no effect, and up to 0.2
    every run's config.toml had them all."""
    kinds = _privacy_tables()
    own = kinds[noise].model_fields if isinstance(noise, str) and noise in kinds else {}
    defaults = {
        key: field.get_default()
        for table in kinds.values()
        for key, field in table.model_fields.items()
        if key not in own
    }
    return {key: value for key, value in privacy.items() if key not in defaults or value != defaults[key]}


def _said(tables: Mapping[str, Any], table: str, key: str) -> Any:
    found = tables.get(table)
    return found.get(key) if isinstance(found, Mapping) else None


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked; ConfigError if it cannot be read."""
    try:
        return tomllib.loads(read_text(path, at_most=LARGEST_CONFIGURATION))
    except OSError as error:
        raise ConfigError(f"{path}: the configuration cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: also numbers of 5000 digits
        raise ConfigError(f"{path}: not TOML ({error}).") from None


def parse(tables: Mapping[str, Any], *, source: str) -> Config:
    """The checked configuration; every wrong or unknown key in one ConfigError that names `source` and the key."""
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        problems = "\n  ".join(_problem(item) for item in error.errors(include_url=False))
        raise ConfigError(f"{source}:\n  {problems}") from None


def parse_written(tables: Mapping[str, Any], *, source: str) -> Config:
    """Return the configuration that a run wrote into its folder.

    A setting that the run's version did not write has today's default, with two exceptions. Without
    data.partition_seed, run.seed divided the data; without privacy.delta, as up to 0.2, delta was clients^-1.1.
    """
    data, run = tables.get("data"), tables.get("run")
    if isinstance(data, Mapping) and isinstance(run, Mapping) and "seed" in run and "partition_seed" not in data:
        tables = {**tables, "data": {**data, "partition_seed": run["seed"]}}
    config = parse(tables, source=source)
    if config.privacy is None or config.privacy.delta is not None or config.federation.clients == 1:
        return config
    return config.with_delta(float(config.federation.clients) ** -1.1)


def override(tables: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`tables` with `table.key=value` settings put in; values are TOML, a bare word is a string, `key=` removes the
    key."""
    result = _copied(tables)
    for setting in settings:
        key, equals, text = setting.partition("=")
        value = _toml_value(text.strip()) if text.strip() else None
        form = "table.key=value, as in --set federation.rounds=10"
        put(result, key.strip() if equals else "", value, given=f"--set {setting}", form=form)
    return result


def put(tables: dict[str, Any], key: str, value: Any, *, given: str, form: str) -> None:
    """tables[a][b] = value for the key "a.b"; None takes the key away. ConfigError, which says what was `given` and the
    `form` that it must have."""
    *path, last = key.split(".")
    if not path or not all((*path, last)):
        raise ConfigError(f"{given}: must be {form}.")
    place = tables
    for name in path:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise ConfigError(f"{given}: {name} is a value, not a table.")
    if value is None:
        place.pop(last, None)
    else:
        place[last] = value


def flat(tables: Any, path: str = "") -> Any:
    """Nested tables as dotted keys: {"a": {"b": 1}} and {"a.b": 1} mean the same."""
    if not isinstance(tables, Mapping):
        return tables
    found: dict[str, Any] = {}
    for key, value in tables.items():
        name = f"{path}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return found


def _copied(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in tables.items()}


def _toml_value(text: str) -> Any:
    for written in (text, text.replace(".", "0.", 1)):  # .2 is not TOML, but people write it
        try:
            return tomllib.loads(f"value = {written}")["value"]
        except (ValueError, RecursionError):
            if not text.lstrip("+-").startswith("."):
                break
    return text


_KINDS = ("gaussian", "discrete-gaussian", "skellam", "coins", "dithered")


def _problem(item: Any) -> str:
    location = item["loc"]
    kind = location[1] if len(location) > 1 and location[0] == "privacy" and location[1] in _KINDS else None
    if kind is not None:
        location = (location[0], *location[2:])
    where = ".".join(str(part) for part in location)
    if item["type"] == "union_tag_invalid":
        return f"privacy.noise={shown(item['ctx']['tag'])}: must be one of {', '.join(_KINDS)}."
    if item["type"] == "value_error" and kind is not None and where == "privacy":
        return f"{item['ctx']['error']}."
    if item["type"] == "extra_forbidden" and kind is not None:
        takers = [one for one, table in _privacy_tables().items() if location[-1] in table.model_fields]
        if takers:
            return f"{where} with privacy.noise={kind!r}: is for {', '.join(takers)}. Remove it, or use one of them."
    if item["type"] == "extra_forbidden":
        table = None if kind is None or len(location) > 2 else _privacy_tables()[kind]
        known = _known_keys(location[:-1]) if table is None else sorted(table.model_fields)
        hint = did_you_mean(str(location[-1]), known)
        return f"{where}: unknown key; known here: {', '.join(known)}.{hint} `dpfed config` explains every key."
    if item["type"] == "missing":
        return f"{where}: is missing and has no default."
    words = item["msg"].replace("valid tuple", "valid list").replace("Tuple", "List")  # as TOML calls it
    return f"{where}={shown(item['input'])}: {words}. `dpfed config {_key(location)}` says what is allowed."


def _key(location: Sequence[Any]) -> str:
    """The dotted key of a place, which may be deeper than that: an item of a list, a branch of a type."""
    names = [str(part) for part in location]
    depth = max(n for n in range(len(names) + 1) if ".".join(names[:n]) in _every_key())
    return ".".join(names[:depth])


def _every_key() -> set[str]:
    return {"", *(f"{name}.{key}".removeprefix(".") for name, table in sections() for key in table.model_fields)}


def shown(value: Any) -> str:
    """The value as messages show it: its beginning, where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:  # an integer of 5000 digits, a table in a table in a table ...
        return f"a value that cannot be shown ({type(error).__name__})"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _known_keys(location: Sequence[Any]) -> list[str]:
    table = dict(sections()).get(".".join(str(part) for part in location))
    return sorted(table.model_fields) if table else []


def _privacy_tables() -> dict[str, type[BaseModel]]:
    """What [privacy] takes, by privacy.noise."""
    tables = get_args(get_args(Privacy)[0])
    return {str(kind): table for table in tables for kind in get_args(table.model_fields["noise"].annotation)}


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Every table by its dotted name: "" is the whole configuration."""
    return _within("", Config)


def _within(name: str, table: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    yield name, table
    for key, field in table.model_fields.items():
        for part in _parts(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _within(f"{name}.{key}".removeprefix("."), part)


def _parts(annotation: Any) -> Iterator[Any]:
    """The types that a union, within annotations and other unions, is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)
