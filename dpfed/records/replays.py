"""Record of the replay audit that a run's configuration has passed: audit-replay.json in its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_text
from dpfed.records.reading import Count, Misread, Text, Unavailable, Word, json_object, validated

REPLAY_RECORD = "audit-replay.json"


def fingerprint(tables: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a configuration's tables, for any order of their keys."""
    return hashlib.sha256(json.dumps(tables, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ReplayRecord:
    """Verdict of a replay audit, and the audited configuration.

    configuration: `fingerprint` of its tables; pairs_tested: pairs of neighbours with the outcome "pass"
    """

    verdict: Word
    words: Text
    configuration: Word
    pairs_tested: Count = 0

    @classmethod
    def read(cls, folder: Path, tables: Mapping[str, Any]) -> Self | None:
        """Return the record of a folder for the configuration with these tables; None without one.

        The file is the operator's own account. Errors: Misread or Unavailable for a file that this package does not
        write.
        """
        path = folder / REPLAY_RECORD
        if not path.exists():
            return None
        try:
            values = json_object(read_text(path, at_most=LARGEST_DOCUMENT), str(path))
        except (OSError, ValueError) as error:
            raise Unavailable(
                f"{path}: cannot be read ({error}). Make it again: `dpfed audit replay {folder}`."
            ) from None
        found = validated(cls, values, str(path))
        if found.verdict not in ("pass", "fail", "inconclusive"):
            raise Misread(f"{path}: verdict {found.verdict!r}: must be pass, fail or inconclusive.")
        return found if found.configuration == fingerprint(tables) else None

    @property
    def as_text(self) -> str:
        """Return a sentence for a reader."""
        if self.verdict == "pass":
            return f"replay audit of this configuration: pass on {self.pairs_tested} pairs and what they exercised"
        return f"replay audit of this configuration: {self.verdict}. {self.words}"


def replay_text(folder: Path, tables: Mapping[str, Any]) -> str:
    """Return the replay audit that a folder records, as text; without one, the command that makes it."""
    try:
        found = ReplayRecord.read(folder, tables)
    except (Misread, Unavailable) as reason:
        return str(reason)
    if found is None:
        return "no replay audit of this configuration is recorded: `dpfed audit replay` makes one of this folder"
    return found.as_text
