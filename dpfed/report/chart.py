"""A figure as inline SVG: a picture without JavaScript, in the colours of the page, whose marks are read by hovering.

It is drawn for a column of 350 pixels, so that its words are as large on a telephone as on a wide screen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from markupsafe import Markup

from dpfed.report.ticks import Scale, label, linear, logarithmic

WIDTH, HEIGHT = 350, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 42
_MOST_MARKS = 300
_MOST_DOTS = 30
_SHAPES = ("circle", "square", "up", "diamond", "down", "plus", "cross")
_NEAREST_LABELS = 40
_MOST_LETTERS = 16


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point, what is said of it when a person points at it, and how far it may be off."""

    x: float
    y: float
    words: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Marks of one colour (0 to 6), dash and shape. `band`: low to high is an area, else a bar at each mark. `across`:
    the first mark's y is a line from side to side."""

    name: str
    marks: Sequence[Mark]
    colour: int = 0
    dash: int = 0
    shape: int = 0
    joined: bool = True
    band: bool = False
    hollow: bool = False
    across: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """`title` says what is measured, in which unit; `names`: words at 0, 1, 2, ... in place of numbers of x."""

    title: str
    xlabel: str
    series: Sequence[Series]
    log_x: bool = False
    whole_x: bool = False
    from_zero: bool = False
    names: Sequence[str] = ()
    legend: bool = field(default=False)


def svg(chart: Chart) -> Markup:
    """The picture; empty where there is nothing to draw."""
    marks = [mark for one in chart.series for mark in one.marks]
    if not marks:
        return Markup("")
    x, y = _x_scale(chart), _y_scale(chart, marks)
    drawn = [_axes(chart, x, y), *(_series(one, x, y) for one in chart.series)]
    read = [_read(mark, one, x, y) for one in chart.series for mark in _thinned(one.marks)]
    data = escape(json.dumps(read, ensure_ascii=False, separators=(",", ":")))
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{escape(_said(chart))}" '
        f'data-marks="{data}">{"".join(drawn)}</svg>'
    )


def swatch(one: Series) -> Markup:
    """The line and shape of a series, for a legend."""
    line = "" if not one.joined and not one.across else '<path class="line" d="M1 7H27"/>'
    dot = "" if one.across else _dot(one, 14, 7)
    return Markup(
        f'<svg class="swatch" viewBox="0 0 28 14" aria-hidden="true"><g class="{_classes(one)}">{line}{dot}</g></svg>'
    )


def _said(chart: Chart) -> str:
    return f"{chart.title}, over {chart.xlabel}. {'; '.join(one.name for one in chart.series)}"


def _x_scale(chart: Chart) -> Scale:
    if chart.names:
        last = len(chart.names) - 1
        return Scale(low=-0.5, high=last + 0.5, ticks=tuple(float(i) for i in range(last + 1)))
    values = [mark.x for one in chart.series if not one.across for mark in one.marks] or [0.0, 1.0]
    if chart.log_x and min(values) > 0:
        return logarithmic(min(values), max(values))
    return linear(0.0 if chart.whole_x else min(values), max(values), whole=chart.whole_x)


def _y_scale(chart: Chart, marks: Sequence[Mark]) -> Scale:
    ends = [value for mark in marks for value in (mark.y, mark.low, mark.high) if value is not None]
    return linear(min([0.0, *ends]) if chart.from_zero else min(ends), max(ends), most=5)


def _at(mark_x: float, mark_y: float, x: Scale, y: Scale) -> tuple[float, float]:
    across = _LEFT + x.place(mark_x) * (WIDTH - _LEFT - _RIGHT)
    return round(across, 1), round(HEIGHT - _BOTTOM - y.place(mark_y) * (HEIGHT - _TOP - _BOTTOM), 1)


def _axes(chart: Chart, x: Scale, y: Scale) -> str:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = []
    for tick in y.ticks:
        _, at = _at(x.low, tick, x, y)
        parts.append(f'<path class="grid" d="M{_LEFT} {at}H{right}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4}" text-anchor="end">{label(tick)}</text>')
    before = float("-inf")
    for tick in x.ticks:
        at, _ = _at(tick, y.low, x, y)
        if at - before < _NEAREST_LABELS and not chart.names:
            continue
        words = _shortened(chart.names[int(tick)]) if chart.names else label(tick)
        parts.append(f'<text x="{at}" y="{bottom + 16}" text-anchor="middle">{escape(words)}</text>')
        before = at
    parts.append(f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>')
    middle = (_LEFT + right) / 2
    return "".join(parts) + f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(chart.xlabel)}</text>'


def _shortened(words: str) -> str:
    return words if len(words) <= _MOST_LETTERS else words[: _MOST_LETTERS - 1] + "…"


def _classes(one: Series) -> str:
    return f"s c{one.colour} d{one.dash}" + (" hollow" if one.hollow else "")


def _series(one: Series, x: Scale, y: Scale) -> str:
    marks = _thinned(one.marks)
    if one.across:
        _, at = _at(x.low, marks[0].y, x, y)
        return f'<g class="{_classes(one)}"><path class="line" d="M{_LEFT} {at}H{WIDTH - _RIGHT}"/></g>'
    places = [_at(mark.x, mark.y, x, y) for mark in marks]
    parts = [_spread(one, marks, x, y)]
    if one.joined and len(places) > 1:
        parts.append(f'<path class="line" d="M{"L".join(f"{across} {up}" for across, up in places)}"/>')
    if not one.joined or len(places) <= _MOST_DOTS:
        parts += [_dot(one, across, up) for across, up in places]
    return f'<g class="{_classes(one)}">{"".join(parts)}</g>'


def _spread(one: Series, marks: Sequence[Mark], x: Scale, y: Scale) -> str:
    """The area between low and high, or a bar at each mark that has them."""
    ends = [
        (_at(mark.x, mark.low, x, y), _at(mark.x, mark.high, x, y)[1])
        for mark in marks
        if mark.low is not None and mark.high is not None
    ]
    if not ends:
        return ""
    if not one.band:
        return "".join(f'<path class="bar" d="M{across} {low}V{high}"/>' for (across, low), high in ends)
    there = "L".join(f"{across} {low}" for (across, low), _ in ends)
    back = "L".join(f"{across} {high}" for (across, _), high in reversed(ends))
    return f'<path class="band" d="M{there}L{back}Z"/>'


def _dot(one: Series, x: float, y: float) -> str:
    shape = _SHAPES[one.shape % len(_SHAPES)]
    if shape == "circle":
        return f'<circle class="dot" cx="{x}" cy="{y}" r="3"/>'
    outline = {
        "square": f"M{x - 3} {y - 3}h6v6h-6Z",
        "up": f"M{x} {y - 4}l4 7h-8Z",
        "down": f"M{x} {y + 4}l4 -7h-8Z",
        "diamond": f"M{x} {y - 4}l4 4l-4 4l-4 -4Z",
        "plus": f"M{x - 4} {y}h8M{x} {y - 4}v8",
        "cross": f"M{x - 3} {y - 3}l6 6M{x - 3} {y + 3}l6 -6",
    }[shape]
    return f'<path class="dot" d="{outline}"/>'


def _read(mark: Mark, one: Series, x: Scale, y: Scale) -> list[object]:
    across, up = _at(x.high if one.across else mark.x, mark.y, x, y)
    return [across, up, one.colour, mark.words]


def _thinned(marks: Sequence[Mark]) -> Sequence[Mark]:
    """Not more than can be told apart; the last always."""
    step = -(-len(marks) // _MOST_MARKS)
    return marks if step <= 1 else [*marks[:-1:step], marks[-1]]
