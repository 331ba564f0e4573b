"""The files of a finished run as reports read them: they may come from anybody, so every value is checked."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.budget.noise_schedule import checked
from accounting.errors import InvalidParameter
from accounting.ledger.regular_file import LARGEST_CONFIGURATION, LARGEST_DOCUMENT, LARGEST_LINES, read_text
from accounting.require import count, real
from dpfed.errors import RunError
from dpfed.run.quantities import QUANTITIES

_WORDS = ("method", "dataset")
_WORDS_OR_NONE = (
    "unit", "adjacency", "accountant", "sampling", "noise", "noise_placement", "randomness", "device"
)  # fmt: skip
_COUNTS = ("rounds", "seed")
_COUNTS_OR_NONE = ("clients", "cohort", "noise_schedule_rounds")
_REALS = ("seconds",)
_LARGEST = 1e100
_LONGEST = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedRun:
    """`metrics` are the lines of metrics.jsonl."""

    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    config: dict[str, Any]


def read_finished(folder: Path) -> FinishedRun:
    """The run in this folder. RunError where it is not finished, or a file is not what a run writes."""
    try:
        summary = json.loads(read_text(folder / "summary.json", at_most=LARGEST_DOCUMENT))
        _check_summary(summary)
        metrics = _lines(folder / "metrics.jsonl")
        for line in metrics:
            _check_round(line)
        config = tomllib.loads(read_text(folder / "config.toml", at_most=LARGEST_CONFIGURATION))
        summary["seconds"] = max(summary["seconds"], _seconds_of_rounds(folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        words = f"has no {error}" if isinstance(error, KeyError) else str(error)[:_LONGEST]
        raise RunError(f"{folder}: is no folder of a finished run ({words}). `dpfed run` makes them.") from None
    return FinishedRun(summary=summary, metrics=metrics, config=config)


def _check_summary(summary: dict[str, Any]) -> None:
    for key in _WORDS:
        _check_word(key, summary[key])
    for key in _WORDS_OR_NONE:
        if summary.get(key) is not None:
            _check_word(key, summary[key])
    for key in _COUNTS:
        count(at_least=0, **{key: summary[key]})
    for key in (*_REALS, *QUANTITIES, *_COUNTS_OR_NONE):
        _check_number(key, summary[key] if key in _REALS else summary.get(key))
    if summary.get("epsilon") is not None:
        for key in ("delta", "noise_multiplier", "clients", "cohort", "unit", "sampling", "adjacency", "accountant"):
            if summary[key] is None and key != "noise_multiplier":
                raise KeyError(key)
    factors = summary.get("noise_schedule")
    if factors is not None:
        checked(factors)
    notes = summary.get("not_protected", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise InvalidParameter("not_protected: must be a list of words.")


def _check_round(line: Mapping[str, Any]) -> None:
    count(at_least=0, round=line["round"])
    for key in ("test_accuracy", "epsilon", "uplink_megabytes"):
        _check_number(key, line[key])
    for key, value in line.items():
        if key.startswith("test_"):
            _check_number(key, value)


def _check_number(key: str, value: object) -> None:
    if value is not None and not abs(real(f"a number below {_LARGEST:g}", **{key: value})) < _LARGEST:
        raise InvalidParameter(f"{key}: must be a number below {_LARGEST:g}.")


def _check_word(key: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise InvalidParameter(f"{key}: must be a word.")


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_text(file, at_most=LARGEST_LINES).splitlines()]


def _seconds_of_rounds(folder: Path) -> float:
    """The summary of a resumed run counts from where it went on; its rounds know better."""
    file = folder / "diagnostics.jsonl"
    seconds = [line.get("seconds", 0.0) for line in _lines(file)] if file.exists() else []
    for one in seconds:
        _check_number("seconds", one)
    return float(sum(seconds))
