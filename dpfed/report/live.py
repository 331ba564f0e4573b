"""Live page of a run: from the files written so far, or the report of a finished run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accounting.ledger.regular_file import LARGEST_CONFIGURATION
from accounting.rounding import downwards, upwards
from dpfed.errors import RunError
from dpfed.records.metrics import MetricsLine
from dpfed.records.reading import Unavailable, read_lines, text_of_file
from dpfed.report.figures.inline import inline_svg
from dpfed.report.figures.run import plot_run
from dpfed.report.finished_run import read_finished
from dpfed.report.page import render_page
from dpfed.report.privacy_card import Badge, CardNumber, PrivacyCard
from dpfed.report.run import run_page
from dpfed.report.units import percent_text, significant_text, size_text

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
        budget = config.get("privacy", {}).get("epsilon")
        beside = "no budget is set" if budget is None else f"of {downwards(budget)}"
        numbers.append(CardNumber(name="epsilon spent, at most", value=upwards(last.epsilon), conditions=beside))
    tested = [line for line in metrics if line.test_accuracy is not None or line.test_loss is not None]
    if tested:
        line, beside = tested[-1], f"round {tested[-1].round:,}"
        if line.test_accuracy is not None:
            numbers.append(CardNumber(name="test accuracy", value=percent_text(line.test_accuracy), conditions=beside))
        else:
            numbers.append(
                CardNumber(name="test loss", value=significant_text(line.test_loss or 0.0, 4), conditions=beside)
            )
    if last.uplink_megabytes:
        numbers.append(
            CardNumber(name="sent by all clients", value=size_text(1e6 * last.uplink_megabytes), conditions="")
        )
    return tuple(numbers)
