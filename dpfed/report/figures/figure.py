"""Common style of figures, and a distinct line look for each row of a table; variants of a method share a colour."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.errors import ConfigError, RunError
from dpfed.runs.durable_files import put

if TYPE_CHECKING:
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
            _figure_height(columns, rows) + below,
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


def _save(drawing: Any, path: Path, *, pdf: bool) -> None:
    try:
        _write_figure(drawing, path)
        if pdf:
            _write_figure(drawing, path.with_suffix(".pdf"), metadata={"CreationDate": None})
    except OSError as error:
        raise RunError(f"{path}: the plot cannot be written ({error}).") from error


def _figure_height(columns: int, rows: int) -> float:
    return 3.1 * rows if rows > 1 else (4.2 if columns == 1 else 3.8)


def _write_figure(drawing: Figure, path: Path, **how: Any) -> None:
    content = io.BytesIO()
    drawing.savefig(content, format=path.suffix.removeprefix(".") or "png", **how)
    put(path, content.getvalue())


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
