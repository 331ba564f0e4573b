"""Data of an experiment's figures, drawn by `dpfed.report.figures.experiment`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accounting.rounding import upwards
from dpfed.report.collection import RunCollection
from dpfed.report.figures.experiment import Curve, Point, plot_curves, plot_over_axis
from dpfed.report.figures.figure import LineLook, distinct_looks
from dpfed.report.figures.inline import ChartGroup, inline_svg
from dpfed.report.statistics import RunGroup, group_mean, groups_of, short_axis_name
from dpfed.runs.sweep_folder import QUANTITIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_CURVES = 8
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
            name=_name_without_axes(group, x),
            x=_number_or_text(group.at[x]) if x in group.at else None,
            mean=one.mean,
            std=one.std or 0.0,
            published=None if one.published is None else one.published.value,
        )
        for group in groups
        if (one := group_mean(group, quantity.key, collection)).mean is not None
    ]
    path = folder / "axis.png"
    xlabel = _AXES.get(x, short_axis_name(x))
    drawing = plot_over_axis(
        points,
        path,
        xlabel=xlabel,
        ylabel=quantity.heading,
        logarithmic=x == _EPSILON,
        bounds=x in (_EPSILON, "privacy.noise_multiplier"),
        looks=_row_looks(collection),
    )
    yield _page_panels(drawing, path, f"{quantity.heading.capitalize()}, over {xlabel}. Bars: deviation over seeds.")


def _accuracy_over_epsilon(collection: RunCollection, groups: Sequence[RunGroup], folder: Path) -> Iterator[ChartGroup]:
    epsilons = {group.name: group_mean(group, "epsilon", collection).mean for group in groups}
    different = {upwards(epsilon) for epsilon in epsilons.values() if epsilon is not None}
    if len(different) < 2 or collection.x == _EPSILON:
        return
    varying = _epsilon_axes(groups, epsilons)
    points = [
        Point(name=_name_without_axes(group, *varying), x=epsilons[group.name], mean=one.mean, std=one.std or 0.0)
        for group in groups
        if (one := group_mean(group, _ACCURACY, collection)).mean is not None
    ]
    path = folder / "privacy-utility.png"
    drawing = plot_over_axis(
        points,
        path,
        xlabel="epsilon (upper bound)",
        ylabel="test accuracy, last round, %",
        logarithmic=True,
        bounds=True,
        looks=_row_looks(collection),
    )
    caption = (
        "Accuracy against epsilon. Bars: deviation over seeds; dashed lines: not private. Points are comparable if "
        "delta, unit and adjacency are equal (see the table of readings)."
    )
    yield _page_panels(drawing, path, caption)


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
    path = folder / "uplink-utility.png"
    drawing = plot_over_axis(
        points,
        path,
        xlabel="uplink of all clients, MB",
        ylabel="test accuracy, last round, %",
        logarithmic=True,
        bounds=False,
        looks=_row_looks(collection),
    )
    yield _page_panels(drawing, path, "Accuracy against the uplink of all clients. Bars: deviation over seeds.")


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
                lines.setdefault(_name_without_axes(group, axis), set()).add(upwards(epsilon))
        if any(len(values) > 1 for values in lines.values()):
            found.append(axis)
    return found


def _name_without_axes(group: RunGroup, *axes: str) -> str:
    words = ", ".join(f"{short_axis_name(name)} {value}" for name, value in group.at.items() if name not in axes)
    return f"{group.row}, {words}" if words else group.row


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
