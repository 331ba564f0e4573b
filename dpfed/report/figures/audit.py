"""Figure of an upload's audit: the claim, and the evidence of each pair of neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray

from dpfed.report.figures.figure import COLOURS, figure
from dpfed.report.figures.inline import ChartGroup, inline, tooltips

Floats = NDArray[np.float64]

_LEAST = 1e-7
_ACROSS = 4


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Error rates of one pair at its threshold, with their upper confidence limits."""

    name: str
    rejected: bool
    false_positive_rate: float
    false_negative_rate: float
    fpr_upper: float
    fnr_upper: float


def plot_audit(
    epsilons: Floats, claimed: Floats, rates: Floats, least_missed: Floats, pairs: Sequence[Observed], path: Path
) -> ChartGroup:
    """Draw two panels, and return them for a page.

    Left: the claimed profile at `epsilons` and each pair's lower bound. Right: the claim and the pairs as error rates.
    """
    entries = len(pairs) + 2
    rows = -(-entries // _ACROSS)
    with figure(path, columns=2, below=0.2 * rows) as axes:
        left, right = axes
        left.plot(epsilons, np.where(claimed > _LEAST, claimed, np.nan), color="black", label="claimed")
        right.fill_between(rates, 0, least_missed, color="black", alpha=0.08, linewidth=0, label="refutes the claim")
        right.plot(rates, least_missed, color="black", label="what the claim allows")
        for k, one in enumerate(pairs):
            colour, mark = _colour(k, len(pairs)), "x" if one.rejected else "o"
            shown = _least_delta(epsilons, one.fpr_upper, one.fnr_upper)
            left.plot(epsilons, np.where(shown > _LEAST, shown, np.nan), color=colour, linewidth=1)
            points = one.false_positive_rate, one.false_negative_rate
            limits = one.fpr_upper, one.fnr_upper
            right.plot(*zip(points, limits, strict=True), color=colour, linewidth=1)
            right.plot(*points, mark, color=colour, markersize=4, label=one.name)
            tooltips(right, [points[0]], [points[1]], [_error_rates_text(one)])
        left.set(yscale="log", ylim=(_LEAST, 1.5), xlabel="epsilon", ylabel="delta")
        left.set_title("claimed, and shown at least by each pair", fontsize=9)
        right.set(
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
            xlabel="without the client, and guessed to be there",
            ylabel="with the client, and missed",
        )
        right.set_title("wrong guesses: how often, and at most", fontsize=9)
        right.figure.legend(
            *right.get_legend_handles_labels(), loc="outside lower center", ncols=_ACROSS, frameon=False, fontsize=9
        )
        return inline(right.figure, files=path.name)


def _colour(k: int, count: int) -> object:
    """Return a different colour for every pair; black is the claim's."""
    if count < len(COLOURS):
        return COLOURS[k]
    return colormaps["turbo"](0.05 + 0.9 * k / (count - 1))


def _error_rates_text(one: Observed) -> str:
    return f"{one.name}: {one.false_positive_rate:.1%} false positives, {one.false_negative_rate:.1%} false negatives"


def _least_delta(epsilons: Floats, fpr: float, fnr: float) -> Floats:
    """Return the smallest delta of any mechanism with error rates of at most these."""
    forth, back = 1 - fnr - np.exp(epsilons) * fpr, 1 - fpr - np.exp(epsilons) * fnr
    return np.asarray(np.maximum(forth, back))
