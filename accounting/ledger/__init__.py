"""Ledgers: durable entries of releases, their hash chain, the ledger of a run and that of a project.

What a ledger holds is imported when it is first used, so that files are read (`regular_file`) without numpy.
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
    return lazy.found(__name__, name, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
