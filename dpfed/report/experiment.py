"""Page of an experiment: a self-contained HTML file, its figures as PNG and PDF, and its numbers as CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accounting.rounding import downwards, upwards
from dpfed.errors import RunError
from dpfed.report.collection import SEED, RunCollection, write_results
from dpfed.report.diagnosis import NOTHING_SHARE, nothing_learned
from dpfed.report.experiment_figures import draw_figures
from dpfed.report.finished_run import FinishedRun
from dpfed.report.page import render_page
from dpfed.report.privacy_card import PrivacyCard, differing_conditions, short_card_of
from dpfed.report.statistics import (
    GroupMean,
    RunGroup,
    group_mean,
    groups_of,
    readings_of,
    short_axis_name,
    write_table,
)
from dpfed.runs.durable_files import put
from dpfed.runs.sweep_folder import QUANTITIES

_MOST_PLACES = 4
_MOST_COLUMNS = 9
_MOST_CARDS = 12


def write_experiment_report(collection: RunCollection, folder: Path) -> Path:
    """Write report.html, the figures, results.csv and table.csv into `folder`; return the path of the page."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_results(collection.runs, folder / "results.csv")
        write_table(collection, folder / "table.csv")
        figures = draw_figures(collection, folder)
        page = render_page("experiment.html", title=collection.title, figures=figures, **_page_content(collection))
        put(folder / "report.html", page.encode())
    except OSError as error:
        raise RunError(f"{folder}: the report cannot be written ({error}).") from None
    return folder / "report.html"


def _page_content(collection: RunCollection) -> dict[str, Any]:
    groups = groups_of(collection)
    axes = list(dict.fromkeys(name for group in groups for name in group.at))
    means = {id(group): [group_mean(group, key, collection) for key in collection.quantities] for group in groups}
    columns = [[means[id(group)][i].published for group in groups] for i in range(len(collection.quantities))]
    beside = [_published_decimals([one.value for one in column if one is not None]) for column in columns]
    readings = [one for group in groups if (one := readings_of(group)) is not None]
    return {
        "c": collection,
        "cards": _privacy_cards(groups, collection),
        "axes": [short_axis_name(axis) for axis in axes],
        "headings": [
            (QUANTITIES[key].heading, 1 if decimals is None else 3)
            for key, decimals in zip(collection.quantities, beside, strict=True)
        ],
        "dense": len(axes) + sum(1 if decimals is None else 3 for decimals in beside) > _MOST_COLUMNS,
        "lines": [_table_line(group, axes, means[id(group)], beside) for group in groups],
        "beside": any(decimals is not None for decimals in beside),
        "private": any(run.summary.epsilon is not None for run in collection.runs),
        "differing_conditions": differing_conditions([(run.row, run.summary) for run in collection.runs]),
        "folders": list(collection.folders),
        "differing": list(collection.differing_values.items()),
        "places": _published_sources(collection),
        "missing": ", ".join(dict.fromkeys(one.row for one in collection.missing_runs)),
        "readings": readings,
        "starred": any(one.other_sampler_ran for one in readings),
        "not_protected": _notes_with_rows([(run.row, run.summary.not_protected) for run in collection.runs]),
        "nothing_learned": _nothing_learned_text(collection.runs),
        "notes": _notes_with_rows([(run.row, run.summary.notes) for run in collection.runs]),
        "costs": [_cost_line(group, collection) for group in groups],
        "seeds": ", ".join(dict.fromkeys(str(run.summary.seed) for run in collection.runs)),
        "upwards": upwards,
        "downwards": downwards,
        "percent": lambda value: "failed" if value is None else f"{value:.2%}",
        "pairs": lambda table: ", ".join(f"{key} {value}" for key, value in table.items() if key != SEED),
    }


def _privacy_cards(groups: Sequence[RunGroup], collection: RunCollection) -> list[tuple[str, PrivacyCard]]:
    """Return a card for each row: that of its run with the largest epsilon. Empty for sweeps and for many rows."""
    if collection.x is not None or not collection.difference_lines or len(groups) > _MOST_CARDS:
        return []
    worst = [max(group.runs, key=lambda run: run.summary.epsilon or 0.0) for group in groups]
    return [(group.name, short_card_of(run.summary)) for group, run in zip(groups, worst, strict=True)]


def _table_line(
    group: RunGroup, axes: Sequence[str], means: Sequence[GroupMean], beside: Sequence[int | None]
) -> dict[str, object]:
    return {
        "row": group.row,
        "at": [group.at.get(axis, "") for axis in axes],
        "n": len(group.runs),
        "conditions": "; ".join(group.conditions),
        "cells": [_table_cell(one, decimals) for one, decimals in zip(means, beside, strict=True)],
    }


def _published_decimals(published: Sequence[float]) -> int | None:
    """Return the number of decimals of the published values of a column, or None if no value is published."""
    return max((len(f"{value:.10f}".rstrip("0").partition(".")[2]) for value in published), default=None)


def _table_cell(one: GroupMean, decimals: int | None) -> dict[str, object]:
    """Return a table cell. `decimals`: number of decimals of the published column, None without such a column."""
    digits, there = one.digits, one.published
    ours = "–" if one.mean is None else one.quantity.printed(one.mean, digits)
    std = one.shown_std
    if std is not None and (std or one.quantity.unit == "%"):  # not for sizes, which are often equal for all seeds
        ours += f" ± {std:,.{digits}f}"
    return {
        "ours": ours,
        "with_published": decimals is not None,
        "published": "–" if there is None else f"{there.value:,.{decimals or 0}f}",
        "where": "" if there is None else there.where,
        "difference": "–" if one.difference is None else one.quantity.difference(one.difference, digits),
    }


def _published_sources(collection: RunCollection) -> str:
    places = list(dict.fromkeys(one.where for one in collection.published if one.where))
    if len(places) > _MOST_PLACES:
        return "Sources of the published numbers: table.csv."
    return f"Published: {'; '.join(places)}." if places else ""


def _notes_with_rows(said: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the distinct notes of the runs' summaries; a note lists its rows unless all rows have it."""
    rows: dict[str, dict[str, None]] = {}
    for row, notes in said:
        for note in notes:
            rows.setdefault(note, {})[row] = None
    all_rows = len({row for row, _ in said})
    return [note if len(some) == all_rows else f"{note} ({', '.join(some)})" for note, some in rows.items()]


def _nothing_learned_text(runs: Sequence[FinishedRun]) -> str | None:
    """Return a sentence that names the rows with runs that learned nothing, or None if every run learned."""
    poor = [run for run in runs if nothing_learned(run.metrics)]
    if not poor:
        return None
    rows = ", ".join(f"{row} ({n})" for row, n in Counter(run.row for run in poor).items())
    return (
        f"Nothing was learned in {len(poor)} of {len(runs)} runs: {rows}. The last model closes at most "
        f"{NOTHING_SHARE:.0%} of the gap from a constant to a perfect prediction; `dpfed diagnose` finds causes."
    )


def _cost_line(group: RunGroup, collection: RunCollection) -> dict[str, object]:
    keys = ("uplink_bits_per_parameter", "uplink_bytes_per_client_round", "uplink_megabytes_total", "rounds", "seconds")
    return {
        "name": group.name,
        "numbers": [_table_cell(group_mean(group, key, collection), None)["ours"] for key in keys],
        "device": ", ".join(dict.fromkeys(str(run.summary.device) for run in group.runs)),
    }
