"""One look for every figure."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpfed.errors import ConfigError, RunError
from dpfed.run.durable_files import put

# Okabe and Ito's colours, distinguished with every kind of colour vision.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
FAINT, RULE = "#596170", "#dfe3e8"


@contextmanager
def figure(
    path: Path | None, *, columns: int = 1, rows: int = 1, beside: float = 0.0, below: float = 0.0, pdf: bool = False
) -> Iterator[Any]:
    """Axes to draw on (one, or an array of `columns` times `rows`); the PNG is written to `path`, if any, at the end.

    `beside`, `below`: inches of room for a legend, to the right (`legend_beside`) or under the figure. `pdf`: the same
    as PDF next to it, too.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'dpfed[plots]'.") from None
    drawing = Figure(
        figsize=(
            (6.4 if columns == 1 else (4.7 if rows == 1 else 3.6) * columns) + beside,
            _height(columns, rows) + below,
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
    if path is None:
        return
    try:
        _write(drawing, path)
        if pdf:
            _write(drawing, path.with_suffix(".pdf"), metadata={"CreationDate": None})
    except OSError as error:
        raise RunError(f"{path}: the plot cannot be written ({error}).") from error


def _height(columns: int, rows: int) -> float:
    return 3.1 * rows if rows > 1 else (4.2 if columns == 1 else 3.8)


def _write(drawing: Any, path: Path, **how: Any) -> None:
    content = io.BytesIO()
    drawing.savefig(content, format=path.suffix.removeprefix(".") or "png", **how)
    put(path, content.getvalue())


def legend_beside(axes: Any, *, last: str | None = None) -> None:
    """What the lines of `axes` are, right of the whole figure; the label `last` comes after the others."""
    entries = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=lambda entry: entry[1] == last)
    if entries:
        axes.figure.legend(*zip(*entries, strict=True), loc="outside right upper", frameon=False, fontsize=9)


def plain_log_ticks(axes: Any) -> None:
    """100 instead of a power of ten, and between the powers 2 and 5 of them where there is room; round numbers else."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = axes.get_xlim()
    powers = LogLocator(subs=(1.0,) if high / low > 1000 else (1.0, 2.0, 5.0))
    axes.xaxis.set_major_locator(powers if high / low > 20 else MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
