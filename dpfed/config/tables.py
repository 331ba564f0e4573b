"""The configuration of a run: typed tables, in which an unknown key is an error."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from accounting import require
from accounting.caveats import default_delta
from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_text
from accounting.mechanisms.samplings.independent import default_cap, rarely_exceeded
from accounting.mechanisms.samplings.planned import without_runs_text
from dpfed.config.limits import Table
from dpfed.config.noise_of_methods import noise_of_method
from dpfed.config.privacy_tables import AuditTable, Privacy
from dpfed.config.samples_tables import DataTable, FederationTable, ModelTable
from dpfed.config.server_tables import Aggregation, PlainAggregation, RunTable, Server, StepServer
from dpfed.config.training_tables import LIST, Local, MaskTable, MethodTable
from dpfed.errors import ConfigError, did_you_mean

CHOICES = {
    "data": "partition",
    "federation": "sampling",
    "local": "schedule",
    "privacy": "noise",
    "aggregation": "kind",
    "server": "rule",
}
"""Tables of several kinds with different keys, and the key whose value selects the kind."""

_PUBLIC_RANKING = ("fed-smp-topk", "fedpm")
"""Methods that in version 0.2 could choose coordinates by training on public samples."""

_MOST_SHOWN = 200
BYTE_ORDER_MARK = "\ufeff"
"""First character of text files that some editors on Windows write."""


class Config(Table):
    """Configuration of a whole run."""

    data: DataTable
    model: ModelTable
    federation: FederationTable
    local: Local
    method: MethodTable
    mask: MaskTable | None = None
    privacy: Privacy | None = None
    aggregation: Aggregation = PlainAggregation()
    audit: AuditTable = AuditTable()
    server: Server = StepServer()
    run: RunTable = RunTable()

    @model_validator(mode="before")
    @classmethod
    def _set_choices(cls, tables: object) -> object:
        """Set the key that selects the kind of each table in `CHOICES`, if it is not given.

        Keys of other kinds are dropped if they have their default, because configurations of version 0.2 contain them.
        """
        if not isinstance(tables, Mapping):
            return tables
        tables = _with_exact_record_noise(with_slots_renamed(tables))
        given = {name: tables.get(name) for name in CHOICES}
        kinds = {name: _table_of_kind(name, one, tables) for name, one in given.items() if isinstance(one, Mapping)}
        return {**tables, **kinds}

    def with_delta(self, delta: float) -> Config:
        """Return the configuration with this delta in its privacy table, [privacy] or [local.record]."""
        return self._with_private_table(lambda table: table.model_copy(update={"delta": delta}))

    @property
    def charged_rounds(self) -> int:
        """Number of rounds that epsilon covers: those of the run, and the spare ones."""
        return self.federation.rounds + self.run.spare_rounds

    @property
    def server_momentum(self) -> float:
        """Momentum of a server whose model is a sum of steps along mean updates; 0 for other servers."""
        server = self.server
        return server.momentum if isinstance(server, StepServer) and server.rule == "step" else 0.0

    @property
    def delta(self) -> float:
        """privacy.delta, or its default."""
        given = None if self.privacy is None else self.privacy.delta
        return given or default_delta(self.federation.clients)

    def with_solved_noise(self, values: Mapping[str, object]) -> Config:
        """Return the configuration with values that an earlier process has calibrated for it."""
        return self._with_private_table(lambda table: table.with_solved(values))

    def _with_private_table(self, change: Callable[[Table], Table]) -> Config:
        if self.privacy is not None:
            return self.model_copy(update={"privacy": change(self.privacy)})
        record = self.local.record
        return self if record is None else self.with_keys("local", record=change(record))

    def with_keys(self, table: str, **values: object) -> Config:
        """Return the configuration with these values of keys of a table, which are not validated again."""
        return self.model_copy(update={table: getattr(self, table).model_copy(update=values)})

    @property
    def round_size(self) -> int:
        """Number of clients of a round, expected or exact."""
        return self.federation.clients if self.federation.sampling == "all" else self.federation.cohort

    @property
    def rounds_have_fixed_size(self) -> bool:
        """True if the sampling draws the same number of clients in every round."""
        return self.federation.sampling in ("fixed", "all")

    @property
    def cohorts_drawn_anew(self) -> bool:
        """True if each cohort is drawn independently of other rounds, not by a schedule or a custom sampler."""
        return self.rounds_have_fixed_size or self.federation.sampling == "poisson"

    @property
    def cohort_cap(self) -> int | None:
        """Largest number of clients of a round: federation.cohort_cap, or its default if sums have a fixed number of
        uploads."""
        given, privacy = self.federation.cohort_cap, self.privacy
        if given is not None or privacy is None or not self.sums_have_fixed_size:
            return given
        chosen = rarely_exceeded if privacy.bernoulli else default_cap  # like `accounting.Plan.cohort_cap`
        return chosen(self.federation.cohort, self.federation.clients, delta=self.delta)

    @property
    def sums_have_fixed_size(self) -> bool:
        """True if every sum of a private run with Poisson sampling has the same number of uploads."""
        table = self.privacy
        if self.federation.sampling != "poisson" or table is None:
            return False
        if table.in_integers:
            return table.placement == "clients" or self.aggregation.kind != "plain"
        return table.noise in ("coins", "dithered") and table.release == "sum"

    def with_cap(self, cap: int | None) -> Config:
        """Return the configuration with this federation.cohort_cap."""
        return self if self.federation.cohort_cap == cap else self.with_keys("federation", cohort_cap=cap)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dictionaries without the keys that are None, because TOML has no null."""
        return self.model_dump(mode="json", exclude_none=True)


