"""Report of a run, finished or live."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_text
from accounting.rounding import downwards, upwards
from dpfed.config.tables import private_table
from dpfed.errors import RunError
from dpfed.records.reading import Unavailable, read_lines, text_of_file
from dpfed.records.round import MetricsLine, RoundRecord, replay_text
from dpfed.records.summary import Summary, read_finished
from dpfed.report.collection import repeat_command
from dpfed.report.diagnosis import median_rounding, nothing_learned
from dpfed.report.figures.experiment import plot_run
from dpfed.report.figures.figure import ChartGroup, inline_svg
from dpfed.report.ledger_text import ledger_text
from dpfed.report.page import render_page
from dpfed.report.privacy_card import Badge, CardNumber, CardText, PrivacyCard, card_of
from dpfed.report.privacy_text import percent_text, sampler_name, significant_text, size_text
from dpfed.runs.durable_files import put
from dpfed.runs.loop import Outcome
from dpfed.runs.resuming import read_own_code

_COMPLETE = "The run is complete and saved; run it with --resume to write the report."


def write_report(outcome: Outcome) -> None:
    """Write curves.png and report.html into the run folder."""
    plot, target = outcome.folder / "curves.png", outcome.folder / "report.html"
    try:
        group = inline_svg(plot_run(outcome.record.method, outcome.lines, plot), files=plot.name)
    except RunError as error:
        raise RunError(f"{error} {_COMPLETE}") from None
    try:
        put(target, run_page(outcome.folder, outcome.record, outcome.lines, group).encode())
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror}). {_COMPLETE}") from None


def run_page(
    folder: Path, summary: Summary, lines: Sequence[MetricsLine], group: ChartGroup, *, live: bool = False
) -> str:
    """Return the HTML page of a finished run. live: True if a server shows it, after the run's live page."""
    configuration, tables = _configuration_of(folder / "config.toml")
    return render_page(
        "run.html",
        title=f"{summary.method} on {summary.dataset}",
        connects=live,
        scripts=("live.js",) if live else (),
        card=_card_with_audits(card_of(summary), folder, tables),
        nothing_learned=nothing_learned(lines),
        group=group,
        ran=[*run_texts(summary), *_rounding_texts(folder)],
        ledger=ledger_text(folder / "ledger.jsonl"),
        commands=_shell_commands(folder, summary, tables),
        configuration=configuration,
    )


def _card_with_audits(card: PrivacyCard, folder: Path, tables: Mapping[str, object]) -> PrivacyCard:
    """Return the card with the outcome of the replay audit in the folder, if the run is private."""
    if "privacy" not in tables:
        return card
    audits = replay_text(folder, tables)
    return replace(card, texts=(*card.texts, CardText(name="Audits", text=f"{audits[:1].upper()}{audits[1:]}.")))


def run_texts(summary: Summary) -> list[CardText]:
    """Return texts on network, clients, rounds, scores, traffic and seed of a run, if they are recorded."""
    clients = f"{summary.clients:,}, {_sampling_text(summary)}"
    facts = [
        CardText(name="Network", text=f"{summary.model or 'unknown'}, {summary.parameters or 0:,} parameters"),
        CardText(name="Clients", text=clients),
        CardText(name="Rounds", text=_rounds_text(summary)),
        *_score_texts(summary),
        CardText(name="Traffic of a client", text=_traffic_text(summary)),
    ]
    if summary.local_training:
        facts.append(CardText(name="Local training", text=summary.local_training.plan_text))
    facts.append(CardText(name="Seed", text=str(summary.seed)))
    return facts


def _rounding_texts(folder: Path) -> list[CardText]:
    """Return a text on rounding error over a typical update's norm, for runs with integer sums without noise."""
    file = folder / "diagnostics.jsonl"
    found = median_rounding(read_lines(file, RoundRecord, running=True)) if file.exists() else None
    if found is None:
        return []
    words = (
        f"an error of at most {significant_text(found)} times the norm of a typical update (integers of the secure sum)"
    )
    return [CardText(name="Rounding", text=words)]


def _sampling_text(summary: Summary) -> str:
    if summary.sampling == "all":
        return "all take part in every round"
    return f"{summary.cohort:,} a round in the mean ({sampler_name(summary.sampling)} sampling)"


def _rounds_text(summary: Summary) -> str:
    words = f"{summary.rounds:,}"
    if summary.stopped_by == "budget":
        words += ", ended by the privacy budget"
    if summary.aborted_rounds:
        scheduled = summary.sampling not in ("poisson", "fixed", "all")
        why = "interrupted after their charge" if scheduled else "too many clients dropped out"
        words += f", {summary.aborted_rounds:,} of them without a result ({why})"
    return words


