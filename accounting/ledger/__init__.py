"""Ledgers: durable entries of releases, their hash chain, the ledger of a run and that of a project."""

from accounting.ledger.file import Aborted, Entry, Header, Ledger, LocalRelease, Purchase, Release
from accounting.ledger.planned import Planned

__all__ = ["Aborted", "Entry", "Header", "Ledger", "LocalRelease", "Planned", "Purchase", "Release"]