def with_slots_renamed(tables: Mapping[str, object]) -> Mapping[str, object]:
    """Return the tables with privacy.slots renamed to federation.cohort_cap.

    Raises ConfigError if both keys are given with different values.
    """
    privacy, federation = tables.get("privacy"), tables.get("federation")
    if not isinstance(privacy, Mapping) or not isinstance(federation, Mapping) or "slots" not in privacy:
        return tables
    slots, cap = privacy["slots"], federation.get("cohort_cap")
    if None not in (slots, cap) and slots != cap:
        raise ConfigError(
            f"privacy.slots={value_text(slots)} with federation.cohort_cap={value_text(cap)}: "
            "privacy.slots is the old name of federation.cohort_cap. Remove it."
        )
    rest = {key: value for key, value in privacy.items() if key != "slots"}
    return {**tables, "privacy": rest, "federation": {**federation, "cohort_cap": cap if slots is None else slots}}


def _table_of_kind(name: str, table: Mapping[str, object], tables: Mapping[str, object]) -> dict[str, object]:
    kinds, key = kinds_of_table(name), CHOICES[name]
    first = next(iter(kinds.values()))
    chosen = _noise_choice(table, tables) if name == "privacy" else table.get(key, first.model_fields[key].default)
    kept = kinds.get(chosen if isinstance(chosen, str) else LIST, first).model_fields
    idle = {
        other: field.get_default(call_default_factory=True)
        for one in kinds.values()
        for other, field in one.model_fields.items()
        if other not in kept
    }
    return {k: v for k, v in table.items() if k not in idle or idle[k] != v} | {key: chosen}


def _noise_choice(table: Mapping[str, object], tables: Mapping[str, object]) -> object:
    """Return privacy.noise; its default is the method's only noise, or the noise that suits the kind of sum."""
    name, kind = (_given_value(tables, "method", "name"), _given_value(tables, "aggregation", "kind"))
    fixed, given = noise_of_method(str(name)), table.get("noise")
    exact = kind not in (None, "plain") or _given_value(tables, "run", "release") is True
    if fixed == "dithered" and given == "gaussian":
        return fixed
    return given or fixed or ("discrete-gaussian" if exact else "gaussian")


