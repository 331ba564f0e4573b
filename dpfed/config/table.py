"""Base class of all configuration tables; an unknown key or a value of a wrong type is an error."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table of the configuration; the docstring of a key is its description in the configuration reference."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)


def value_of_key(table: object, key: str) -> object:
    """Return the value of the key in a table, before or after validation; None if the table does not have it."""
    return table.get(key) if isinstance(table, Mapping) else getattr(table, key, None)
