"""The keys of a row and its axes, put together level by level: a later level wins."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpfed.config.tables import flat_tables, override, set_key
from dpfed.errors import ConfigError

Axes = Mapping[str, Sequence[object]]


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Configuration tables, `axes` that vary above them, and `last`, keys that win even over what an axis says.

    A value of an axis is a value of the key that the axis is called, or a table of several keys with a `label`.
    """

    where: str
    tables: Mapping[str, object]
    axes: Axes = field(default_factory=dict)
    last: Mapping[str, object] = field(default_factory=dict)

    def without(self, keys: Sequence[str], *, must_be_there: bool = False) -> RowSettings:
        """Return the settings without these keys or tables, and without axes on them."""
        for key in keys:
            if must_be_there and not self.has(key):
                raise ConfigError(f"{self.where}: drop {key!r}: there is no such key to take out. Remove it from drop.")
        return replace(
            self,
            tables=_without(self.tables, keys),
            axes={name: values for name, values in self.axes.items() if not _is_below(name, keys)},
        )

    def has(self, key: str) -> bool:
        """Return True if the key, or a key below it, is set or is an axis."""
        return any(_is_below(name, [key]) for name in (*flat_tables(self.tables), *self.axes))

    def with_settings(self, settings: Mapping[str, object]) -> RowSettings:
        """Set these dotted keys; an axis of the same name keeps this value alone."""
        pinned = {name: [settings[name]] for name in self.axes if name in settings}
        return replace(self, tables=put_all(self.tables, settings), axes={**self.axes, **pinned})

    def with_last(self, settings: Mapping[str, object]) -> RowSettings:
        """Set these keys, even against a table of an axis."""
        return replace(self.with_settings(settings), last={**self.last, **settings})

    def with_axes(self, axes: Axes) -> RowSettings:
        """Add these axes; an axis of the same name is replaced, in its place."""
        for name, values in axes.items():
            labels = [label(value) for value in values]
            if len(set(labels)) < len(labels) or "" in labels:
                raise ConfigError(
                    f"{self.where}: axis {name!r}: its values are {labels}; they must differ, and a table among them "
                    "needs a `label`."
                )
        return replace(self, axes={**self.axes, **axes})

    def points(self) -> list[tuple[dict[str, str], RowSettings]]:
        """Every point of the axes, labelled, with its values put in and no axes left."""
        found = []
        for values in itertools.product(*self.axes.values()):
            point = dict(zip(self.axes, values, strict=True))
            labels = {name: label(value) for name, value in point.items()}
            found.append((labels, replace(self, tables=put_all(self.tables, values_at(point)), axes={})))
        return found

    def to_tables(self) -> dict[str, object]:
        """Return the tables of a run configuration."""
        return put_all(self.tables, self.last)


def label(value: object) -> str:
    """Return a value of an axis as written in tables, in folders, and in the column x of published numbers."""
    match value:
        case Mapping():
            return str(value.get("label", ""))
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case list():
            return "+".join(map(label, value))
    return str(value)


def values_at(point: Mapping[str, object]) -> dict[str, object]:
    """Return the dotted keys that a point sets, axis by axis."""
    found: dict[str, object] = {}
    for name, value in point.items():
        if isinstance(value, Mapping):
            found |= {key: one for key, one in flat_tables(value).items() if key != "label"}
        else:
            found[name] = value
    return found


def put_all(tables: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """Return the tables with these dotted keys set. ConfigError for a key below a value."""
    result = override(dict(tables), [])
    for key, value in settings.items():
        set_key(result, key, value, given=key, form="table.key, as in federation.rounds")
    return result


def _is_below(name: str, keys: Sequence[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in keys)


def _without(tables: Mapping[str, object], keys: Sequence[str], path: str = "") -> dict[str, object]:
    kept = {}
    for key, value in tables.items():
        name = f"{path}{key}"
        if name not in keys:
            kept[key] = _without(value, keys, f"{name}.") if isinstance(value, Mapping) else value
    return kept
