"""Model card in the format of the Hugging Face hub: metadata as YAML, then text.

Unanswered questions have the mark of the hub's template."""

from __future__ import annotations

from importlib.resources import files

import jinja2
from markupsafe import Markup

from accounting.rounding import upwards
from dpfed.records.summary import Summary
from dpfed.report.finished_run import FinishedRun
from dpfed.report.privacy_card import card_of, score_of
from dpfed.report.privacy_text import privacy_statement
from dpfed.report.registry_entry import to_yaml
from dpfed.report.statement_answers import StatementAnswers
from dpfed.report.units import duration_text, size_text
from dpfed.version import __version__

MARK = "[More Information Needed]"
_IMAGES = ("digits", "mnist", "fashion-mnist", "emnist", "cifar10", "cifar100", "svhn")


def model_card(run: FinishedRun, about: StatementAnswers) -> str:
    """Return the whole model card. Epsilon and delta are rounded upwards."""
    summary = run.summary
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
        version=__version__,
        traffic=f"{size_text(1e6 * (summary.uplink_megabytes_total or 0.0))} sent by all clients",
        evaluation=_evaluation_text(summary),
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


def _evaluation_text(summary: Summary) -> str:
    score = score_of(summary)
    return f"{score.name.capitalize()}: {score.value} ({score.conditions}), on test data that no client trained on."
