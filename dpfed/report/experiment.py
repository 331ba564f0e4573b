"""The page of an experiment: one self-contained HTML file, its figures as PNG and PDF, its numbers as CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accounting.rounding import downwards, upwards
from dpfed.errors import RunError
from dpfed.report.collection import SEED, Collection, write_results
from dpfed.report.evidence import NOTHING, nothing_learned
from dpfed.report.experiment_figures import draw_figures
from dpfed.report.finished_run import FinishedRun
from dpfed.report.page import rendered
from dpfed.report.privacy_card import Card, short_card_of
from dpfed.report.readings import readings_of
from dpfed.report.statistics import Group, Mean, groups_of, mean_of, short, write_table
from dpfed.runs.durable_files import put
from dpfed.runs.quantities import QUANTITIES

_MOST_PLACES = 4
_MOST_COLUMNS = 9
_MOST_CARDS = 12


def write_experiment_report(collection: Collection, folder: Path) -> Path:
    """Write report.html, the figures, results.csv and table.csv into `folder`; return the page."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_results(collection.runs, folder / "results.csv")
        write_table(collection, folder / "table.csv")
        figures = draw_figures(collection, folder)
        page = rendered("experiment.html", title=collection.title, figures=figures, **_content(collection))
        put(folder / "report.html", page.encode())
    except OSError as error:
        raise RunError(f"{folder}: the report cannot be written ({error}).") from None
    return folder / "report.html"


def _content(collection: Collection) -> dict[str, Any]:
    groups = groups_of(collection)
    axes = list(dict.fromkeys(name for group in groups for name in group.at))
    means = {id(group): [mean_of(group, key, collection) for key in collection.quantities] for group in groups}
    columns = [[means[id(group)][i].published for group in groups] for i in range(len(collection.quantities))]
    beside = [_decimals([one.value for one in column if one is not None]) for column in columns]
    readings = [one for group in groups if (one := readings_of(group)) is not None]
    return {
        "c": collection,
        "cards": _cards(groups, collection),
        "axes": [short(axis) for axis in axes],
        "headings": [
            (QUANTITIES[key].heading, 1 if decimals is None else 3)
            for key, decimals in zip(collection.quantities, beside, strict=True)
        ],
        "dense": len(axes) + sum(1 if decimals is None else 3 for decimals in beside) > _MOST_COLUMNS,
        "lines": [_table_line(group, axes, means[id(group)], beside) for group in groups],
        "beside": any(decimals is not None for decimals in beside),
        "folders": list(collection.folders),
        "differing": list(collection.differing.items()),
        "places": _places(collection),
        "missing": ", ".join(dict.fromkeys(one.row for one in collection.missing)),
        "readings": readings,
        "starred": any(one.assumed for one in readings),
        "not_protected": _notes([(run.row, run.summary.not_protected) for run in collection.runs]),
        "nothing_learned": _nothing_learned(collection.runs),
        "notes": _notes([(run.row, run.summary.notes) for run in collection.runs]),
        "costs": [_cost(group, collection) for group in groups],
        "seeds": ", ".join(dict.fromkeys(str(run.summary.seed) for run in collection.runs)),
        "upwards": upwards,
        "downwards": downwards,
        "percent": lambda value: "failed" if value is None else f"{value:.2%}",
        "pairs": lambda table: ", ".join(f"{key} {value}" for key, value in table.items() if key != SEED),
    }


def _cards(groups: Sequence[Group], collection: Collection) -> list[tuple[str, Card]]:
    """Return, for few run folders, the card of each row's run with the largest epsilon, which bounds the others'."""
    if collection.x is not None or not collection.differences or len(groups) > _MOST_CARDS:
        return []
    worst = [max(group.runs, key=lambda run: run.summary.epsilon or 0.0) for group in groups]
    return [(group.name, short_card_of(run.summary)) for group, run in zip(groups, worst, strict=True)]


def _table_line(
    group: Group, axes: Sequence[str], means: Sequence[Mean], beside: Sequence[int | None]
) -> dict[str, object]:
    return {
        "row": group.row,
        "at": [group.at.get(axis, "") for axis in axes],
        "n": len(group.runs),
        "cells": [_cell(one, decimals) for one, decimals in zip(means, beside, strict=True)],
    }


def _decimals(published: Sequence[float]) -> int | None:
    """Return the decimals that the paper prints in this column, or None if it prints nothing."""
    return max((len(f"{value:.10f}".rstrip("0").partition(".")[2]) for value in published), default=None)


def _cell(one: Mean, decimals: int | None) -> dict[str, object]:
    """Return a table cell. `decimals`: of the published column, None if there is none."""
    digits, there = one.digits, one.published
    ours = "–" if one.mean is None else one.quantity.printed(one.mean, digits)
    if one.std is not None and (one.std or one.quantity.unit == "%"):  # sizes are often equal for every seed
        ours += f" ± {one.std:,.{digits}f}"
    return {
        "ours": ours,
        "with_published": decimals is not None,
        "published": "–" if there is None else f"{there.value:,.{decimals or 0}f}",
        "where": "" if there is None else there.where,
        "difference": "–" if one.difference is None else one.quantity.difference(one.difference, digits),
    }


def _places(collection: Collection) -> str:
    places = list(dict.fromkeys(one.where for one in collection.published if one.where))
    if len(places) > _MOST_PLACES:
        return "Sources of the published numbers: table.csv."
    return f"Published: {'; '.join(places)}." if places else ""


def _notes(said: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the notes of the runs' summaries; each note names its rows unless all rows have it."""
    rows: dict[str, dict[str, None]] = {}
    for row, notes in said:
        for note in notes:
            rows.setdefault(note, {})[row] = None
    all_rows = len({row for row, _ in said})
    return [note if len(some) == all_rows else f"{note} ({', '.join(some)})" for note, some in rows.items()]


def _nothing_learned(runs: Sequence[FinishedRun]) -> str | None:
    """Return a sentence that names the rows with runs that learned nothing; None if there are none."""
    poor = [run for run in runs if nothing_learned(run.metrics)]
    if not poor:
        return None
    rows = ", ".join(f"{row} ({n})" for row, n in Counter(run.row for run in poor).items())
    return (
        f"Nothing was learned in {len(poor)} of {len(runs)} runs: {rows}. The last model gains at most "
        f"{NOTHING:.0%} of what a constant prediction lacks; `dpfed diagnose` says why."
    )


def _cost(group: Group, collection: Collection) -> dict[str, object]:
    keys = ("uplink_bits_per_parameter", "uplink_bytes_per_client_round", "uplink_megabytes_total", "rounds", "seconds")
    return {
        "name": group.name,
        "numbers": [_cell(mean_of(group, key, collection), None)["ours"] for key in keys],
        "device": ", ".join(dict.fromkeys(str(run.summary.device) for run in group.runs)),
    }
