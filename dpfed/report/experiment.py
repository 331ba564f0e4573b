"""Page of an experiment: a self-contained HTML file, its figures as PNG and PDF, and its numbers as CSV.

The figures' data are drawn by `dpfed.report.figures.experiment`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accounting.rounding import downwards, upwards
from dpfed.errors import RunError
from dpfed.records.summary import FinishedRun
from dpfed.report.collection import SEED, RunCollection, write_results
from dpfed.report.diagnosis import NOTHING_SHARE, nothing_learned
from dpfed.report.figures.experiment import Curve, Point, plot_curves, plot_over_axis
from dpfed.report.figures.figure import ChartGroup, LineLook, distinct_looks, inline_svg
from dpfed.report.page import render_page
from dpfed.report.privacy_card import PrivacyCard, differing_conditions, short_card_of
from dpfed.report.privacy_text import percent_text, significant_text
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_CURVES = 8
_LAST_ROUND = "test accuracy, last round, %"
_ACCURACY, _UPLINK, _EPSILON = "test_accuracy", "uplink_megabytes_total", "privacy.epsilon"
_AXES = {
    "method.keep": "share of entries kept (method.keep)",
    _EPSILON: "target epsilon (privacy.epsilon)",
    "privacy.noise_multiplier": "noise multiplier",
    "data.alpha": "Dirichlet parameter (data.alpha)",
}


def draw_figures(collection: RunCollection, folder: Path) -> list[ChartGroup]:
    """Write every figure for which the runs have data, as PNG and PDF, and return its panels for a page."""
    groups = groups_of(collection)
    drawn = (_quantity_over_x, _accuracy_over_epsilon, _accuracy_over_bytes, _accuracy_curves)
    return [figure for draw in drawn for figure in draw(collection, groups, folder)]


def _quantity_over_x(collection: RunCollection, groups: Sequence[RunGroup], folder: Path) -> Iterator[ChartGroup]:
    x = collection.x
    if x is None or len({group.at[x] for group in groups if x in group.at}) < 2:
        return
    quantity = QUANTITIES[collection.quantities[0]]
    points = [
        Point(
            name=group.name_without(x),
            x=_number_or_text(group.at[x]) if x in group.at else None,
            mean=one.mean,
            std=one.std or 0.0,
            published=None if one.published is None else one.published.value,
            shown=quantity.printed(one.mean, one.digits),
        )
        for group in groups
        if (one := group_mean(group, quantity.key, collection)).mean is not None
    ]
    xlabel = _AXES.get(x, short_axis_name(x))
    yield _panels_over_axis(
        collection,
        points,
        folder / "axis.png",
        f"{quantity.heading.capitalize()}, over {xlabel}. Bars: deviation over seeds.",
        xlabel=xlabel,
        ylabel=quantity.heading,
        logarithmic=x == _EPSILON,
        bounds=x in (_EPSILON, "privacy.noise_multiplier"),
    )


def _accuracy_over_epsilon(collection: RunCollection, groups: Sequence[RunGroup], folder: Path) -> Iterator[ChartGroup]:
    epsilons = {group.name: group_mean(group, "epsilon", collection).mean for group in groups}
    different = {upwards(epsilon) for epsilon in epsilons.values() if epsilon is not None}
    if len(different) < 2 or collection.x == _EPSILON:
        return
    varying = _epsilon_axes(groups, epsilons)
    points = [
        Point(name=group.name_without(*varying), x=epsilons[group.name], mean=one.mean, std=one.std or 0.0)
        for group in groups
        if (one := group_mean(group, _ACCURACY, collection)).mean is not None
    ]
    caption = (
        "Accuracy against epsilon. Bars: deviation over seeds; dashed lines: not private. Points are comparable if "
        "delta, unit and adjacency are equal (see the table of readings)."
    )
    labels = {"xlabel": "epsilon (upper bound)", "ylabel": _LAST_ROUND}
    path = folder / "privacy-utility.png"
    yield _panels_over_axis(collection, points, path, caption, **labels, logarithmic=True, bounds=True)


def _accuracy_over_bytes(collection: RunCollection, groups: Sequence[RunGroup], folder: Path) -> Iterator[ChartGroup]:
    """Draw accuracy against the uplink bytes of all clients."""
    sent = {group.name: group_mean(group, _UPLINK, collection).mean for group in groups}
    different = {f"{megabytes:.4g}" for megabytes in sent.values() if megabytes}
    if len(different) < 2 or collection.x is not None:
        return
    points = [
        Point(name=group.name, x=sent[group.name], mean=one.mean, std=one.std or 0.0)
        for group in groups
        if (one := group_mean(group, _ACCURACY, collection)).mean is not None and sent[group.name]
    ]
    caption = "Accuracy against the uplink of all clients. Bars: deviation over seeds."
    labels = {"xlabel": "uplink of all clients, MB", "ylabel": _LAST_ROUND}
    yield _panels_over_axis(collection, points, folder / "uplink-utility.png", caption, **labels, logarithmic=True)


def _accuracy_curves(collection: RunCollection, groups: Sequence[RunGroup], folder: Path) -> Iterator[ChartGroup]:
    """Draw all accuracy curves in one figure if there are few, else one figure for each point of the axes."""
    parts: dict[str, list[RunGroup]] = {}
    for group in groups:
        words = group.name.removeprefix(group.row).removeprefix(", ")
        parts.setdefault("" if len(groups) <= _MOST_CURVES else words, []).append(group)
    everywhere = parts.pop("", []) if len(parts) > 1 else []
    for i, (words, some) in enumerate(parts.items(), start=1):
        drawn = [curve for group in (*everywhere, *some) if (curve := _group_curve(group, bool(words))) is not None]
        if any(len(curve.rounds) > 1 for curve in drawn):
            path = folder / ("curves.png" if len(parts) == 1 else f"curves-{i}.png")
            where = f" at {words}" if words else ""
            caption = f"Accuracy over rounds and over the uplink of all clients{where}."
            yield _page_panels(plot_curves(drawn, path, looks=_row_looks(collection)), path, caption)


def _panels_over_axis(
    collection: RunCollection, points: Sequence[Point], path: Path, caption: str, **options: Any
) -> ChartGroup:
    """Return the panels of a figure of points. options: labels and scale, as of `plot_over_axis`."""
    return _page_panels(plot_over_axis(points, path, looks=_row_looks(collection), **options), path, caption)


def _page_panels(drawing: Figure, path: Path, caption: str) -> ChartGroup:
    """Return the panels of a figure that was written to `path` as a PNG and a PDF."""
    return inline_svg(drawing, caption=caption, files=f"{path.name}, {path.with_suffix('.pdf').name}")


def _row_looks(collection: RunCollection) -> dict[str, LineLook]:
    """Return the line look of each row, the same in every figure."""
    return distinct_looks([run.row for run in collection.runs])


def _group_curve(group: RunGroup, row_only: bool) -> Curve | None:
    """Return the curve of a group over the rounds in which every seed was evaluated, or None without such rounds."""
    each = [{line.round: line for line in run.metrics if line.test_accuracy is not None} for run in group.runs]
    rounds = sorted(set.intersection(*map(set, each)))
    if not rounds:
        return None
    return Curve(
        name=group.row if row_only else group.name,
        rounds=np.array(rounds),
        megabytes=np.mean([[lines[r].uplink_megabytes for r in rounds] for lines in each], axis=0),
        accuracies=100 * np.array([[lines[r].test_accuracy for r in rounds] for lines in each]),
    )


def _epsilon_axes(groups: Sequence[RunGroup], epsilons: dict[str, float | None]) -> list[str]:
    """Return the axes along which epsilon changes; the points along such an axis are joined by one line."""
    axes = dict.fromkeys(name for group in groups for name in group.at)
    found = []
    for axis in axes:
        lines: dict[str, set[str]] = {}
        for group in groups:
            if axis in group.at and (epsilon := epsilons[group.name]) is not None:
                lines.setdefault(group.name_without(axis), set()).add(upwards(epsilon))
        if any(len(values) > 1 for values in lines.values()):
            found.append(axis)
    return found


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


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
        "starred": any(one.starred for one in readings),
        "not_protected": _notes_with_rows([(run.row, run.summary.not_protected) for run in collection.runs]),
        "nothing_learned": _nothing_learned_text(collection.runs),
        "notes": _notes_with_rows([(run.row, run.summary.notes) for run in collection.runs]),
        "costs": [_cost_line(group, collection) for group in groups],
        "seeds": ", ".join(dict.fromkeys(str(run.summary.seed) for run in collection.runs)),
        "upwards": upwards,
        "downwards": downwards,
        "score": _candidate_score,
        "pairs": lambda table: ", ".join(f"{key} {value}" for key, value in table.items() if key != SEED),
    }


def _candidate_score(scores: Mapping[str, Any]) -> str:
    """Return the validation accuracy of a tuning candidate or, if targets are not classes, its validation loss."""
    accuracy, loss = scores.get("validation_accuracy"), scores.get("validation_loss")
    if accuracy is not None:
        return percent_text(accuracy)
    return "failed" if loss is None else significant_text(loss, 4)


def _privacy_cards(groups: Sequence[RunGroup], collection: RunCollection) -> list[tuple[str, PrivacyCard]]:
    """Return a card for each row: that of its worst run. Empty for sweeps and for many rows."""
    if collection.x is not None or not collection.difference_lines or len(groups) > _MOST_CARDS:
        return []
    return [(group.name, short_card_of(group.worst)) for group in groups]


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
    ours, std, there = one.shown_mean, one.shown_std, one.published
    if std is not None and (std or one.quantity.unit == "%"):  # not for sizes, which are often equal for all seeds
        ours += f" ± {std:,.{one.digits}f}"
    return {
        "ours": ours,
        "with_published": decimals is not None,
        "published": "–" if there is None else f"{there.value:,.{decimals or 0}f}",
        "where": "" if there is None else there.where,
        "difference": one.shown_difference,
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
