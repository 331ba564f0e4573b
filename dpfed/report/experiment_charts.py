"""The figures of an experiment as charts of its page: the data are those of the files for print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting.rounding import upwards
from dpfed.report.chart import Chart, Mark, Series
from dpfed.report.figures.experiment import Curve, Point
from dpfed.report.figures.looks import Look, looks_for, places_of
from dpfed.report.units import significant

_PUBLISHED = ", published"


def curve_charts(curves: Sequence[Curve], looks: Mapping[str, Look]) -> list[Chart]:
    """Accuracy over rounds and over bytes: means, and the range of the seeds as a band."""
    looks = looks_for([curve.name for curve in curves], looks)
    over_rounds = [_curve(curve, curve.rounds.astype(float), looks) for curve in curves]
    over_bytes = [_curve(curve, curve.megabytes, looks) for curve in curves]
    return [
        Chart(title="Test accuracy, %, over rounds", xlabel="round", whole_x=True, series=over_rounds),
        Chart(
            title="Test accuracy, %, over traffic",
            xlabel="sent by all clients, MB (log)",
            log_x=True,
            series=over_bytes,
        ),
    ]


def _curve(curve: Curve, xs: NDArray[np.float64], looks: Mapping[str, Look]) -> Series:
    colour, dash, shape = places_of(looks[curve.name])
    several = len(curve.accuracies) > 1
    middle, low, high = (f(curve.accuracies, axis=0) for f in (np.mean, np.min, np.max))
    marks = [
        Mark(
            x=float(x),
            y=float(y),
            words=f"{curve.name}: {y:.2f}%" + (f" ({low[i]:.2f} to {high[i]:.2f})" if several else "")
            + f", round {curve.rounds[i]:,}, {significant(float(curve.megabytes[i]))} MB",
            low=float(low[i]) if several else None,
            high=float(high[i]) if several else None,
        )
        for i, (x, y) in enumerate(zip(xs, middle, strict=True))
    ]  # fmt: skip
    return Series(name=curve.name, marks=marks, colour=colour, dash=dash, shape=shape, band=True)


def over_chart(
    points: Sequence[Point],
    *,
    title: str,
    xlabel: str,
    logarithmic: bool,
    bounds: bool,
    looks: Mapping[str, Look],
) -> Chart:
    """Means and deviations over x, a series a row; hollow: published. A row without x is a line across; where x are
    words, nothing lies between them. `bounds`: x is an upper bound, and is rounded so."""
    names = list(dict.fromkeys(point.name for point in points))
    looks = looks_for(names, looks)
    words = list(dict.fromkeys(str(point.x) for point in points if point.x is not None))
    numbers = all(not isinstance(point.x, str) for point in points)
    series: list[Series] = []
    for name in names:
        here = [point for point in points if point.name == name]
        series += _row(name, here, looks[name], words=[] if numbers else words, bounds=bounds)
    return Chart(
        title=title, xlabel=xlabel, series=series, log_x=logarithmic and numbers, names=[] if numbers else words
    )


def _row(name: str, points: Sequence[Point], look: Look, *, words: Sequence[str], bounds: bool) -> list[Series]:
    colour, dash, shape = places_of(look)
    form: dict[str, Any] = {"colour": colour, "shape": shape}
    placed = [(point, _place(point.x, words)) for point in points if point.x is not None]
    placed.sort(key=lambda one: one[1])
    found = []
    if placed:
        marks = [_mark(name, point, x, bounds) for point, x in placed]
        found.append(Series(name=name, marks=marks, dash=dash, joined=not words and len(marks) > 1, **form))
    seen = [
        Mark(x=x, y=point.published, words=f"{name}{_PUBLISHED}: {point.published:g}")
        for point, x in placed
        if point.published is not None
    ]
    if seen:
        found.append(Series(name=f"{name}{_PUBLISHED}", marks=seen, joined=False, hollow=True, **form))
    across = [Mark(x=0.0, y=point.mean, words=f"{name}: {_value(point)}") for point in points if point.x is None]
    return [*found, *(Series(name=name, marks=[mark], dash=1, across=True, **form) for mark in across)]


def _place(x: float | str | None, words: Sequence[str]) -> float:
    return float(words.index(str(x))) if words else float(x or 0.0)


def _mark(name: str, point: Point, x: float, bounds: bool) -> Mark:
    at = str(point.x) if isinstance(point.x, str) else (upwards(x) if bounds else significant(x))
    return Mark(
        x=x,
        y=point.mean,
        words=f"{name}: {_value(point)} at {at}",
        low=point.mean - point.std if point.std else None,
        high=point.mean + point.std if point.std else None,
    )


def _value(point: Point) -> str:
    return f"{point.mean:.2f}" + (f" ± {point.std:.2f}" if point.std else "")
