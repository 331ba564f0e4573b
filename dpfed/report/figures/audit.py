"""Figures of audits, by trials and of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray

from dpfed.report.figures.figure import COLOURS, add_tooltips, figure, figure_of, label_text

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
            right.plot(*points, mark, color=colour, markersize=4, label=label_text(one.name))
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
    return figure_of(right)


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


_MOST_BARS = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class CanaryScores:
    """Canary scores in claimed noise standard deviations; claimed: N(0, 1) if absent, N(shift, 1) if present."""

    present: Floats
    absent: Floats
    shift: float


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseRatios:
    """Ratio of each round's noise standard deviation to the charged one, and the limits of the test."""

    rounds: Sequence[int]
    ratios: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class CohortSizes:
    """Sizes of the cohorts, and the claimed probabilities `mass` of the sizes first, first + 1, ..."""

    sizes: Sequence[int]
    smallest_size: int
    mass: Floats


def plot_audit(
    canaries: CanaryScores | None,
    noise: NoiseRatios | None,
    cohorts: CohortSizes | None,
    path: Path | None = None,
    *,
    ax: Sequence[Axes] | None = None,
) -> Figure:
    """Return the figure, new or drawn on the three panels `ax`, and write it to `path` if given.

    A panel without data has a note instead.
    """
    with figure(path, columns=3, ax=ax) as axes:
        _draw_canaries(axes[0], canaries)
        _draw_noise(axes[1], noise)
        _draw_cohorts(axes[2], cohorts)
    return figure_of(axes[0])


def _draw_canaries(axis: Axes, found: CanaryScores | None) -> None:
    if found is None:
        _draw_empty_panel(axis, "canaries", "the run had no canaries")
        return
    everything = np.concatenate([found.present, found.absent])
    low, high = min(float(everything.min()), -3.0), max(float(everything.max()), found.shift + 3.0)
    bins = np.linspace(low, high, 13)
    at = np.linspace(low, high, 400)
    for scores, centre, colour, claimed, name in (
        (found.absent, 0.0, COLOURS[0], COLOURS[2], "absent"),
        (found.present, found.shift, COLOURS[1], COLOURS[3], "present"),
    ):
        axis.hist(scores, bins=list(bins), density=True, alpha=0.35, color=colour, label=f"{len(scores)} {name}")
        law = np.exp(-((at - centre) ** 2) / 2) / np.sqrt(2 * np.pi)
        axis.plot(at, law, "--", color=claimed, linewidth=1.8, label=f"claimed, {name}")
    axis.set_ylim(top=1.35 * axis.get_ylim()[1])  # leave room for the legend
    axis.set(xlabel="canary score, in claimed noise std", ylabel="density", title="canaries")
    axis.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")


def _draw_noise(axis: Any, found: NoiseRatios | None) -> None:
    if found is None or not len(found.rounds):
        _draw_empty_panel(axis, "noise", "the run has no noise on sums")
        return
    axis.fill_between(
        found.rounds, found.low, found.high, step="mid", alpha=0.2, color=COLOURS[2], label="limits for a correct run"
    )
    inside = (found.ratios >= found.low) & (found.ratios <= found.high)
    rounds = np.asarray(found.rounds)
    axis.axhline(1.0, color=COLOURS[6], linewidth=0.8)
    axis.plot(rounds[inside], found.ratios[inside], "o", markersize=3, color=COLOURS[0], label="a round")
    if not inside.all():
        axis.plot(rounds[~inside], found.ratios[~inside], "x", markersize=6, color=COLOURS[1], label="outside")
    kept = [f"{low:.3f} to {high:.3f}" for low, high in zip(found.low, found.high, strict=True)]
    words = [
        f"round {at}: {ratio:.3f} of the charged noise; limits for a correct run: {limits}"
        for at, ratio, limits in zip(rounds, found.ratios, kept, strict=True)
    ]
    add_tooltips(axis, list(rounds), list(found.ratios), words)
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.25 * (high - low))  # leave room for the legend
    axis.set(xlabel="round", ylabel="noise std over charged std", title="noise in the sum")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")


def _draw_cohorts(axis: Any, found: CohortSizes | None) -> None:
    if found is None or not len(found.sizes):
        _draw_empty_panel(axis, "cohorts", "the run has no cohort sizes")
        return
    middles, counts, expected = grouped_sizes(found)
    width = float(middles[1] - middles[0]) if len(middles) > 1 else 1.0
    axis.bar(middles, counts, width=0.85 * width, alpha=0.4, color=COLOURS[0], label="rounds seen")
    axis.plot(middles, expected, "o-", markersize=3, color=COLOURS[1], label="claimed distribution")
    words = [
        f"about {at:.0f} clients: {seen:.0f} rounds, {due:.1f} expected"
        for at, seen, due in zip(middles, counts, expected, strict=True)
    ]
    add_tooltips(axis, list(middles), list(expected), words)
    axis.set(xlabel="clients in the round", ylabel="rounds", title="cohort sizes")
    low, high = axis.get_xlim()
    axis.set_xlim(low - 3, high + 3)  # so that the bar of a constant size has a margin
    axis.set_ylim(top=1.25 * axis.get_ylim()[1])
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")


def grouped_sizes(found: CohortSizes) -> tuple[Floats, Floats, Floats]:
    """Return (middles, observed rounds, expected rounds) of at most about twenty equal groups of cohort sizes."""
    likely = found.smallest_size + np.flatnonzero(found.mass > 1e-4 * found.mass.max())
    low, high = min(int(likely[0]), *found.sizes), max(int(likely[-1]), *found.sizes)
    width = max(1, round((high - low + 1) / _MOST_BARS))
    edges = np.arange(low, high + width + 1, width)
    counts, _ = np.histogram(found.sizes, bins=edges - 0.5)
    sizes = found.smallest_size + np.arange(len(found.mass))
    expected, _ = np.histogram(sizes, bins=edges - 0.5, weights=len(found.sizes) * found.mass)
    return (edges[:-1] + edges[1:] - 1) / 2, counts.astype(np.float64), expected


def _draw_empty_panel(axis: Axes, title: str, words: str) -> None:
    axis.set(title=title, xticks=[], yticks=[])
    axis.text(0.5, 0.5, words, ha="center", va="center", transform=axis.transAxes, fontsize=9)
