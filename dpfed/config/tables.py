"""The configuration of a run: typed tables, an unknown key is an error."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError, model_validator
from pydantic.fields import FieldInfo

from accounting.caveats import default_delta
from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_text
from accounting.mechanisms.cohort_caps import default_cap, rarely_exceeded
from dpfed.config.did_you_mean import did_you_mean
from dpfed.config.kinds import noise_of_method
from dpfed.config.privacy_tables import Audit, CoinPrivacy, DitheredPrivacy, IntegerPrivacy, Privacy
from dpfed.config.samples_tables import Data, Federation, Model
from dpfed.config.server_tables import Aggregation, PlainAggregation, RunTable, Server, StepServer
from dpfed.config.table import Table
from dpfed.config.training_tables import LIST, Local, Mask, MethodTable
from dpfed.errors import ConfigError

CHOICES = {
    "data": "partition",
    "federation": "sampling",
    "local": "schedule",
    "privacy": "noise",
    "aggregation": "kind",
    "server": "rule",
}
"""Tables whose keys follow from one choice, and the key that makes it."""

_PUBLIC_RANKING = ("fed-smp-topk", "fedpm")
"""Methods whose coordinates public samples could rank in version 0.2."""

_MOST_SHOWN = 200


class Config(Table):
    """Configuration of a whole run."""

    data: Data
    model: Model
    federation: Federation
    local: Local
    method: MethodTable
    mask: Mask | None = None
    privacy: Privacy | None = None
    aggregation: Aggregation = PlainAggregation()
    audit: Audit = Audit()
    server: Server = StepServer()
    run: RunTable = RunTable()

    @model_validator(mode="before")
    @classmethod
    def _by_choice(cls, tables: Any) -> Any:
        """Set the key that each table of `CHOICES` is chosen by.

        Keys of other choices are dropped if they have their default, because configurations of 0.2 contain them.
        """
        if not isinstance(tables, Mapping):
            return tables
        tables = _with_exact_records(with_cohort_cap(tables))
        given = {name: tables[name] for name in CHOICES if isinstance(tables.get(name), Mapping)}
        return {
            **tables,
            **{name: _table_of_kind(name, table, tables) for name, table in given.items()},
        }

    def with_delta(self, delta: float) -> Config:
        """Return the configuration with this delta for its unit of privacy, [privacy] or [local.record]."""
        if self.privacy is not None:
            return self.model_copy(update={"privacy": self.privacy.model_copy(update={"delta": delta})})
        if self.local.record is None:
            return self
        record = self.local.record.model_copy(update={"delta": delta})
        return self.model_copy(update={"local": self.local.model_copy(update={"record": record})})

    @property
    def cohort_cap(self) -> int | None:
        """Most clients of a round: federation.cohort_cap, or its default if sums hold a fixed number."""
        given, privacy = self.federation.cohort_cap, self.privacy
        if given is not None or privacy is None or not self.sums_have_fixed_size:
            return given
        delta = privacy.delta or default_delta(self.federation.clients)
        chosen = (
            rarely_exceeded if isinstance(privacy, CoinPrivacy) else default_cap
        )  # like `accounting.Plan.cohort_cap`
        return chosen(self.federation.cohort, self.federation.clients, delta=delta)

    @property
    def sums_have_fixed_size(self) -> bool:
        """True if every sum of a private run with Poisson sampling holds the same number of uploads."""
        table = self.privacy
        if self.federation.sampling != "poisson":
            return False
        if isinstance(table, IntegerPrivacy):
            return table.placement == "clients" or self.aggregation.kind != "plain"
        return isinstance(table, CoinPrivacy | DitheredPrivacy) and table.release == "sum"

    def with_cap(self, cap: int | None) -> Config:
        """Return the configuration with this federation.cohort_cap."""
        if self.federation.cohort_cap == cap:
            return self
        federation = self.federation.model_copy(update={"cohort_cap": cap})
        return self.model_copy(update={"federation": federation})

    def to_dict(self) -> dict[str, Any]:
        """Return plain tables without the keys that are not set, because TOML has no null."""
        return _without_none(self.model_dump(mode="json"))


def with_cohort_cap(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tables with privacy.slots under its new name, federation.cohort_cap; ConfigError for two values."""
    privacy, federation = tables.get("privacy"), tables.get("federation")
    if not isinstance(privacy, Mapping) or not isinstance(federation, Mapping) or "slots" not in privacy:
        return tables
    slots, cap = privacy["slots"], federation.get("cohort_cap")
    if None not in (slots, cap) and slots != cap:
        raise ConfigError(
            f"privacy.slots={shown(slots)} with federation.cohort_cap={shown(cap)}: privacy.slots is the old name of "
            "the cap. Remove it."
        )
    rest = {key: value for key, value in privacy.items() if key != "slots"}
    return {**tables, "privacy": rest, "federation": {**federation, "cohort_cap": cap if slots is None else slots}}


