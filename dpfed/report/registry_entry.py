"""Entry for OpenDP's registry of deployments (github.com/opendp/deployments-registry-data), by its schema of tier 3.

Fields come from the run, else from `StatementAnswers`, else are marked with TODO. The entry is a draft for which its
authors are responsible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from accounting.rounding import upwards
from dpfed.errors import RunError
from dpfed.records.summary import Summary
from dpfed.report.finished_run import FinishedRun
from dpfed.report.ledger_text import ledger_text
from dpfed.report.privacy_text import adversary_text, noise_text, privacy_statement, unit_text
from dpfed.report.statement_answers import UNKNOWN_DATE, StatementAnswers
from dpfed.version import __version__

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
                "unprotected_quantities": _unprotected_text(summary),
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
                "mechanisms": _mechanisms_text(folder, summary),
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


def _unprotected_text(summary: Summary) -> str:
    said = "; ".join(summary.not_protected) or "None that the run recorded"
    return f"{said}. The configuration, the number of rounds and the size of the model are public."


def _privacy_loss_fields(summary: Summary) -> dict[str, object]:
    return {
        "privacy_unit": f"{summary.unit}-level",
        "privacy_unit_details": unit_text(summary),
        "privacy_parameters": {
            "epsilon": float(upwards(summary.epsilon)),
            "delta": float(upwards(summary.delta)),
        },
        "privacy_parameters_details": "Upper bounds, rounded upwards, computed from the ledger of all releases.",
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
        "are not included unless a project ledger was charged."
    )


def _mechanisms_text(folder: Path, summary: Summary) -> str:
    ledger = ledger_text(folder / "ledger.jsonl")
    said = " ".join(ledger.lines) if ledger is not None else noise_text(summary)
    origin = {
        "secure": "Noise and cohorts come from the operating system; noise on integers is drawn exactly, without "
        "floating-point numbers.",
        "simulated": "Noise and cohorts come from a seed: this is an experiment and not fit for release.",
    }.get(str(summary.randomness), "")
    return f"{said} Implemented with dpfed {__version__}. {origin}".strip()


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
