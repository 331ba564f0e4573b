"""Statements about a run for others: model card, registry entry, and the answers that both need.

Entry for OpenDP's registry of deployments (github.com/opendp/deployments-registry-data), by its schema of tier 3.

Fields of the registry entry come from the run, else from `StatementAnswers`, else are marked with TODO. The entry is a
draft for which its authors are responsible.

Model card in the format of the Hugging Face hub: metadata as YAML, then text.

Unanswered questions have the mark of the hub's template.
"""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_text
from accounting.rounding import upwards
from dpfed.config.tables import BYTE_ORDER_MARK
from dpfed.errors import ConfigError, RunError, require_name
from dpfed.records.summary import FinishedRun, Summary
from dpfed.report.ledger_text import ledger_text
from dpfed.report.privacy_card import card_of, score_of
from dpfed.report.privacy_text import (
    adversary_text,
    duration_text,
    noise_text,
    privacy_statement,
    project_text,
    size_text,
    unit_text,
)

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
    require_name(f"{where}: is none of", key, QUESTIONS)
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


_MARK = "TODO: {}"


def registry_entry(folder: Path, run: FinishedRun, about: StatementAnswers) -> dict[str, object]:
    """Return the entry as nested tables, with epsilon and delta rounded upwards. RunError if the run is not private."""
    summary = run.summary
    if summary.epsilon is None:
        if summary.no_statement:
            raise RunError(f"{folder}: the run has no statement of privacy. {summary.no_statement}")
        raise RunError(f"{folder}: the run is not private; the registry lists private deployments only.")
    plain = f"{summary.method} on {summary.dataset}"
    name = about.answer_text("name", mark=f"{_MARK} ({plain})")
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", str(about.answers.get("name", plain)).lower()).strip("-")[:80]
        or "model",
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": _basic_fields(name, about),
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": about.answer_text("data_domain", mark=_MARK),
                "unprotected_quantities": f"{'; '.join(summary.not_protected) or 'None that the run recorded'}. "
                "The configuration, the number of rounds and the size of the model are public.",
            },
            "privacy_loss": _privacy_loss_fields(summary),
            "deployment_model": _deployment_model_fields(summary),
            "accounting": {
                "post_processing": "Everything that the server computes from released sums: its step, the models of "
                "all rounds, their evaluation.",
                "composition": _composition_text(summary),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": about.answer_text("tuning", mark=_MARK),
                "mechanisms": _mechanisms_text(run),
                "justification": about.answer_text("justification", mark=_MARK),
            },
            "administrative": {
                "sources": about.answer_text("sources", mark=_MARK),
                "notes": privacy_statement(summary),
                "registry_authors": about.answer_list("authors", mark=_MARK),
            },
        },
    }


def _basic_fields(name: str, about: StatementAnswers) -> dict[str, object]:
    basic = {
        "name": name,
        "data_curators": about.answer_list("curators", mark=_MARK),
        "intended_use": about.answer_text("intended_use", mark=_MARK),
        "data_product_type": "Machine learning model",
        "data_product_region": about.answer_text("region", mark=_MARK),
        "description": about.answer_text("description", mark=_MARK),
        "publication_date": about.answers.get("publication_date", UNKNOWN_DATE),
    }
    sector = about.answers.get("sector")
    return basic if sector is None else basic | {"data_product_sector": sector}


def _privacy_loss_fields(summary: Summary) -> dict[str, object]:
    return {
        "privacy_unit": f"{summary.unit}-level",
        "privacy_unit_details": unit_text(summary),
        "privacy_parameters": {
            "epsilon": float(upwards(summary.epsilon)),
            "delta": float(upwards(summary.delta)),
        },
        "privacy_parameters_details": "Upper bounds, rounded upwards, computed from the ledger of all releases."
        + "".join(f" Note: {note}." for note in summary.notes),
    }


def _deployment_model_fields(summary: Summary) -> dict[str, object]:
    local = summary.unit == "record" or summary.noise_placement == "uploads"
    shares = summary.aggregation != "plain" and summary.noise_placement in ("clients", "coins")
    return {
        "model_name": "Local" if local else "Federated" if shares else "Central",
        "model_name_details": noise_text(summary),
        "actors": adversary_text(summary),
        "release_type": "One release",
        "release_type_details": "The final model; the guarantee covers the models of all rounds.",
        "data_source_type": "Static",
        "data_source_type_details": "The clients and their data were fixed for the run.",
        "access_type": "Non-interactive",
        "access_type_details": "There are no queries of the data; the model is published.",
    }


