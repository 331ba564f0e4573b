"""Common style of figures, and a distinct line look for each row of a table; variants of a method share a colour.

On a page, panels are inline SVG in the page's colours, with a tooltip at each mark. The page shows the drawing of the
print file; it needs no external file and no script.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from dpfed.errors import ConfigError, RunError
from dpfed.runs.durable_files import put

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours by Okabe and Ito, which can be distinguished with every kind of colour vision.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
FAINT, RULE = "#596170", "#dfe3e8"
LineStyle = str | tuple[int, tuple[int, ...]]
_STYLES: list[LineStyle] = ["-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1))]
_MARKERS = ["o", "s", "^", "D", "v", "P", "X"]


def import_pandas() -> Any:
    """Return the module pandas. ConfigError if it is not installed."""
    try:
        import pandas as library
    except ImportError as error:
        raise ConfigError(f"to_pandas: pandas is not installed ({error}). pip install pandas") from None
    return library


@contextmanager
def figure(
    path: Path | None,
    *,
    columns: int = 1,
    rows: int = 1,
    beside: float = 0.0,
    below: float = 0.0,
    pdf: bool = False,
    ax: Axes | Sequence[Axes] | None = None,
) -> Iterator[Any]:
    """Yield axes to draw on (one, or an array of `columns` times `rows`); at the end write the PNG to `path`.

    beside, below: inches for a legend, to the right of (`legend_beside`) or below the figure. pdf: True to write a PDF
    next to the PNG. ax: the caller's axes, one per panel; ConfigError for a different number of axes.
    """
    if ax is not None:
        several = list(ax) if isinstance(ax, Iterable) else [ax]
        if len(several) != columns * rows:
            raise ConfigError(
                f"ax: {len(several)} axes for {columns * rows} panels. Give one for each panel, in their order."
            )
        for axis in several:
            axis.set_prop_cycle(color=COLOURS)
        yield several[0] if len(several) == 1 else several
        if path is not None:
            _save(several[0].figure, path, pdf=False)
        return
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'dpfed[plots]'.") from None
    drawing = Figure(
        figsize=(
            (6.4 if columns == 1 else (4.7 if rows == 1 else 3.6) * columns) + beside,
            (3.1 * rows if rows > 1 else 4.2 if columns == 1 else 3.8) + below,
        ),
        dpi=150,
        layout="constrained",
    )
    FigureCanvasAgg(drawing)
    axes = drawing.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_prop_cycle(color=COLOURS)
        axis.grid(color=RULE, linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["bottom", "left"]].set_color(FAINT)
        axis.tick_params(which="both", color=FAINT)
    yield axes if len(axes) > 1 else axes[0]
    if path is not None:
        _save(drawing, path, pdf=pdf)


def figure_of(axes: Any) -> Figure:
    """Return the figure to which the axes belong, for a caller who has not given them."""
    drawing: Figure = axes.figure
    return drawing


def _save(drawing: Any, path: Path, *, pdf: bool) -> None:
    try:
        _write_figure(drawing, path)
        if pdf:
            _write_figure(drawing, path.with_suffix(".pdf"), metadata={"CreationDate": None})
    except OSError as error:
        raise RunError(f"{path}: the plot cannot be written ({error}).") from error


def _write_figure(drawing: Figure, path: Path, **how: Any) -> None:
    content = io.BytesIO()
    drawing.savefig(content, format=path.suffix.removeprefix(".") or "png", **how)
    put(path, content.getvalue())


def label_text(name: str) -> str:
    """Return a name as a label: matplotlib would set text between dollars as mathematics, and hide a leading "_"."""
    return f"{' ' * name.startswith('_')}{name}".replace("$", r"\$")


def legend_beside(axes: Axes, *, last: str | None = None) -> None:
    """Draw the legend of `axes` to the right of the whole figure, with the label `last` at its end."""
    entries = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=lambda entry: entry[1] == last)
    if entries:
        axes.figure.legend(*zip(*entries, strict=True), loc="outside right upper", frameon=False, fontsize=9)


def plain_log_ticks(axes: Axes) -> None:
    """Set ticks of a logarithmic x axis as plain numbers: powers of ten, their multiples by 2 and 5 if they fit."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = axes.get_xlim()
    powers = LogLocator(subs=(1.0,) if high / low > 1000 else (1.0, 2.0, 5.0))
    axes.xaxis.set_major_locator(powers if high / low > 20 else MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


@dataclass(frozen=True, kw_only=True)
class LineLook:
    """Colour, line style and marker of a line, in matplotlib's notation."""

    colour: str
    style: object
    marker: str


def distinct_looks(names: Sequence[str]) -> dict[str, LineLook]:
    """Return a distinct look for each of up to 35 names. Up to seven names have different colours.

    More than seven names of the form "method, variant" have the colour of their method and the style and marker of
    their variant, if there are enough styles. Otherwise colours repeat with different styles.
    """
    names = list(dict.fromkeys(names))
    found = _looks_by_variant(names) if len(names) > len(COLOURS) else None
    return found or {name: _look_at(i % len(COLOURS), i // len(COLOURS), i) for i, name in enumerate(names)}


def given_or_distinct_looks(names: Sequence[str], given: Mapping[str, LineLook]) -> Mapping[str, LineLook]:
    """Return the given look of each name, or of the row that starts the name ("row, keep 0.1").

    If a name has no given look or two names share one, return new looks for all names.
    """
    names = list(dict.fromkeys(names))
    rows = {name: _row_of_name(name, given) for name in names}
    if None in rows.values() or len(set(rows.values())) < len(names):
        return distinct_looks(names)
    return {name: given[row] for name, row in rows.items() if row is not None}


def _row_of_name(name: str, given: Mapping[str, LineLook]) -> str | None:
    return max((row for row in given if f"{name}, ".startswith(f"{row}, ")), key=len, default=None)


def _looks_by_variant(names: Sequence[str]) -> dict[str, LineLook] | None:
    parts = {name: name.partition(", ")[::2] for name in names}
    methods = list(dict.fromkeys(method for method, _ in parts.values()))
    variants = list(dict.fromkeys(variant for _, variant in parts.values() if variant))
    if any(not variant and [one for one, _ in parts.values()].count(method) > 1 for method, variant in parts.values()):
        variants.insert(0, "")
    if len(methods) in (1, len(names)) or len(methods) > len(COLOURS) or len(variants) > len(_STYLES):
        return None
    return {
        name: _look_at(methods.index(method), variants.index(variant) if variant in variants else 0)
        for name, (method, variant) in parts.items()
    }


def _look_at(colour: int, style: int, marker: int | None = None) -> LineLook:
    """Return a look from these indices; the style shifts the marker, because colours and markers have equal periods."""
    return LineLook(
        colour=COLOURS[colour],
        style=_STYLES[style % len(_STYLES)],
        marker=_MARKERS[(style if marker is None else marker + style) % len(_MARKERS)],
    )


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
    legend = [
        LegendEntry(name=name.replace(r"\$", "$").strip(), picture=_legend_sample(one))
        for name, one in handles.items()
        if len(handles) > 1
    ]
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
    from matplotlib import rc_context

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