def _table_of_kind(name: str, table: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    kinds, key = kinds_of(name), CHOICES[name]
    first = next(iter(kinds.values()))
    chosen = _noise(table, tables) if name == "privacy" else table.get(key, first.model_fields[key].default)
    kept = kinds.get(chosen if isinstance(chosen, str) else LIST, first).model_fields
    idle = {
        other: field.get_default(call_default_factory=True)
        for one in kinds.values()
        for other, field in one.model_fields.items()
        if other not in kept
    }
    return {k: v for k, v in table.items() if k not in idle or idle[k] != v} | {key: chosen}


def _noise(table: Mapping[str, Any], tables: Mapping[str, Any]) -> Any:
    """Return privacy.noise, by default the noise of the method's uploads and of the sum."""
    name, kind = (_given_value(tables, "method", "name"), _given_value(tables, "aggregation", "kind"))
    fixed, given = noise_of_method(str(name)), table.get("noise")
    exact = kind not in (None, "plain") or _given_value(tables, "run", "release") is True
    if fixed == "dithered" and given == "gaussian":
        return fixed
    return given or fixed or ("discrete-gaussian" if exact else "gaussian")


def _with_exact_records(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tables with the noise that [local.record] needs in a run for release, if none is given."""
    local, record = tables.get("local"), _given_value(tables, "local", "record")
    if (
        _given_value(tables, "run", "release") is not True
        or not isinstance(local, Mapping)
        or not isinstance(record, Mapping)
    ):
        return tables
    return {**tables, "local": {**local, "record": {"noise": "discrete-gaussian", **record}}}


def _given_value(tables: Mapping[str, Any], table: str, key: str) -> Any:
    found = tables.get(table)
    return found.get(key) if isinstance(found, Mapping) else None


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file, unchecked; ConfigError if it cannot be read."""
    try:
        return tomllib.loads(read_text(path, at_most=LARGEST_CONFIGURATION))
    except OSError as error:
        raise ConfigError(f"{path}: the configuration cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: also numbers of 5000 digits
        raise ConfigError(f"{path}: not TOML ({error}).") from None


def parse(tables: Mapping[str, Any], *, source: str) -> Config:
    """Return the checked configuration; ConfigError that names `source` and every wrong or unknown key."""
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        problems = "\n  ".join(_problem(item) for item in error.errors(include_url=False))
        raise ConfigError(f"{source}:\n  {problems}") from None


def parse_written(tables: Mapping[str, Any], *, source: str) -> Config:
    """Return the configuration that a run wrote into its folder.

    A setting that the run's version did not write has the default of the current version, with four exceptions. Without
    data.partition_seed, run.seed divided the data; without privacy.delta, as up to 0.2, delta was clients^-1.1;
    without method.public_epochs, a server with public samples took as many steps as one client; without
    federation.cohort_cap, sums of a fixed number of uploads had enough that larger cohorts took 1e-5 delta.
    """
    data, run, method = tables.get("data"), tables.get("run"), tables.get("method")
    if isinstance(data, Mapping) and isinstance(run, Mapping) and "seed" in run and "partition_seed" not in data:
        tables = {**tables, "data": {**data, "partition_seed": run["seed"]}}
    if isinstance(method, Mapping) and "public_epochs" not in method and _ranked_by_public_samples(tables):
        tables = {**tables, "method": {**method, "public_epochs": "client-steps"}}
    config = parse(tables, source=source)
    if config.privacy is None:
        return config
    federation = config.federation
    if config.privacy.delta is None and federation.clients > 1:
        config = config.with_delta(float(federation.clients) ** -1.1)
    if federation.sampling != "poisson":
        return config.with_cap(None)  # such runs ignored privacy.slots
    if config.sums_have_fixed_size and federation.cohort_cap is None and config.privacy is not None:
        delta = config.privacy.delta or default_delta(federation.clients)
        config = config.with_cap(rarely_exceeded(federation.cohort, federation.clients, delta=delta))
    return config


def _ranked_by_public_samples(tables: Mapping[str, Any]) -> bool:
    sparse = _given_value(tables, "method", "keep") is not None or _given_value(tables, "method", "k") is not None
    return (
        sparse
        and bool(_given_value(tables, "data", "public"))
        and _given_value(tables, "method", "name") in _PUBLIC_RANKING
    )


def override(tables: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return `tables` with `table.key=value` settings applied; values are TOML, a bare word is a string, `key=`
    removes the key.
    """
    result = _copied(tables)
    for setting in settings:
        key, equals, text = setting.partition("=")
        value = _toml_value(text.strip()) if text.strip() else None
        form = "table.key=value, as in --set federation.rounds=10"
        put(result, key.strip() if equals else "", value, given=f"--set {setting}", form=form)
    return result


def put(tables: dict[str, Any], key: str, value: Any, *, given: str, form: str) -> None:
    """Set tables[a][b] = value for the key "a.b"; None removes the key.

    ConfigError names the setting `given` and the right `form`.
    """
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
    """Return nested tables as dotted keys: {"a": {"b": 1}} and {"a.b": 1} mean the same."""
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


def _problem(item: Any) -> str:
    location = item["loc"]
    table = str(location[0]) if location else ""
    kinds = kinds_of(table) if table in CHOICES else {}
    kind = str(location[1]) if kinds and len(location) > 1 else None
    if kind is not None:  # a location within a table of that kind
        location = (table, *location[2:])
    where = ".".join(str(part) for part in location)
    if item["type"] == "union_tag_invalid":
        key = f"{table}.{CHOICES[table]}"
        allowed = ", ".join(map(quoted, kinds))
        return f"{key}={item['ctx']['tag']!r}: must be one of {allowed}. `dpfed config {key}` says what they are."
    if item["type"] == "value_error" and where == "privacy":
        return f"{item['ctx']['error']}."
    chosen = f"{table}.{CHOICES[table]}={quoted(kind)}" if kind is not None else ""
    takers = [name for name, one in kinds.items() if location[1:] and location[1] in one.model_fields]
    if item["type"] == "extra_forbidden":
        if kind is not None and takers and len(location) == 2:
            return f"{where} with {chosen}: is for {', '.join(takers)}. Remove it, or use one of them."
        known = sorted(kinds[kind].model_fields) if kind in kinds and len(location) == 2 else _known_keys(location[:-1])
        hint = did_you_mean(str(location[-1]), known)
        return f"{where}: unknown key; known here: {', '.join(known)}.{hint} `dpfed config` explains every key."
    if item["type"] == "literal_error" and kind is not None and len(location) == 2:
        others = [name for name, one in kinds.items() if location[1] in one.model_fields and name != kind]
        able = [name for name in others if item["input"] in _parts(kinds[name].model_fields[location[1]].annotation)]
        if able:
            given = f"{where}={item['input']!r} with {chosen}"
            return f"{given}: is for {', '.join(able)}. Remove it, or use one of them."
    if item["type"] == "missing":
        if kind is not None and len(takers) < len(kinds):
            return f"{where}: is missing; {chosen} needs it. Set {where}."
        return f"{where}: is missing and has no default."
    words = item["msg"].replace("valid tuple", "valid list").replace("Tuple", "List")  # the name of the type in TOML
    return f"{where}={shown(item['input'])}: {words}. `dpfed config {_key(location)}` says what is allowed."


def quoted(kind: str) -> str:
    """Return the choice as it is written in a configuration."""
    return kind if kind == LIST else repr(kind)


def _key(location: Sequence[Any]) -> str:
    """Return the dotted key of an error's location, which may be deeper: an item of a list, a branch of a type."""
    names = [str(part) for part in location]
    depth = max(n for n in range(len(names) + 1) if ".".join(names[:n]) in _every_key())
    return ".".join(names[:depth])


def _every_key() -> set[str]:
    return {"", *(f"{name}.{key}".removeprefix(".") for name, tables in sections() for key in names_of_keys(tables))}


def shown(value: Any) -> str:
    """Return the value for a message, shortened if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:  # an integer of 5000 digits, a table in a table in a table ...
        return f"a value that cannot be shown ({type(error).__name__})"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _known_keys(location: Sequence[Any]) -> list[str]:
    return sorted(names_of_keys(dict(sections()).get(".".join(str(part) for part in location), ())))


@cache
def kinds_of(table: str) -> dict[str, type[BaseModel]]:
    """Return the tables that [table] can be, by the choice that selects each; the default choice is the first."""
    key = CHOICES[table]
    found: dict[str, type[BaseModel]] = {}
    for one in _tables(Config.model_fields[table]):
        choice = one.model_fields[key]
        parts = list(_parts(choice.annotation))
        words = [part for part in parts if isinstance(part, str)]
        listed = [LIST] if any(get_origin(part) is tuple for part in parts) else []
        found |= dict.fromkeys((*words, *listed) or (choice.default,), one)
    return found


def names_of_keys(tables: Iterable[type[BaseModel]]) -> list[str]:
    """Return the keys that at least one of these tables has."""
    return list(dict.fromkeys(key for table in tables for key in table.model_fields))


def sections() -> Iterator[tuple[str, tuple[type[BaseModel], ...]]]:
    """Yield every table by its dotted name, of each kind that it can have; "" is the whole configuration."""
    return _tables_within("", (Config,))


def _tables_within(name: str, tables: tuple[type[BaseModel], ...]) -> Iterator[tuple[str, tuple[type[BaseModel], ...]]]:
    yield name, tables
    fields = {key: field for table in tables for key, field in table.model_fields.items()}
    for key, field in fields.items():
        if inner := _tables(field):
            yield from _tables_within(f"{name}.{key}".removeprefix("."), inner)


def _tables(field: FieldInfo) -> tuple[type[BaseModel], ...]:
    parts = _parts(field.annotation)
    return tuple(dict.fromkeys(one for one in parts if isinstance(one, type) and issubclass(one, BaseModel)))


def _parts(annotation: Any) -> Iterator[Any]:
    """Return the member types of a union, within annotations and nested unions."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)
