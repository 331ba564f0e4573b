"""report.html and curves.png of a finished run."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_text
from dpfed.errors import RunError
from dpfed.records.metrics import MetricsLine
from dpfed.records.reading import read_lines
from dpfed.records.replays import replay_text
from dpfed.records.round import RoundRecord
from dpfed.records.summary import Summary
from dpfed.report.evidence import median_rounding, nothing_learned
from dpfed.report.figures.inline import ChartGroup
from dpfed.report.figures.run import plot_run
from dpfed.report.ledger_text import ledger_text
from dpfed.report.page import rendered
from dpfed.report.privacy_card import Card, Fact, card_of
from dpfed.report.privacy_text import sampler_name
from dpfed.report.repeat import repeated
from dpfed.report.units import significant, size
from dpfed.runs.durable_files import put
from dpfed.runs.loop import Outcome
from dpfed.runs.resuming import read_own_code

_COMPLETE = "The run is complete and saved; --resume makes the report."


def write_report(outcome: Outcome) -> None:
    """Write curves.png and report.html into the run folder."""
    plot, target = outcome.folder / "curves.png", outcome.folder / "report.html"
    try:
        group = plot_run(outcome.record.method, outcome.lines, plot)
    except RunError as error:
        raise RunError(f"{error} {_COMPLETE}") from None
    try:
        put(target, page_of(outcome.folder, outcome.record, outcome.lines, group).encode())
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror}). {_COMPLETE}") from None


def page_of(
    folder: Path, summary: Summary, lines: Sequence[MetricsLine], group: ChartGroup, *, live: bool = False
) -> str:
    """Return the page of a finished run. live: True where a server shows it that has shown the run under way."""
    configuration = _configuration(folder / "config.toml")
    return rendered(
        "run.html",
        title=f"{summary.method} on {summary.dataset}",
        connects=live,
        scripts=("live.js",) if live else (),
        card=_with_audits(card_of(summary), folder),
        nothing_learned=nothing_learned(lines),
        group=group,
        ran=[*what_ran(summary), *_rounding(folder)],
        ledger=ledger_text(folder / "ledger.jsonl"),
        commands=_commands(folder, summary, configuration),
        configuration=configuration,
    )


def _with_audits(card: Card, folder: Path) -> Card:
    """Return the card with the replay audit that the folder records."""
    try:
        tables = tomllib.loads(_configuration(folder / "config.toml"))
    except ValueError:
        return card
    if "privacy" not in tables:
        return card
    return replace(card, facts=(*card.facts, Fact(name="Audits", words=f"{replay_text(folder, tables)}.")))


def what_ran(summary: Summary) -> list[Fact]:
    """Return network, clients, rounds, scores, traffic and seed of a run, if they are recorded."""
    clients = f"{summary.clients:,}, {_sampling(summary)}"
    facts = [
        Fact(name="Network", words=f"{summary.model or 'unknown'}, {summary.parameters or 0:,} parameters"),
        Fact(name="Clients", words=clients),
        Fact(name="Rounds", words=_rounds(summary)),
        *_scores(summary),
        Fact(name="Traffic of a client", words=_traffic(summary)),
    ]
    if summary.local_training:
        facts.append(Fact(name="Local training", words=summary.local_training.plan_text))
    facts.append(Fact(name="Seed", words=str(summary.seed)))
    return facts


def _rounding(folder: Path) -> list[Fact]:
    """Return how large rounding is beside a typical update, of a run whose sums are of integers without noise."""
    file = folder / "diagnostics.jsonl"
    found = median_rounding(read_lines(file, RoundRecord, running=True)) if file.exists() else None
    if found is None:
        return []
    words = f"an error of at most {significant(found)} of a typical update's length (integers of the secure sum)"
    return [Fact(name="Rounding", words=words)]


def _sampling(summary: Summary) -> str:
    if summary.sampling == "all":
        return "all in every round"
    return f"{summary.cohort:,} a round in the mean ({sampler_name(summary.sampling)} sampling)"


def _rounds(summary: Summary) -> str:
    words = f"{summary.rounds:,}"
    if summary.stopped_by == "budget":
        words += ", ended by the privacy budget"
    if summary.aborted_rounds:
        scheduled = summary.sampling not in ("poisson", "fixed", "all")
        why = "interrupted after their charge" if scheduled else "too many clients were lost"
        words += f", {summary.aborted_rounds:,} of them without a result ({why})"
    return words


def _scores(summary: Summary) -> list[Fact]:
    """Return the scores that the card does not have."""
    found = []
    for key, value in summary.scores.items():
        if key.startswith(("test_", "validation_")) and key != "test_accuracy" and value is not None:
            shown = f"{value:.2%}" if key.endswith("accuracy") else significant(value, 4)
            found.append(Fact(name=key.replace("_", " ").capitalize(), words=f"{shown}, last round"))
    return found


def _traffic(summary: Summary) -> str:
    words = f"{summary.uplink_bytes_per_client_round or 0:,} bytes up in a round"
    if summary.downlink_bytes_per_client_round is not None:
        words += f", {summary.downlink_bytes_per_client_round:,} bytes down"
    if summary.secure_sum_bytes_per_client_round:
        words += f"; {summary.secure_sum_bytes_per_client_round:,} bytes up are keys and shares of the secure sum"
    if summary.model_bits_per_parameter:
        stored = size(summary.model_bits_per_parameter * (summary.parameters or 0) / 8)
        words += f"; the model as seed and mask: {stored}"
    return words


def _commands(folder: Path, summary: Summary, configuration: str) -> list[str]:
    """Return command lines for a shell in the run's folder."""
    try:
        tables = tomllib.loads(configuration)
    except ValueError:
        tables = {}
    commands = [repeated(folder, tables, config="config.toml", out="again")]
    if summary.epsilon is not None:
        loads = "".join(f" --load {shlex.quote(one.path)}" for one in read_own_code(folder) if one.sha256)
        commands += [
            f"dpfed audit run .{loads}      # recomputes epsilon, checks what was charged against what ran",
            "dpfed ledger verify ledger.jsonl       # no entry edited, lost or moved",
        ]
    return commands


def _configuration(file: Path) -> str:
    try:
        return read_text(file, at_most=LARGEST_CONFIGURATION)
    except (OSError, ValueError):
        return ""