def _composition_text(summary: Summary) -> str:
    return (
        f"Composition over {summary.rounds:,} rounds by the accountant {summary.accountant}, for "
        f"{summary.sampling} sampling and {summary.adjacency} neighbours. Other releases about the same clients "
        f"are not included. {project_text(summary)}"
    ).rstrip()


def _mechanisms_text(run: FinishedRun) -> str:
    summary, ledger = run.summary, ledger_text(run.folder / "ledger.jsonl")
    said = " ".join(ledger.lines) if ledger is not None else noise_text(summary)
    origin = {
        "secure": "Noise and cohorts come from the operating system; noise on integers is drawn exactly, without "
        "floating-point numbers.",
        "simulated": "Noise and cohorts come from a seed: this is an experiment and not fit for release.",
    }.get(str(summary.randomness), "")
    return f"{said} Implemented with {run.package}. {origin}".strip()


def to_yaml(table: Mapping[str, object]) -> str:
    """Return nested tables as YAML block mappings; texts are quoted as in JSON, which is valid YAML."""
    return "".join(f"{line}\n" for line in _yaml_table(table))


def _yaml_table(table: Mapping[str, object]) -> Iterator[str]:
    for key, value in table.items():
        match value:
            case Mapping():
                yield f"{key}:"
                yield from (f"  {line}" for line in _yaml_table(value))
            case list() | tuple():
                yield f"{key}:"
                yield from (f"  {line}" for line in _yaml_list(value))
            case _:
                yield f"{key}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"


def _yaml_list(values: Sequence[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Mapping):
            first, *others = _yaml_table(value)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
        else:
            yield f"- {json.dumps(value, ensure_ascii=False, allow_nan=False)}"


MARK = "[More Information Needed]"
_IMAGES = ("digits", "mnist", "fashion-mnist", "emnist", "cifar10", "cifar100", "svhn")


def model_card(run: FinishedRun, about: StatementAnswers) -> str:
    """Return the whole model card. Epsilon and delta are rounded upwards."""
    summary, score = run.summary, score_of(run.summary)
    name = str(about.answers.get("name", f"{summary.method} on {summary.dataset}"))
    text = (files(__package__) / "model-card.md").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=False, trim_blocks=True, keep_trailing_newline=True, finalize=_without_html
    )
    keys = ("description", "intended_use", "data_domain", "tuning", "license", "sources")
    asked = {key: Markup(about.answer_text(key, mark=MARK)) for key in keys}
    return environment.from_string(text).render(
        front=Markup(to_yaml(_front_matter(name, summary, about))),
        name=name,
        card=card_of(summary),
        sentence=privacy_statement(summary),
        summary=summary,
        curators=", ".join(about.answer_list("curators", mark=MARK)),
        mark=MARK,
        package=run.package,
        traffic=f"{size_text(1e6 * (summary.uplink_megabytes_total or 0.0))} sent by all clients",
        evaluation=f"{score.name.capitalize()}: {score.value} ({score.conditions}), on the test half of the data.",
        time=f"{duration_text(summary.seconds)} on {summary.gpu or summary.device}. Energy: {MARK}",
        **asked,
    )


def _without_html(value: object) -> object:
    """Return text of a run with HTML tags disabled, because its files may be untrusted."""
    return value.replace("<", "&lt;") if isinstance(value, str) and not isinstance(value, Markup) else value


def _front_matter(name: str, summary: Summary, about: StatementAnswers) -> dict[str, object]:
    private = summary.epsilon is not None
    front: dict[str, object] = {
        "library_name": "pytorch",
        "tags": ["federated-learning", *(["differential-privacy"] if private else []), "dpfed", summary.method],
    }
    if "license" in about.answers:
        front["license"] = about.answers["license"]
    if summary.test_accuracy is not None:
        front["metrics"] = ["accuracy"]
        if summary.dataset in _IMAGES:
            front["model-index"] = [{"name": name, "results": [_hub_result(summary, summary.test_accuracy)]}]
    return front


def _hub_result(summary: Summary, accuracy: float) -> dict[str, object]:
    """Return one evaluation result in the hub's format, with epsilon as a further metric."""
    metrics = [{"type": "accuracy", "value": round(100 * accuracy, 2), "name": "test accuracy, %"}]
    if summary.epsilon is not None:
        words = f"epsilon, at most (delta {upwards(summary.delta)}, one {summary.unit})"
        metrics.append({"type": "epsilon", "value": float(upwards(summary.epsilon)), "name": words})
    return {
        "task": {"type": "image-classification"},
        "dataset": {"type": summary.dataset, "name": summary.dataset},
        "metrics": metrics,
    }
