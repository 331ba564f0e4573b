"""Figures of one run and of an experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter, NullLocator
from numpy.typing import NDArray

from accounting.rounding import upwards
from dpfed.report.figures.figure import (
    LineLook,
    add_tooltips,
    figure,
    figure_of,
    given_or_distinct_looks,
    label_text,
    legend_beside,
    plain_log_ticks,
)
from dpfed.report.privacy_text import percent_text, significant_text, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dpfed.records.round import MetricsLine


def plot_run(
    name: str, lines: Sequence[MetricsLine], path: Path | None = None, *, ax: Sequence[Axes] | None = None
) -> Figure:
    """Return the figure of a run, new or drawn on the panels `ax`, and write it to `path` if given.

    Its two panels show test accuracy over rounds and over uplink megabytes; a private run has a third, epsilon over
    rounds. Without classes, the test loss replaces accuracy.
    """
    charged = [(line, line.epsilon) for line in lines if line.epsilon is not None]
    tested = [(line, line.test_loss) for line in lines if line.test_loss is not None and line.test_accuracy is None]
    label = "test loss"
    if not tested:
        tested = [(line, 100.0 * line.test_accuracy) for line in lines if line.test_accuracy is not None]
        label = "test accuracy, %"
    marker = "o" if len(tested) < 30 else None
    with figure(path, columns=3 if charged else 2, ax=ax) as axes:
        for axis, key in zip(axes, ("round", "uplink_megabytes"), strict=False):
            shown = [one for one in tested if getattr(one[0], key)]  # a logarithmic axis has no zero
            at, height = [float(getattr(line, key)) for line, _ in shown], [score for _, score in shown]
            axis.plot(at, height, marker=marker, markersize=3, label=label_text(name))
            add_tooltips(axis, at, height, [metrics_line_text(line) for line, _ in shown])
            axis.set_ylabel(label)
        axes[0].set_xlabel("rounds")
        axes[0].xaxis.get_major_locator().set_params(integer=True)
        axes[0].legend(frameon=False, fontsize=9)
        axes[1].set(xlabel="uplink of all clients, MB (log)", xscale="log")
        plain_log_ticks(axes[1])
        if charged:
            rounds, spent = [float(line.round) for line, _ in charged], [epsilon for _, epsilon in charged]
            axes[2].plot(rounds, spent)
            add_tooltips(axes[2], rounds, spent, [metrics_line_text(line) for line, _ in charged])
            axes[2].set(xlabel="rounds", ylabel="epsilon spent (upper bound)")
            axes[2].set_ylim(bottom=0)
    return figure_of(axes[0])


def metrics_line_text(line: MetricsLine) -> str:
    """Return a short text of a line of metrics.jsonl: round, score, epsilon and uplink."""
    words = [f"round {line.round:,}"]
    if line.test_accuracy is not None:
        words.append(f"accuracy {percent_text(line.test_accuracy)}")
    elif line.test_loss is not None:
        words.append(f"test loss {significant_text(line.test_loss, 4)}")
    if line.epsilon is not None:
        words.append(f"epsilon {upwards(line.epsilon)}")
    if line.uplink_megabytes:
        words.append(size_text(1e6 * line.uplink_megabytes))
    return ", ".join(words)


_BESIDE = 2.4
_NO_LOOKS: Mapping[str, LineLook] = {}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a figure: accuracies in percent [seeds, points] and uplink megabytes [points] at each of `rounds`."""

    name: str
    rounds: NDArray[np.int64]
    megabytes: NDArray[np.float64]
    accuracies: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Point:
    """Mean and standard deviation over seeds (0 for one seed) of row `name` at `x`; None if the row lacks the axis.
    shown: text of the mean; by default with two decimals, which are no text of a bound."""

    name: str
    x: float | str | None
    mean: float
    std: float
    published: float | None = None
    shown: str = ""


def plot_curves(
    curves: Sequence[Curve],
    path: Path | None = None,
    *,
    looks: Mapping[str, LineLook] = _NO_LOOKS,
    ax: Sequence[Axes] | None = None,
) -> Figure:
    """Return the figure of accuracy over rounds and over megabytes: the mean over seeds, and the range over seeds as a
    band. It is new or drawn on the two panels `ax`; `path` receives a PNG and a PDF.
    """
    looks = given_or_distinct_looks([curve.name for curve in curves], looks)
    with figure(path, columns=2, beside=_BESIDE, pdf=True, ax=ax) as (left, right):
        for curve in curves:
            look = looks[curve.name]
            middle = curve.accuracies.mean(axis=0)
            low, high = curve.accuracies.min(axis=0), curve.accuracies.max(axis=0)
            marker = look.marker if len(middle) < 15 else None
            for axes, x in ((left, curve.rounds), (right, curve.megabytes)):
                shown = x > 0  # a logarithmic axis has no zero
                axes.plot(
                    x[shown],
                    middle[shown],
                    color=look.colour,
                    linestyle=look.style,
                    label=label_text(curve.name),
                    marker=marker,
                    markersize=4,
                )
                if len(curve.accuracies) > 1:
                    axes.fill_between(x[shown], low[shown], high[shown], color=look.colour, alpha=0.2, linewidth=0)
                texts = compress(_curve_texts(curve, middle, low, high), shown)
                add_tooltips(axes, x[shown], middle[shown], list(texts))
        left.set(xlabel="rounds", ylabel="test accuracy, %")
        left.xaxis.get_major_locator().set_params(integer=True)
        right.set(xlabel="uplink of all clients, MB (log)", ylabel="test accuracy, %", xscale="log")
        plain_log_ticks(right)
        if any(len(curve.accuracies) > 1 for curve in curves):
            left.set_ylabel("test accuracy, %, mean and range over seeds")
        _draw_legend(left, ax)
    return figure_of(left)


