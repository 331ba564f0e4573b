"""Ledgers of runs and of projects: durable records of releases in a chain of hashes.

Names are imported at their first use, so that `regular_file` works without numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accounting import lazy

if TYPE_CHECKING:
    from accounting.ledger.file import Aborted, Entry, Header, Ledger, LocalRelease, Purchase, Release
    from accounting.ledger.planned import Planned

__all__ = ["Aborted", "Entry", "Header", "Ledger", "LocalRelease", "Planned", "Purchase", "Release"]

_HOMES = lazy.names("accounting.ledger.file", *__all__) | lazy.names("accounting.ledger.planned", "Planned")


def __getattr__(name: str) -> object:
    return lazy.load_exported(__name__, name, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
