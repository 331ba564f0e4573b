"""Figure of a partition: the number of samples of each label at each client."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpfed.report.figures.figure import COLOURS, figure

_MOST_CLIENTS = 100


def plot_partition(counts: NDArray[np.int64], path: Path | None = None, *, ax: Sequence[Axes] | None = None) -> Figure:
    """Return the figure of counts [clients, labels] (`Partition.label_counts`), and write it to `path` if given.

    Two panels, drawn on the caller's axes `ax` if given, show counts and sizes. Counts are shown for the first 100
    clients; white means no sample, and colours follow the square root, so that few samples are visible. Sizes are shown
    for all clients, sorted.
    """
    shown = counts[:_MOST_CLIENTS]
    sizes = np.sort(counts.sum(axis=1))[::-1]
    with figure(path, columns=2, ax=ax) as (labels, bars):
        drawn = labels.imshow(
            np.ma.masked_equal(shown.T, 0),
            cmap="viridis_r",
            norm=PowerNorm(0.5, vmin=0, vmax=int(counts.max(initial=1)) or 1),
            aspect="auto",
            origin="lower",
            interpolation="nearest",
        )
        labels.grid(visible=False)
        labels.figure.colorbar(drawn, ax=labels)
        labels.set(xlabel=f"client{_shown_part_text(shown, counts)}", ylabel="label")
        labels.set_title("samples of each label; white: none", fontsize=10)
        for axis in (labels.xaxis, labels.yaxis):
            axis.get_major_locator().set_params(integer=True)
        bars.fill_between(np.arange(len(sizes) + 1), np.append(sizes, sizes[-1:]), step="post", color=COLOURS[0])
        bars.set(xlabel="clients, largest first", ylabel="samples", xlim=(0, len(sizes)))
        bars.set_ylim(bottom=0)
        empty = f", {np.count_nonzero(sizes == 0):,} empty" if np.any(sizes == 0) else ""
        bars.set_title(f"{sizes.sum():,} samples, {len(sizes):,} clients{empty}", fontsize=10)
    drawing: Figure = bars.figure
    return drawing


def _shown_part_text(shown: NDArray[np.int64], counts: NDArray[np.int64]) -> str:
    return "" if len(shown) == len(counts) else f", the first {len(shown)} of {len(counts):,}"
