"""Base class of all configuration tables; an unknown key or a value of a wrong type is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr


class Table(BaseModel):
    """A table of the configuration; the docstring of a key is its description in the configuration reference."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)
    _solved: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def solved(self) -> Mapping[str, Any]:
        """Numbers that an earlier process has calibrated for this table and written into the ledger's header; no keys.

        They are used instead of a new calibration, whose last digits differ between processors.
        """
        return self._solved

    def with_solved(self, values: Mapping[str, Any]) -> Self:
        """Return this table with calibrated numbers of an earlier process."""
        found = self.model_copy()
        found._solved = dict(values)
        return found


def value_of_key(table: object, key: str) -> object:
    """Return the value of the key in a table, before or after validation; None if the table does not have it."""
    return table.get(key) if isinstance(table, Mapping) else getattr(table, key, None)
