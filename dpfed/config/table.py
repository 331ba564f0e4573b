"""Base of all tables of a configuration: an unknown key is an error, a wrong type as well."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table; the text under a key is what the configuration reference says of it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)


def chosen(table: object, key: str) -> object:
    """Return the choice that a table makes, before it is validated or after; None if it makes none."""
    return table.get(key) if isinstance(table, Mapping) else getattr(table, key, None)
