"""What an audit saw, as charts of its page: each beside what was claimed, in colours of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpfed.report.chart import Chart, Mark, Series
from dpfed.report.figures.audit import Observed
from dpfed.report.figures.audit_run import CanaryScores, CohortSizes, NoiseRatios, grouped_sizes
from dpfed.report.page import ChartGroup

Floats = NDArray[np.float64]
_POINTS = 60


def errors_group(rates: Floats, least_missed: Floats, pairs: Sequence[Observed]) -> ChartGroup:
    """False negatives over false positives: the least that the claim allows, and each pair of neighbours."""
    claimed = [
        Mark(x=rate, y=missed, words=f"claimed: with {rate:.0%} false positives at least {missed:.1%} false negatives")
        for rate, missed in zip(rates[:: len(rates) // _POINTS], least_missed[:: len(rates) // _POINTS], strict=True)
    ]
    series = [Series(name="claimed, at least", marks=claimed, colour=6)]
    for name, refuted, colour, shape in (("a pair that stands", False, 0, 0), ("a pair that refutes", True, 1, 6)):
        if marks := [_pair(one) for one in pairs if one.rejected is refuted]:
            series.append(Series(name=name, marks=marks, colour=colour, shape=shape, joined=False))
    chart = Chart(title="False negatives of a guess", xlabel="false positives", series=series, from_zero=True)
    return ChartGroup(charts=[chart], legend=series, files="audit.png")


def _pair(one: Observed) -> Mark:
    words = f"{one.name}: {one.false_positive_rate:.1%} false positives, {one.false_negative_rate:.1%} false negatives"
    return Mark(
        x=one.false_positive_rate,
        y=one.false_negative_rate,
        words=words,
        low=one.false_negative_rate,
        high=one.fnr_upper,
    )


def run_groups(
    canaries: CanaryScores | None, noise: NoiseRatios | None, cohorts: CohortSizes | None
) -> list[ChartGroup]:
    """A group for each of them that there is."""
    found = []
    if noise is not None and len(noise.rounds):
        found.append(_group(_noise(noise)))
    if cohorts is not None and len(cohorts.sizes):
        found.append(_group(_cohorts(cohorts)))
    if canaries is not None:
        found.append(_group(_canaries(canaries)))
    return found


def _group(chart: Chart) -> ChartGroup:
    return ChartGroup(charts=[chart], legend=chart.series)


def _noise(found: NoiseRatios) -> Chart:
    kept = [
        Mark(
            x=at,
            y=1.0,
            low=float(low),
            high=float(high),
            words=f"round {at}: a correct run has {low:.3f} to {high:.3f}",
        )
        for at, low, high in zip(found.rounds, found.low, found.high, strict=True)
    ]
    seen = [
        Mark(x=at, y=float(ratio), words=f"round {at}: {ratio:.3f} of what is charged")
        for at, ratio in zip(found.rounds, found.ratios, strict=True)
    ]
    series = [
        Series(name="a correct run keeps to", marks=kept, colour=2, band=True),
        Series(name="a round", marks=seen, colour=0, joined=False),
    ]
    return Chart(title="Noise in the sum, over what is charged", xlabel="round", series=series, whole_x=True)


def _cohorts(found: CohortSizes) -> Chart:
    middles, counts, expected = grouped_sizes(found)
    series = [
        Series(
            name="claimed law", marks=_marks(middles, expected, "clients: {:.1f} rounds expected"), colour=1, dash=1
        ),
        Series(
            name="rounds seen", marks=_marks(middles, counts, "clients: {:.0f} rounds"), colour=0, shape=1, joined=False
        ),
    ]
    return Chart(title="Cohort sizes, rounds", xlabel="clients in the round", series=series, from_zero=True)


def _marks(middles: Floats, values: Floats, words: str) -> list[Mark]:
    return [
        Mark(x=float(at), y=float(value), words=f"about {at:.0f} {words.format(value)}")
        for at, value in zip(middles, values, strict=True)
    ]


def _canaries(found: CanaryScores) -> Chart:
    low = min(float(found.absent.min(initial=0.0)), -3.0)
    high = max(float(found.present.max(initial=0.0)), found.shift + 3.0)
    at = np.linspace(low, high, _POINTS)
    series = [
        Series(
            name="claimed, absent", marks=_shares(at, (_normal(x) for x in at), "claimed, absent"), colour=2, dash=1
        ),
        Series(
            name="claimed, present",
            marks=_shares(at, (_normal(x - found.shift) for x in at), "claimed, present"),
            colour=3,
            dash=1,
        ),
    ]
    for scores, name, colour in ((found.absent, "absent", 0), (found.present, "present", 1)):
        if len(scores):
            seen = np.sort(scores)
            shares = ((i + 0.5) / len(seen) for i in range(len(seen)))
            series.append(Series(name=f"{len(seen)} {name}", marks=_shares(seen, shares, name), colour=colour))
    return Chart(
        title="Canaries with a score up to this", xlabel="score, in claimed noise", series=series, from_zero=True
    )


def _shares(at: Floats, shares: Iterable[float], name: str) -> list[Mark]:
    return [
        Mark(x=float(x), y=share, words=f"{name}: {share:.0%} have a score up to {x:.2f}")
        for x, share in zip(at, shares, strict=True)
    ]


def _normal(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))
