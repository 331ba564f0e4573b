"""Settings and axes of a row, merged level by level; a later level overrides an earlier one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpfed.config.tables import flat_tables, override, set_key
from dpfed.errors import ConfigError

Axes = Mapping[str, Sequence[object]]


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Configuration `tables`, `axes` that override them, and `final` keys that override even the axes.

    A value of an axis is a value of the key named by the axis, or a table of several keys with a `label`. `place`: the
    row, for error messages.
    """

    place: str
    tables: Mapping[str, object]
    axes: Axes = field(default_factory=dict)
    final: Mapping[str, object] = field(default_factory=dict)

    def without_keys(self, keys: Sequence[str], *, must_be_there: bool = False) -> RowSettings:
        """Return the settings without these keys or tables, and without axes of these keys."""
        for key in keys:
            if must_be_there and not self.has_key(key):
                raise ConfigError(f"{self.place}: drop {key!r}: no such key is set. Remove it from drop.")
        return replace(
            self,
            tables=_tables_without(self.tables, keys),
            axes={name: values for name, values in self.axes.items() if not _is_below(name, keys)},
        )

    def has_key(self, key: str) -> bool:
        """Return True if the key, or a key below it, is set or is an axis."""
        return any(_is_below(name, [key]) for name in (*flat_tables(self.tables), *self.axes))

    def with_settings(self, settings: Mapping[str, object]) -> RowSettings:
        """Return the settings with these dotted keys set; an axis with the name of such a key has only this value."""
        pinned = {name: [settings[name]] for name in self.axes if name in settings}
        return replace(self, tables=put_keys(self.tables, settings), axes={**self.axes, **pinned})

    def with_final(self, settings: Mapping[str, object]) -> RowSettings:
        """Return the settings with these dotted keys set, which override even tables of an axis."""
        return replace(self.with_settings(settings), final={**self.final, **settings})

    def with_axes(self, axes: Axes) -> RowSettings:
        """Return the settings with these axes added; an existing axis of the same name is replaced at its position."""
        for name, values in axes.items():
            labels = [value_label(value) for value in values]
            if len(set(labels)) < len(labels) or "" in labels:
                raise ConfigError(
                    f"{self.place}: axis {name!r}: its values are {labels}; they must differ, and a table among them "
                    "needs a `label`."
                )
        return replace(self, axes={**self.axes, **axes})

    def axis_points(self) -> list[tuple[dict[str, str], RowSettings]]:
        """Return (labels by axis, settings with the axis values set and without axes) for every point of the axes."""
        found = []
        for values in itertools.product(*self.axes.values()):
            point = dict(zip(self.axes, values, strict=True))
            labels = {name: value_label(value) for name, value in point.items()}
            found.append((labels, replace(self, tables=put_keys(self.tables, values_at(point)), axes={})))
        return found

    def to_tables(self) -> dict[str, object]:
        """Return the tables of a run configuration."""
        return put_keys(self.tables, self.final)


def value_label(value: object) -> str:
    """Return the text of an axis value that tables, folder names and the column x of published numbers show."""
    match value:
        case Mapping():
            return str(value.get("label", ""))
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case list():
            return "+".join(map(value_label, value))
    return str(value)


def values_at(point: Mapping[str, object]) -> dict[str, object]:
    """Return the dotted keys that a point of the axes sets, in the order of the axes."""
    found: dict[str, object] = {}
    for name, value in point.items():
        if isinstance(value, Mapping):
            found |= {key: one for key, one in flat_tables(value).items() if key != "label"}
        else:
            found[name] = value
    return found


def put_keys(tables: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """Return the tables with these dotted keys set. ConfigError for a key below a value."""
    result = override(dict(tables), [])
    for key, value in settings.items():
        set_key(result, key, value, given=key, form="table.key, as in federation.rounds")
    return result


def _is_below(name: str, keys: Sequence[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in keys)


def _tables_without(tables: Mapping[str, object], keys: Sequence[str], path: str = "") -> dict[str, object]:
    kept = {}
    for key, value in tables.items():
        name = f"{path}{key}"
        if name not in keys:
            kept[key] = _tables_without(value, keys, f"{name}.") if isinstance(value, Mapping) else value
    return kept