def private_table(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return [privacy] or [local.record] in the tables of a configuration; an empty table without either."""
    found: Mapping[str, Any] = tables.get("privacy") or tables.get("local", {}).get("record") or {}
    return found


def _with_exact_record_noise(tables: Mapping[str, object]) -> Mapping[str, object]:
    """Return the tables with local.record.noise = "discrete-gaussian" in a run for release, if no noise is given."""
    local, record = tables.get("local"), _given_value(tables, "local", "record")
    released = _given_value(tables, "run", "release") is True
    if not released or not isinstance(local, Mapping) or not isinstance(record, Mapping):
        return tables
    return {**tables, "local": {**local, "record": {"noise": "discrete-gaussian", **record}}}


def _given_value(tables: Mapping[str, object], table: str, key: str) -> object:
    found = tables.get(table)
    return found.get(key) if isinstance(found, Mapping) else None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file without validation; raises ConfigError if the file cannot be read."""
    try:
        return tomllib.loads(read_text(path, at_most=LARGEST_CONFIGURATION).removeprefix(BYTE_ORDER_MARK))
    except OSError as error:
        raise ConfigError(f"{path}: the configuration cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # tomllib raises ValueError for numbers of 5000 digits
        raise ConfigError(f"{path}: not TOML ({error}).") from None


def plain_values(values: object) -> Any:
    """Return tables and lists with the numbers of numpy, torch and decimal as Python's (`accounting.require.plain`)."""
    if isinstance(values, Mapping):
        return {str(key): plain_values(value) for key, value in values.items()}
    if getattr(values, "ndim", 0) == 1 and hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return type(values)([plain_values(value) for value in values]) if type(values) in (list, tuple) else values
    return require.plain(values)


def parse(tables: Mapping[str, object], *, source: str) -> Config:
    """Return the validated configuration; raises ConfigError that names `source` and every wrong or unknown key."""
    try:
        return Config.model_validate(plain_values(tables))
    except ValidationError as error:
        problems = "\n  ".join(_problem_text(item) for item in error.errors(include_url=False))
        raise ConfigError(f"{source}:\n  {problems}") from None


def parse_written_config(tables: Mapping[str, object], *, source: str) -> Config:
    """Return the configuration that a run wrote into its folder.

    A setting that the run's version of dpfed did not write has its current default, with four exceptions. Without
    data.partition_seed, run.seed divided the data. Without privacy.delta, as up to version 0.2, delta was
    clients^-1.1. Without method.public_epochs, a server with public samples took the number of steps of one client.
    Without federation.cohort_cap, sums of a fixed number of uploads had a cap that larger cohorts exceeded with
    probability at most 1e-5 delta.
    """
    data, run, method = tables.get("data"), tables.get("run"), tables.get("method")
    if isinstance(data, Mapping) and isinstance(run, Mapping) and "seed" in run and "partition_seed" not in data:
        tables = {**tables, "data": {**data, "partition_seed": run["seed"]}}
    if isinstance(method, Mapping) and "public_epochs" not in method and _uses_public_ranking(tables):
        tables = {**tables, "method": {**method, "public_epochs": "client-steps"}}
    config = parse(tables, source=source)
    if config.privacy is None:
        return config
    federation = config.federation
    if config.privacy.delta is None and federation.clients > 1:
        config = config.with_delta(float(federation.clients) ** -1.1)
    if federation.sampling != "poisson":
        return config.with_cap(None)  # runs without Poisson sampling ignored privacy.slots
    if config.sums_have_fixed_size and federation.cohort_cap is None:
        config = config.with_cap(rarely_exceeded(federation.cohort, federation.clients, delta=config.delta))
    return config


def _uses_public_ranking(tables: Mapping[str, object]) -> bool:
    sparse = _given_value(tables, "method", "keep") is not None or _given_value(tables, "method", "k") is not None
    ranks = _given_value(tables, "method", "name") in _PUBLIC_RANKING
    return sparse and ranks and bool(_given_value(tables, "data", "public"))


def override(tables: Mapping[str, object], settings: Sequence[str]) -> dict[str, Any]:
    """Return the tables after applying settings `table.key=value`.

    Values are TOML; a bare word is a string. The setting `table.key=` removes the key.
    """
    result = _copy_tables(tables)
    for setting in settings:
        key, equals, text = setting.partition("=")
        value = _toml_value(text.strip()) if text.strip() else None
        form = "table.key=value, as in --set federation.rounds=10"
        set_key(result, key.strip() if equals else "", value, given=f"--set {setting}", form=form)
    return result


def set_key(tables: dict[str, object], key: str, value: object, *, given: str, form: str) -> None:
    """Set tables[a][b] = value for the key "a.b"; the value None removes the key.

    Raises ConfigError for a malformed key; its message has the text `given` and the correct `form`.
    """
    *path, last = key.split(".")
    if not path or not all((*path, last)):
        raise ConfigError(f"{given}: must be {form}.")
    place = tables
    for name in path:
        inner = place.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{given}: {name} is a value, not a table.")
        place = inner
    if value is None:
        place.pop(last, None)
    else:
        place[last] = value


def flat_tables(tables: object, path: str = "") -> Any:
    """Return nested tables as one table of dotted keys: {"a": {"b": 1}} becomes {"a.b": 1}."""
    if not isinstance(tables, Mapping):
        return tables
    found: dict[str, object] = {}
    for key, value in tables.items():
        name = f"{path}{key}"
        found |= flat_tables(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return found


def _copy_tables(tables: Mapping[str, object]) -> dict[str, object]:
    return {k: _copy_tables(v) if isinstance(v, Mapping) else v for k, v in tables.items()}


def _toml_value(text: str) -> object:
    for written in (text, text.replace(".", "0.", 1)):  # users write .2, which is not TOML
        try:
            return tomllib.loads(f"value = {written}")["value"]
        except (ValueError, RecursionError):
            if not text.lstrip("+-").startswith("."):
                break
    return text


def _problem_text(item: ErrorDetails) -> str:
    location = tuple(str(part) for part in item["loc"])
    table = location[0] if location else ""
    kinds = kinds_of_table(table) if table in CHOICES else {}
    kind = location[1] if kinds and len(location) > 1 else None
    if kind is not None:  # drop the kind, which pydantic inserts into the location
        location = (table, *location[2:])
    where = ".".join(location)
    if item["type"] == "union_tag_invalid":
        key = f"{table}.{CHOICES[table]}"
        allowed = ", ".join(map(quoted_kind, kinds))
        tag = item["ctx"]["tag"]
        only = without_runs_text(tag) if table == "federation" else ""
        return f"{key}={tag!r}: must be one of {allowed}.{only} `dpfed config {key}` explains them."
    if item["type"] == "value_error" and where == "privacy":
        return f"{item['ctx']['error']}."
    chosen = f"{table}.{CHOICES[table]}={quoted_kind(kind)}" if kind is not None else ""
    takers = [name for name, one in kinds.items() if location[1:] and location[1] in one.model_fields]
    if item["type"] == "extra_forbidden":
        if kind is not None and takers and len(location) == 2:
            return f"{where} with {chosen}: is for {', '.join(takers)}. Remove it, or use one of them."
        known = sorted(kinds[kind].model_fields) if kind in kinds and len(location) == 2 else _known_keys(location[:-1])
        hint = did_you_mean(location[-1], known)
        return f"{where}: unknown key; known here: {', '.join(known)}.{hint} `dpfed config` explains every key."
    if item["type"] == "literal_error" and kind is not None and len(location) == 2:
        others = [name for name, one in kinds.items() if location[1] in one.model_fields and name != kind]
        able = [
            name for name in others if item["input"] in _nested_types(kinds[name].model_fields[location[1]].annotation)
        ]
        if able:
            given = f"{where}={item['input']!r} with {chosen}"
            return f"{given}: is for {', '.join(able)}. Remove it, or use one of them."
    if item["type"] == "missing":
        if kind is not None and len(takers) < len(kinds):
            return f"{where}: is missing; {chosen} needs it. Set {where}."
        return f"{where}: is missing and has no default."
    reason = item["msg"].replace("valid tuple", "valid list").replace("Tuple", "List")  # TOML has lists only
    key = _dotted_key(location)
    return f"{where}={value_text(item['input'])}: {reason}. `dpfed config {key}` explains the allowed values."


def quoted_kind(kind: str) -> str:
    """Return the kind of a table in the syntax of a configuration: text has quotes, a list is `LIST`."""
    return kind if kind == LIST else repr(kind)


def _dotted_key(location: Sequence[str]) -> str:
    """Return the dotted key of an error, whose location may also name an item of a list or a member of a union."""
    known = {f"{name}.{key}".removeprefix(".") for name, tables in all_tables() for key in names_of_keys(tables)}
    starts = (".".join(location[:count]) for count in range(len(location), 0, -1))
    return next((start for start in starts if start in known), "")


def value_text(value: object) -> str:
    """Return the text of a value for a message, shortened if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:  # an integer of 5000 digits, or deeply nested tables
        return f"a value that cannot be shown ({type(error).__name__})"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _known_keys(location: Sequence[str]) -> list[str]:
    return sorted(names_of_keys(dict(all_tables()).get(".".join(location), ())))


@cache
def kinds_of_table(table: str) -> dict[str, type[BaseModel]]:
    """Return the kinds of [table], by the value of its key in `CHOICES` that selects each kind; the default is
    first."""
    key = CHOICES[table]
    found: dict[str, type[BaseModel]] = {}
    for one in _table_types(Config.model_fields[table]):
        choice = one.model_fields[key]
        parts = list(_nested_types(choice.annotation))
        words = [part for part in parts if isinstance(part, str)]
        listed = [LIST] if any(get_origin(part) is tuple for part in parts) else []
        found |= dict.fromkeys((*words, *listed) or (choice.default,), one)
    return found


def names_of_keys(tables: Iterable[type[BaseModel]]) -> list[str]:
    """Return the keys of all these tables, each once."""
    return list(dict.fromkeys(key for table in tables for key in table.model_fields))


def all_tables() -> Iterator[tuple[str, tuple[type[BaseModel], ...]]]:
    """Yield (dotted name, all kinds) of every table; the name "" stands for the whole configuration."""
    return _tables_within("", (Config,))


def _tables_within(name: str, tables: tuple[type[BaseModel], ...]) -> Iterator[tuple[str, tuple[type[BaseModel], ...]]]:
    yield name, tables
    fields = {key: field for table in tables for key, field in table.model_fields.items()}
    for key, field in fields.items():
        if inner := _table_types(field):
            yield from _tables_within(f"{name}.{key}".removeprefix("."), inner)


def _table_types(field: FieldInfo) -> tuple[type[BaseModel], ...]:
    parts = _nested_types(field.annotation)
    return tuple(dict.fromkeys(one for one in parts if isinstance(one, type) and issubclass(one, BaseModel)))


def _nested_types(annotation: object) -> Iterator[object]:
    """Yield the annotation and all types within it: members of unions, also of nested ones."""
    yield annotation
    for part in get_args(annotation):
        yield from _nested_types(part)
