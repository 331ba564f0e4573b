"""The page of a run that is under way, from what it has written so far; of a finished one, its report."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from accounting.ledger.regular_file import LARGEST_CONFIGURATION, LARGEST_LINES, read_text
from accounting.rounding import downwards, upwards
from dpfed.errors import RunError
from dpfed.report.figures.run import Records, plot_run
from dpfed.report.finished_run import read_finished
from dpfed.report.page import rendered
from dpfed.report.privacy_card import Badge, Card, Number, score_of
from dpfed.report.run import page_of
from dpfed.report.units import size

_LONGEST = 300


def live_page(folder: Path) -> str:
    """RunError where there is no run in this folder."""
    if (folder / "summary.json").exists():
        found = read_finished(folder)
        return page_of(folder, found.summary, plot_run(found.summary["method"], found.metrics, None), live=True)
    try:
        config = tomllib.loads(read_text(folder / "config.toml", at_most=LARGEST_CONFIGURATION))
        metrics = _lines(folder / "metrics.jsonl")
        return _running(config, metrics)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        words = f"has no {error}" if isinstance(error, KeyError) else str(error)[:_LONGEST]
        raise RunError(f"{folder}: holds no run ({words}). `dpfed run` makes them.") from None


def _running(config: Mapping[str, Any], metrics: Records) -> str:
    return rendered(
        "live.html",
        title=f"{config['method']['name']} on {config['data']['name']}",
        state=f"round {len(metrics)}",
        connects=True,
        scripts=("live.js",),
        card=Card(badges=(Badge(words="under way", mood="mind"),), numbers=_numbers(config, metrics), facts=()),
        group=plot_run(config["method"]["name"], metrics, None),
    )


def _numbers(config: Mapping[str, Any], metrics: Records) -> tuple[Number, ...]:
    planned = int(config["federation"]["rounds"])
    numbers = [Number(name="rounds", value=f"{len(metrics):,}", beside=f"of {planned:,}")]
    if not metrics:
        return tuple(numbers)
    last = metrics[-1]
    if last.get("epsilon") is not None:
        budget = config.get("privacy", {}).get("epsilon")
        beside = "no budget is set" if budget is None else f"of {downwards(budget)}"
        numbers.append(Number(name="epsilon spent, at most", value=upwards(last["epsilon"]), beside=beside))
    tested = [line for line in metrics if line.get("test_accuracy", line.get("test_loss")) is not None]
    if tested:
        numbers.append(replace(score_of(tested[-1]), beside=f"round {tested[-1]['round']:,}"))
    if last.get("uplink_megabytes") is not None:
        numbers.append(Number(name="sent by all clients", value=size(1e6 * last["uplink_megabytes"]), beside=""))
    return tuple(numbers)


def _lines(file: Path) -> list[dict[str, Any]]:
    """Whole lines."""
    if not file.exists():
        return []
    return [json.loads(line) for line in read_text(file, at_most=LARGEST_LINES).split("\n")[:-1]]
