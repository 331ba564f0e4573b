"""Answers for model cards and registry entries that a run folder lacks, from a TOML file or a terminal."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_text
from dpfed.config.did_you_mean import did_you_mean
from dpfed.config.tables import BYTE_ORDER_MARK
from dpfed.errors import ConfigError

UNKNOWN_DATE = "1900-01-01"
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
QUESTIONS: Mapping[str, str] = {
    "name": "the name of the model",
    "curators": "who publishes it (a list of names)",
    "authors": "who writes this statement (a list of names)",
    "description": "what the model does, in a sentence or two",
    "intended_use": "what it is meant for",
    "region": "which region the data describe, or whose legislation applies",
    "sector": f"one of {', '.join(SECTORS)}",
    "publication_date": "when it was published, as YYYY-MM-DD",
    "data_domain": "whose data it was trained on, and which data sets were possible instead",
    "tuning": "how data were prepared and settings chosen, and whether private data were used for it",
    "justification": "why this unit, this epsilon and this delta",
    "sources": "where to read more (addresses)",
    "license": "the licence of the model, as the Hugging Face hub calls it",
}
_LISTS = ("curators", "authors")


@dataclass(frozen=True, kw_only=True)
class StatementAnswers:
    """Answers to some of `QUESTIONS`."""

    answers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """Keys of the unanswered questions."""
        return tuple(key for key in QUESTIONS if key not in self.answers)

    def answer_text(self, key: str, *, mark: str) -> str:
        """Return the answer; without one, return `mark` with the question in place of {}."""
        return str(self.answers.get(key, mark.replace("{}", QUESTIONS[key], 1)))

    def answer_list(self, key: str, *, mark: str) -> list[str]:
        """Return an answer that is a list; without one, return [`mark`] with the question in place of {}."""
        return list(self.answers.get(key, [mark.replace("{}", QUESTIONS[key], 1)]))


def read_about(file: Path | None) -> StatementAnswers:
    """Return the answers in a TOML file, or no answers if `file` is None. ConfigError for an invalid answer."""
    if file is None:
        return StatementAnswers()
    try:
        found = tomllib.loads(read_text(file, at_most=LARGEST_CONFIGURATION).removeprefix(BYTE_ORDER_MARK))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--about {file}: cannot be read as TOML ({error}).") from None
    return StatementAnswers(
        answers={key: _checked_answer(f"--about {file}: {key}", key, value) for key, value in found.items()}
    )


def ask_questions(
    about: StatementAnswers, *, read: Callable[[str], str], say: Callable[[str], None]
) -> StatementAnswers:
    """Ask the missing questions one after the other, and return `about` with the new answers.

    read: shows a question and returns the typed text; an empty text skips the question. say: shows the error of an
    invalid answer, whose question is then repeated. EOFError of `read` (Ctrl-D) ends the questions.
    """
    answers = dict(about.answers)
    for key in about.missing:
        try:
            found = _prompted_answer(key, read, say)
        except EOFError:
            break
        if found is not None:
            answers[key] = found
    return StatementAnswers(answers=answers)


def _prompted_answer(key: str, read: Callable[[str], str], say: Callable[[str], None]) -> object:
    question = QUESTIONS[key].replace("a list of names", "names, with commas between them")
    while typed := read(f"{key}, {question}: ").strip():
        try:
            return _checked_answer(key, key, [one.strip() for one in typed.split(",")] if key in _LISTS else typed)
        except ConfigError as error:
            say(str(error))
    return None


def _checked_answer(where: str, key: str, value: object) -> object:
    if key not in QUESTIONS:
        raise ConfigError(f"{where}: is none of {', '.join(QUESTIONS)}.{did_you_mean(key, QUESTIONS)}")
    if key in _LISTS:
        if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
            raise ConfigError(f"{where}: must be a list of names, as in {key} = ['A hospital'].")
        return value
    if key == "publication_date":
        return _date_text(where, value)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: must be text ({QUESTIONS[key]}).")
    if key == "sector" and value not in SECTORS:
        raise ConfigError(f"{where}={value!r}: must be {QUESTIONS[key]}.")
    return value


def _date_text(where: str, value: object) -> str:
    try:
        given = value if isinstance(value, datetime.date) else datetime.date.fromisoformat(str(value))
    except ValueError:
        raise ConfigError(f"{where}={value!r}: must be a date, as in 2026-01-31.") from None
    return given.isoformat()[:10]
