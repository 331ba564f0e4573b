"""Figure of an audit by trials: the claim, and the evidence of each pair of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray

from dpfed.report.figures.figure import COLOURS, figure
from dpfed.report.figures.inline import add_tooltips

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

_LEAST_DELTA = 1e-7
_LEGEND_COLUMNS = 4


@dataclass(frozen=True, kw_only=True)
class ObservedErrors:
    """Error rates of one pair at its threshold, with their upper confidence limits."""

    name: str
    rejected: bool
    false_positive_rate: float
    false_negative_rate: float
    fpr_upper: float
    fnr_upper: float


def plot_trials(
    epsilons: Floats,
    claimed: Floats,
    rates: Floats,
    least_missed: Floats,
    pairs: Sequence[ObservedErrors],
    path: Path | None = None,
    *,
    ax: Sequence[Axes] | None = None,
) -> Figure:
    """Return the figure, new or drawn on the two panels `ax`, and write it to `path` if given.

    Left: the claimed privacy profile and each pair's lower bound on delta, over epsilon. Right: the claimed trade-off
    curve and each pair's error rates.
    """
    entries = len(pairs) + 2
    rows = -(-entries // _LEGEND_COLUMNS)
    with figure(path, columns=2, below=0.2 * rows, ax=ax) as axes:
        left, right = axes
        left.plot(epsilons, np.where(claimed > _LEAST_DELTA, claimed, np.nan), color="black", label="claimed")
        right.fill_between(rates, 0, least_missed, color="black", alpha=0.08, linewidth=0, label="refutes the claim")
        right.plot(rates, least_missed, color="black", label="what the claim allows")
        for k, one in enumerate(pairs):
            colour, mark = _pair_colour(k, len(pairs)), "x" if one.rejected else "o"
            shown = _least_delta(epsilons, one.fpr_upper, one.fnr_upper)
            left.plot(epsilons, np.where(shown > _LEAST_DELTA, shown, np.nan), color=colour, linewidth=1)
            points = one.false_positive_rate, one.false_negative_rate
            limits = one.fpr_upper, one.fnr_upper
            right.plot(*zip(points, limits, strict=True), color=colour, linewidth=1)
            right.plot(*points, mark, color=colour, markersize=4, label=one.name)
            add_tooltips(right, [points[0]], [points[1]], [_error_rates_text(one)])
        left.set(yscale="log", ylim=(_LEAST_DELTA, 1.5), xlabel="epsilon", ylabel="delta")
        left.set_title("claim, and lower bound of each pair", fontsize=9)
        right.set(
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
            xlabel="false positive rate",
            ylabel="false negative rate",
        )
        right.set_title("error rates, with upper limits", fontsize=9)
        if ax is None:
            right.figure.legend(
                *right.get_legend_handles_labels(),
                loc="outside lower center",
                ncols=_LEGEND_COLUMNS,
                frameon=False,
                fontsize=9,
            )
        else:
            right.legend(frameon=False, fontsize=9)
    drawn: Figure = right.figure
    return drawn


def _pair_colour(k: int, count: int) -> object:
    """Return a different colour for every pair; the claim is black."""
    if count < len(COLOURS):
        return COLOURS[k]
    return colormaps["turbo"](0.05 + 0.9 * k / (count - 1))


def _error_rates_text(one: ObservedErrors) -> str:
    return f"{one.name}: {one.false_positive_rate:.1%} false positives, {one.false_negative_rate:.1%} false negatives"


def _least_delta(epsilons: Floats, fpr: float, fnr: float) -> Floats:
    """Return a lower bound on delta at each epsilon, for every mechanism with a test of at most these error rates."""
    forth, back = 1 - fnr - np.exp(epsilons) * fpr, 1 - fpr - np.exp(epsilons) * fnr
    return np.asarray(np.maximum(forth, back))
