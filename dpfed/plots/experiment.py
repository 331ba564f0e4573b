"""Figures of an experiment: curves with bands over seeds, accuracy against epsilon, accuracy over an axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.plots.figure import COLOURS, figure, legend_beside

_STYLES = ["-", "--", ":", "-."]
_MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
_BESIDE = 2.4


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line: at each of `rounds` the accuracies in percent of every seed [seeds, points], and the megabytes."""

    name: str
    rounds: NDArray[np.int64]
    megabytes: NDArray[np.float64]
    accuracies: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Point:
    """Mean and deviation over seeds (0 for one) of row `name` at `x`; x None: a row without this axis."""

    name: str
    x: float | str | None
    mean: float
    std: float
    published: float | None = None


def plot_curves(curves: Sequence[Curve], path: Path) -> None:
    """Accuracy over rounds and over megabytes: mean, and the range of the seeds as a band."""
    with figure(path, columns=2, beside=_BESIDE, pdf=True) as (left, right):
        for i, curve in enumerate(curves):
            colour, style = COLOURS[i % len(COLOURS)], _STYLES[i // len(COLOURS) % len(_STYLES)]
            middle = curve.accuracies.mean(axis=0)
            low, high = curve.accuracies.min(axis=0), curve.accuracies.max(axis=0)
            marker = "o" if len(middle) < 15 else None
            for axes, x in ((left, curve.rounds), (right, curve.megabytes)):
                axes.plot(x, middle, color=colour, linestyle=style, label=curve.name, marker=marker, markersize=3)
                if len(curve.accuracies) > 1:
                    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        left.set(xlabel="rounds", ylabel="test accuracy, %")
        left.xaxis.get_major_locator().set_params(integer=True)
        right.set(xlabel="uplink of all clients, MB (log)", ylabel="test accuracy, %", xscale="log")
        _plain_numbers(right)
        if any(len(curve.accuracies) > 1 for curve in curves):
            left.set_title("mean, and range over seeds", fontsize=10)
        legend_beside(left)


def plot_over(points: Sequence[Point], path: Path, *, xlabel: str, ylabel: str, logarithmic: bool = False) -> None:
    """Mean and deviation over x, a line a row; hollow: published. A row without x is a line all across."""
    values = list(dict.fromkeys(point.x for point in points if point.x is not None))
    place: Mapping[float | str | None, float]
    numbers = [value for value in values if not isinstance(value, str)]
    if len(numbers) == len(values):
        place = {value: value for value in numbers}
    else:
        place = {value: float(i) for i, value in enumerate(values)}
    with figure(path, beside=_BESIDE, pdf=True) as axes:
        for i, name in enumerate(dict.fromkeys(point.name for point in points)):
            mine = [point for point in points if point.name == name]
            _draw_row(axes, mine, place, i)
        if any(point.published is not None for point in points):
            axes.plot([], [], linestyle="none", marker="o", color="#555555", markerfacecolor="white", label="published")
        axes.set(xlabel=xlabel, ylabel=ylabel)
        if place and len(numbers) < len(values):
            axes.set_xticks(list(place.values()), [str(value) for value in values])
        elif logarithmic or (len(numbers) > 2 and min(numbers) > 0 and max(numbers) / min(numbers) > 20):
            _logarithmic(axes, numbers)
        legend_beside(axes, last="published")


def _draw_row(axes: Any, points: Sequence[Point], place: Mapping[float | str | None, float], i: int) -> None:
    colour, style = COLOURS[i % len(COLOURS)], _STYLES[i // len(COLOURS) % len(_STYLES)]
    marker = _MARKERS[i % len(_MARKERS)]
    somewhere = sorted((point for point in points if point.x is not None), key=lambda point: place[point.x])
    if somewhere:
        x = [place[point.x] for point in somewhere]
        axes.errorbar(
            x,
            [point.mean for point in somewhere],
            yerr=[point.std for point in somewhere],
            color=colour,
            linestyle=style,
            marker=marker,
            markersize=5,
            capsize=3,
            label=points[0].name,
        )
        seen = [(place[point.x], point.published) for point in somewhere if point.published is not None]
        axes.plot(
            [a for a, _ in seen],
            [b for _, b in seen],
            color=colour,
            linestyle="none",
            marker=marker,
            markerfacecolor="white",
            markersize=6,
        )
    for point in points:
        if point.x is None:
            label = points[0].name if not somewhere else None
            axes.axhline(point.mean, color=colour, linestyle=(0, (4, 2)), linewidth=1.2, label=label)
            if point.std:
                axes.axhspan(point.mean - point.std, point.mean + point.std, color=colour, alpha=0.12, linewidth=0)


def _logarithmic(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic x axis with the values themselves as ticks, as far as they have room."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    axes.set_xscale("log")
    shown: list[float] = []
    for value in sorted(values):
        if not shown or math.log10(value / shown[-1]) > 0.06 * math.log10(max(values) / min(values) or 10):
            shown.append(value)
    axes.set_xticks(shown)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def _plain_numbers(axes: Any) -> None:
    """100 instead of a power of ten, and between the powers 2 and 5 of them where there is room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 1000 else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
