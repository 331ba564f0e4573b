"""Record of the replay audit of a run's configuration: audit-replay.json in the folder of the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from accounting.ledger.regular_file import LARGEST_DOCUMENT, read_text
from dpfed.records.reading import Count, InvalidRecord, Text, Unavailable, Word, json_object, validated_record

REPLAY_RECORD = "audit-replay.json"


def configuration_fingerprint(tables: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a configuration's tables; it does not depend on the order of their keys."""
    return hashlib.sha256(json.dumps(tables, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ReplayRecord:
    """Verdict of a replay audit, and the fingerprint of the audited configuration.

    words:         explanation of the verdict
    configuration: `configuration_fingerprint` of the tables of the audited configuration
    pairs_tested:  number of pairs of neighbouring datasets with the outcome "pass"
    """

    verdict: Word
    words: Text
    configuration: Word
    pairs_tested: Count = 0

    @classmethod
    def read(cls, folder: Path, tables: Mapping[str, Any]) -> Self | None:
        """Return the record in a run's folder; None if it is missing, or is about other tables than `tables`.

        The operator could have written the file: it proves nothing to others.
        Errors: InvalidRecord or Unavailable for a file that this package does not write.
        """
        path = folder / REPLAY_RECORD
        if not path.exists():
            return None
        try:
            values = json_object(read_text(path, at_most=LARGEST_DOCUMENT), str(path))
        except (OSError, ValueError) as error:
            raise Unavailable(f"{path}: cannot be read ({error}). Repeat the audit: `dpfed audit {folder}`.") from None
        found = validated_record(cls, values, str(path))
        if found.verdict not in ("pass", "fail", "inconclusive"):
            raise InvalidRecord(f"{path}: verdict {found.verdict!r}: must be pass, fail or inconclusive.")
        return found if found.configuration == configuration_fingerprint(tables) else None

    @property
    def verdict_text(self) -> str:
        """Sentence with the verdict, for reports."""
        if self.verdict == "pass":
            return f"replay audit of this configuration: pass on {self.pairs_tested} pairs and what they exercised"
        return f"replay audit of this configuration: {self.verdict}. {self.words}"


def replay_text(folder: Path, tables: Mapping[str, Any]) -> str:
    """Return the verdict of the replay audit in a run's folder as text; if there is none, name the command for it."""
    try:
        found = ReplayRecord.read(folder, tables)
    except (InvalidRecord, Unavailable) as reason:
        return str(reason)
    if found is None:
        return "no replay audit of this configuration is recorded: `dpfed audit` makes one of this folder"
    return found.verdict_text
