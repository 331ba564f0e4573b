"""Records of a finished run, read from its folder and validated."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from accounting.ledger.regular_file import LARGEST_CONFIGURATION
from dpfed.errors import RunError
from dpfed.records.reading import Unavailable, read_lines, text_of_file
from dpfed.records.round import MetricsLine, RoundRecord
from dpfed.records.summary import Summary


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedRun:
    """Records of a run folder. config: tables of config.toml; row, at: row and axis labels in an experiment."""

    folder: Path
    row: str = ""
    at: Mapping[str, str] = field(default_factory=dict)
    summary: Summary
    metrics: list[MetricsLine]
    config: dict[str, object]


def read_finished(folder: Path) -> FinishedRun:
    """Return the run in this folder. Raise RunError if it is not finished, or a file is invalid."""
    try:
        summary, metrics = Summary.of_folder(folder), read_lines(folder / "metrics.jsonl", MetricsLine)
        config = tomllib.loads(text_of_file(folder / "config.toml", at_most=LARGEST_CONFIGURATION))
        rounds = folder / "diagnostics.jsonl"
        seconds = (
            sum(line.seconds for line in read_lines(rounds, RoundRecord, running=True)) if rounds.exists() else 0.0
        )
    except (ValueError, RecursionError, Unavailable) as error:
        raise RunError(
            f"{folder}: is no folder of a finished run ({error}). Name a folder that `dpfed run` wrote."
        ) from None
    # The seconds in the summary of a resumed run count from the round of the resumption.
    return FinishedRun(
        folder=folder, summary=replace(summary, seconds=max(summary.seconds, seconds)), metrics=metrics, config=config
    )
