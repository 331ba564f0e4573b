"""Nested tables as YAML: block mappings, every word in JSON's quotes, which YAML reads as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def to_yaml(table: Mapping[str, Any]) -> str:
    """Keys are plain words; values are words, numbers, truth values, tables or lists of these."""
    return "".join(f"{line}\n" for line in _table(table))


def _table(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield f"{key}:"
            yield from (f"  {line}" for line in _table(value))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{key}:"
            yield from (f"  {line}" for line in _list(value))
        else:
            yield f"{key}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"


def _list(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Mapping):
            first, *others = _table(value)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
        else:
            yield f"- {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
