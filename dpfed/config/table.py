"""Base of all tables of a configuration: an unknown key is an error, a wrong type as well."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table; the docstring of a key is its text in the configuration reference."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)


def chosen(table: object, key: str) -> object:
    """Return the choice that a table makes, before or after validation; None if it makes none."""
    return table.get(key) if isinstance(table, Mapping) else getattr(table, key, None)