def _draw_legend(axes: Axes, given: Axes | Sequence[Axes] | None, last: str | None = None) -> None:
    """Draw the legend beside a new figure, or inside the axes that the caller has given."""
    if given is None:
        legend_beside(axes, last=last)
    else:
        axes.legend(frameon=False, fontsize=9)


def _curve_texts(curve: Curve, *middle_low_high: NDArray[np.float64]) -> list[str]:
    several = len(curve.accuracies) > 1
    return [
        f"{curve.name}: {y:.2f}%"
        + (f" ({low:.2f} to {high:.2f})" if several else "")
        + f", round {number:,}, {significant_text(float(megabytes))} MB"
        for number, megabytes, y, low, high in zip(curve.rounds, curve.megabytes, *middle_low_high, strict=True)
    ]


def plot_over_axis(
    points: Sequence[Point],
    path: Path | None = None,
    *,
    xlabel: str,
    ylabel: str,
    logarithmic: bool = False,
    bounds: bool = False,
    looks: Mapping[str, LineLook] = _NO_LOOKS,
    ax: Axes | None = None,
) -> Figure:
    """Return the figure of mean and deviation over x, one line per row; published points are hollow.

    It is new or drawn on `ax`; `path` receives a PNG and a PDF.

    A row without x is a horizontal line. If x is text, no line joins the points, and rows are drawn side by side.
    bounds: True if x is an upper bound, whose labels are rounded up.
    """
    names = list(dict.fromkeys(point.name for point in points))
    looks = given_or_distinct_looks(names, looks)
    values = list(dict.fromkeys(point.x for point in points if point.x is not None))
    numbers = [value for value in values if not isinstance(value, str)]
    words = len(numbers) < len(values)
    place = {value: float(i) if words else float(value) for i, value in enumerate(values)}
    wide = [name for name in names if any(point.name == name and point.x is not None for point in points)]
    with figure(path, beside=_BESIDE, pdf=True, ax=ax) as axes:
        for name in names:
            aside = _row_offset(wide.index(name), len(wide)) if words and name in wide else 0.0
            shifted = {value: x + aside for value, x in place.items()}
            here = [point for point in points if point.name == name]
            _draw_row(axes, here, shifted, looks[name], joined=not words, bounds=bounds)
        if any(point.published is not None for point in points):
            axes.plot([], [], linestyle="none", marker="o", color="#555555", markerfacecolor="white", label="published")
        axes.set(xlabel=label_text(xlabel), ylabel=ylabel)
        if words:
            axes.set_xticks(list(place.values()), [label_text(str(value)).replace(", ", ",\n") for value in values])
            axes.grid(visible=False, axis="x")
        elif logarithmic or (len(numbers) > 2 and min(numbers) > 0 and max(numbers) / min(numbers) > 20):
            _set_log_axis(axes, numbers, upwards if bounds else "{:.3g}".format)
        _draw_legend(axes, ax, last="published")
    return figure_of(axes)


def _row_offset(number: int, rows: int) -> float:
    """Return the horizontal offset that separates a row from the others; offsets are symmetric around 0."""
    return (number - (rows - 1) / 2) * min(0.12, 0.7 / rows)


def _draw_row(
    axes: Axes,
    points: Sequence[Point],
    place: Mapping[float | str, float],
    look: LineLook,
    *,
    joined: bool,
    bounds: bool,
) -> None:
    placed = sorted(((place[point.x], point) for point in points if point.x is not None), key=lambda both: both[0])
    if placed:
        x, means, stds = [x for x, _ in placed], [one.mean for _, one in placed], [one.std for _, one in placed]
        axes.errorbar(
            x,
            means,
            yerr=stds if any(stds) else None,
            color=look.colour,
            linestyle=look.style if joined and len(placed) > 1 else "none",
            marker=look.marker,
            markersize=5,
            capsize=3,
            label=label_text(points[0].name),
        )
        add_tooltips(axes, x, means, [_point_text(one, bounds) for _, one in placed])
        published = [(x, one.published) for x, one in placed if one.published is not None]
        x, there = [x for x, _ in published], [one for _, one in published]
        axes.plot(
            x, there, color=look.colour, linestyle="none", marker=look.marker, markerfacecolor="white", markersize=6
        )
        add_tooltips(axes, x, there, [f"{points[0].name}, published: {one:g}" for one in there])
    for point in points:
        if point.x is None:
            label = None if placed else label_text(point.name)
            axes.axhline(point.mean, color=look.colour, linestyle=(0, (4, 2)), linewidth=1.2, label=label)
            if point.std:
                axes.axhspan(point.mean - point.std, point.mean + point.std, color=look.colour, alpha=0.12, linewidth=0)


def _point_text(point: Point, bounds: bool) -> str:
    at = point.x if isinstance(point.x, str) else (upwards(point.x) if bounds else significant_text(point.x or 0.0))
    std = f" ± {point.std:.2f}" if point.std else ""
    return f"{point.name}: {point.shown or f'{point.mean:.2f}'}{std} at {at}"


def _set_log_axis(axes: Axes, values: Sequence[float], words: Callable[[float], str]) -> None:
    """Set a logarithmic x axis with ticks at those values whose labels do not overlap."""
    axes.set_xscale("log")
    shown: list[float] = []
    for value in sorted(values):
        if not shown or math.log10(value / shown[-1]) > 0.06 * math.log10(max(values) / min(values) or 10):
            shown.append(value)
    axes.set_xticks(shown)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
