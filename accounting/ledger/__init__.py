"""Ledgers: durable entries of releases, their hash chain, the ledger of a run and that of a project.

What a ledger holds is imported when it is first used, so that files are read (`regular_file`) without numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accounting.ledger.file import Aborted, Entry, Header, Ledger, LocalRelease, Purchase, Release
    from accounting.ledger.planned import Planned

__all__ = ["Aborted", "Entry", "Header", "Ledger", "LocalRelease", "Planned", "Purchase", "Release"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{'planned' if name == 'Planned' else 'file'}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