def _score_texts(summary: Summary) -> list[CardText]:
    """Return the test and validation scores of the last round, except the accuracy on the card."""
    found = []
    for key, value in summary.scores.items():
        if key.startswith(("test_", "validation_")) and key != "test_accuracy" and value is not None:
            shown = f"{value:.2%}" if key.endswith("accuracy") else significant_text(value, 4)
            found.append(CardText(name=key.replace("_", " ").capitalize(), text=f"{shown}, last round"))
    if (alone := summary.public_samples_alone) is not None:
        score = f"test loss {significant_text(alone, 4)}" if summary.test_accuracy is None else f"{alone:.2%}"
        words = "the same network trained on them, without any client (1,000 steps of Adam)"
        found.append(CardText(name="Public samples alone", text=f"{score}: {words}"))
    return found


def _traffic_text(summary: Summary) -> str:
    words = f"{summary.uplink_bytes_per_client_round or 0:,} bytes up in a round"
    if summary.downlink_bytes_per_client_round is not None:
        words += f", {summary.downlink_bytes_per_client_round:,} bytes down"
    if summary.secure_sum_bytes_per_client_round:
        words += f"; {summary.secure_sum_bytes_per_client_round:,} bytes up for keys and shares of the secure sum"
    if summary.model_bits_per_parameter:
        stored = size_text(summary.model_bits_per_parameter * (summary.parameters or 0) / 8)
        words += f"; the model as seed and mask: {stored}"
    return words


def _shell_commands(folder: Path, summary: Summary, tables: Mapping[str, object]) -> list[str]:
    """Return command lines that repeat and audit the run, for a shell in the run folder."""
    commands = [repeat_command(folder, tables, config="config.toml", out="again")]
    if summary.epsilon is not None:
        loads = "".join(f" --load {shlex.quote(one.path)}" for one in read_own_code(folder) if one.sha256)
        commands += [
            f"{f'dpfed audit .{loads}':<38} # recomputes epsilon and compares the charges with what ran",
            "dpfed ledger verify ledger.jsonl       # checks that no entry was changed or removed",
        ]
    return commands


def _configuration_of(file: Path) -> tuple[str, dict[str, object]]:
    """Return the text of config.toml and its tables; empty ones if it cannot be read."""
    try:
        text = read_text(file, at_most=LARGEST_CONFIGURATION)
        return text, tomllib.loads(text)
    except (OSError, ValueError):
        return "", {}


_LONGEST = 300


def live_page(folder: Path) -> str:
    """Return the HTML page of the run in this folder. RunError if the folder holds no run."""
    if (folder / "summary.json").exists():
        found = read_finished(folder)
        group = inline_svg(plot_run(found.summary.method, found.metrics))
        return run_page(folder, found.summary, found.metrics, group, live=True)
    try:
        config = tomllib.loads(text_of_file(folder / "config.toml", at_most=LARGEST_CONFIGURATION))
        file = folder / "metrics.jsonl"
        metrics = read_lines(file, MetricsLine, running=True) if file.exists() else []
        return _running_page(config, metrics)
    except (Unavailable, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        words = f"has no {error}" if isinstance(error, KeyError) else str(error)[:_LONGEST]
        raise RunError(f"{folder}: holds no run ({words}). Name a folder that `dpfed run` wrote.") from None


def _running_page(config: Mapping[str, Any], metrics: Sequence[MetricsLine]) -> str:
    return render_page(
        "live.html",
        title=f"{config['method']['name']} on {config['data']['name']}",
        state=f"round {len(metrics)}",
        connects=True,
        scripts=("live.js",),
        card=PrivacyCard(
            badges=(Badge(label="in progress", tone="mind"),), numbers=_live_numbers(config, metrics), texts=()
        ),
        group=inline_svg(plot_run(config["method"]["name"], metrics)),
    )


def _live_numbers(config: Mapping[str, Any], metrics: Sequence[MetricsLine]) -> tuple[CardNumber, ...]:
    planned = int(config["federation"]["rounds"])
    numbers = [CardNumber(name="rounds", value=f"{len(metrics):,}", conditions=f"of {planned:,}")]
    if not metrics:
        return tuple(numbers)
    last = metrics[-1]
    if last.epsilon is not None:
        private = private_table(config)
        beside = f"of {downwards(private['epsilon'])}" if "epsilon" in private else "no budget is set"
        beside += f", at delta {upwards(private.get('delta'))}, for one {'client' if 'privacy' in config else 'record'}"
        numbers.append(CardNumber(name="epsilon spent, at most", value=upwards(last.epsilon), conditions=beside))
    tested = [line for line in metrics if line.test_accuracy is not None or line.test_loss is not None]
    if tested:
        line = tested[-1]
        name, score = "test accuracy", percent_text(line.test_accuracy)
        if line.test_accuracy is None:
            name, score = "test loss", significant_text(line.test_loss or 0.0, 4)
        numbers.append(CardNumber(name=name, value=score, conditions=f"round {line.round:,}"))
    if last.uplink_megabytes:
        numbers.append(
            CardNumber(name="sent by all clients", value=size_text(1e6 * last.uplink_megabytes), conditions="")
        )
    return tuple(numbers)
