"""Panels of a figure as inline SVG of a page, in the page's colours, with a tooltip at each mark.

The page shows the drawing of the print file; it needs no external file and no script.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from numpy.typing import NDArray

from dpfed.report.figures.figure import COLOURS, FAINT, RULE, figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

_WIDE, _HIGH = 4.2, 2.8
"""Width and height of a panel in inches; 4.2 inches are 302 units, which keeps text readable on a phone."""
_MOST_MARKS = 300
_VARIABLES = {colour.lower(): f"var(--c{i})" for i, colour in enumerate(COLOURS)} | {
    FAINT: "var(--faint)",
    RULE: "var(--rule)",
    "#ffffff": "var(--paper)",
}
_PLAIN: Any = {"svg.fonttype": "none", "svg.hashsalt": "dpfed"}
_NO_DATES = {"Date": None, "Creator": None, "Format": None, "Type": None}


Numbers = Sequence[float] | NDArray[np.generic]


@dataclass(frozen=True, kw_only=True)
class FigurePanel:
    """One pair of axes: its caption and its picture."""

    caption: str
    picture: Markup


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """Entry of a legend: a name, and a picture of a line sample."""

    name: str
    picture: Markup


@dataclass(frozen=True, kw_only=True)
class ChartGroup:
    """Panels of one figure with a caption, a common legend, and the names of the print files."""

    panels: Sequence[FigurePanel]
    legend: Sequence[LegendEntry] = ()
    caption: str = ""
    files: str = ""


def add_tooltips(axes: Any, x: Numbers, y: Numbers, words: Sequence[str]) -> None:
    """Add a tooltip with a text at each (x, y), for pages only; at most 301 marks are kept, including the last one."""
    if not len(x):
        return
    step = -(-len(x) // _MOST_MARKS)
    kept = [*range(0, len(x) - 1, step), len(x) - 1]
    (line,) = axes.plot([x[i] for i in kept], [y[i] for i in kept], "o", alpha=0, zorder=9)
    line.set_gid(f"tooltips-{sum(one.get_gid() is not None for one in axes.lines)}")
    line.tooltips = [words[i] for i in kept]


def inline_svg(drawing: Figure, *, caption: str = "", files: str = "") -> ChartGroup:
    """Return each pair of axes of a figure as a panel, and one legend, which is empty for a single name.

    Axes without data are left out. The figure is not changed.
    """
    axes = list(drawing.axes)
    drawn = [axis for axis in axes if np.isfinite(axis.dataLim.get_points()).any()]
    handles: dict[str, Artist] = {}
    for axis in drawn:
        handles |= {name: handle for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    before, legends = drawing.get_size_inches().copy(), drawing.legends
    drawing.set_size_inches(_WIDE, _HIGH)
    drawing.legends = []  # even a hidden legend would use space beside the axes
    with _hide_artists(*(one for axis in axes if (one := axis.get_legend()) is not None)):
        panels = [_axes_panel(drawing, axis) for axis in drawn]
    drawing.set_size_inches(*before)
    drawing.legends = legends
    legend = (
        [LegendEntry(name=name, picture=_legend_sample(one)) for name, one in handles.items()]
        if len(handles) > 1
        else []
    )
    return ChartGroup(panels=panels, legend=legend, caption=caption, files=files)


def _axes_panel(drawing: Figure, axis: Any) -> FigurePanel:
    """Return the panel of one pair of axes; its caption is the title, or else "y over x": no two panels share it."""
    title, label = axis.get_title(), f"{axis.get_ylabel()}, over {axis.get_xlabel().removesuffix(' (log)')}"
    caption = (title or label)[:1].upper() + (title or label)[1:]
    aside = axis.title if title else axis.yaxis.label
    place = axis.get_subplotspec()
    words = {line.get_gid(): line.tooltips for line in axis.lines if line.get_gid()}
    with _hide_artists(aside, *(other for other in drawing.axes if other is not axis)):
        axis.set_subplotspec(drawing.add_gridspec(1, 1)[0])
        said = f"{title}, over {axis.get_xlabel()}" if title else caption
        picture = _svg_markup(drawing, said, words)
        axis.set_subplotspec(place)
    return FigurePanel(caption=caption, picture=picture)


def _legend_sample(handle: Artist) -> Markup:
    with figure(None) as axes:
        drawing = axes.figure
        axes.remove()
        drawing.set_size_inches(28 / 72, 14 / 72)
        drawing.set_layout_engine("none")
        drawing.legend(
            [handle], [""], loc="center", frameon=False, borderpad=0, borderaxespad=0, handletextpad=0, handlelength=2.4
        )
        return _svg_markup(drawing, "", {}, css='class="swatch" aria-hidden="true"')


@contextmanager
def _hide_artists(*artists: Artist) -> Iterator[None]:
    for one in artists:
        one.set(visible=False, in_layout=False)
    try:
        yield
    finally:
        for one in artists:
            one.set(visible=True, in_layout=True)


def _svg_markup(drawing: Figure, said: str, words: dict[str, Sequence[str]], css: str = "") -> Markup:
    content = io.BytesIO()
    with rc_context(_PLAIN):
        drawing.savefig(content, format="svg", transparent=True, metadata=_NO_DATES)
    text = content.getvalue().decode()
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None  # matplotlib always writes a viewBox
    text = text[text.index("<g ") : text.rindex("</svg>")]
    for name, notes in words.items():
        marks = re.search(rf'<g id="{name}">.*?</g>\s*</g>', text, flags=re.S)
        assert marks is not None  # the invisible line drawn by `add_tooltips`
        text = text.replace(marks[0], _mark_places(marks[0], notes))
    text = re.sub(r' id="(?!m|p[0-9a-f]{6})[^"]*"| id="matplotlib[^"]*"| transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(
        r"font(-family)?: ((?:[\d.]+px)?)[^;\"]*'[^;\"]*",
        lambda found: f"font{found[1] or ''}: {found[2]} system-ui, sans-serif",
        text,
    )
    text = re.sub(r"#[0-9a-f]{6}\b(?=[;\"])", lambda found: _VARIABLES.get(found[0], found[0]), text)
    text = re.sub(r"\s+", " ", text)
    css = css or f'role="img" aria-label="{escape(said)}"'
    return Markup(f'<svg viewBox="{box[1]}" {css}>{text}</svg>')


def _mark_places(marks: str, notes: Sequence[str]) -> str:
    """Return the marks of a line as circles with tooltips."""
    places = re.findall(r'<use [^>]*?x="([\d.]+)" y="([\d.]+)"', marks)
    assert len(places) == len(notes)
    return "".join(
        f'<circle class="mark" cx="{x}" cy="{y}" r="6"><title>{escape(words)}</title></circle>'
        for (x, y), words in zip(places, notes, strict=True)
    )
