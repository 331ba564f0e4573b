"""The page of a running run, from its files so far; for a finished run its report."""

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
from dpfed.report.figures.run import plot_run
from dpfed.report.finished_run import read_finished
from dpfed.report.page import rendered
from dpfed.report.privacy_card import Badge, Card, Number
from dpfed.report.run import page_of
from dpfed.report.units import percent, significant, size

_LONGEST = 300


def live_page(folder: Path) -> str:
    """Return the page of a run. RunError if there is no run in this folder."""
    if (folder / "summary.json").exists():
        found = read_finished(folder)
        group = plot_run(found.summary.method, found.metrics, None)
        return page_of(folder, found.summary, found.metrics, group, live=True)
    try:
        config = tomllib.loads(text_of_file(folder / "config.toml", at_most=LARGEST_CONFIGURATION))
        file = folder / "metrics.jsonl"
        metrics = read_lines(file, MetricsLine, running=True) if file.exists() else []
        return _running(config, metrics)
    except (Unavailable, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        words = f"has no {error}" if isinstance(error, KeyError) else str(error)[:_LONGEST]
        raise RunError(f"{folder}: holds no run ({words}). `dpfed run` makes them.") from None


def _running(config: Mapping[str, Any], metrics: Sequence[MetricsLine]) -> str:
    return rendered(
        "live.html",
        title=f"{config['method']['name']} on {config['data']['name']}",
        state=f"round {len(metrics)}",
        connects=True,
        scripts=("live.js",),
        card=Card(badges=(Badge(words="under way", mood="mind"),), numbers=_numbers(config, metrics), facts=()),
        group=plot_run(config["method"]["name"], metrics, None),
    )


def _numbers(config: Mapping[str, Any], metrics: Sequence[MetricsLine]) -> tuple[Number, ...]:
    planned = int(config["federation"]["rounds"])
    numbers = [Number(name="rounds", value=f"{len(metrics):,}", beside=f"of {planned:,}")]
    if not metrics:
        return tuple(numbers)
    last = metrics[-1]
    if last.epsilon is not None:
        budget = config.get("privacy", {}).get("epsilon")
        beside = "no budget is set" if budget is None else f"of {downwards(budget)}"
        numbers.append(Number(name="epsilon spent, at most", value=upwards(last.epsilon), beside=beside))
    tested = [line for line in metrics if line.test_accuracy is not None or line.test_loss is not None]
    if tested:
        line, beside = tested[-1], f"round {tested[-1].round:,}"
        if line.test_accuracy is not None:
            numbers.append(Number(name="test accuracy", value=percent(line.test_accuracy), beside=beside))
        else:
            numbers.append(Number(name="test loss", value=significant(line.test_loss or 0.0, 4), beside=beside))
    if last.uplink_megabytes:
        numbers.append(Number(name="sent by all clients", value=size(1e6 * last.uplink_megabytes), beside=""))
    return tuple(numbers)
