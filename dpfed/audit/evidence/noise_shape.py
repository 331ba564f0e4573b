"""Evidence that a run's noise has the charged tails, and is not repeated over coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import skellam

from dpfed.audit.evidence.noise_evidence import (
    NO_NOISE,
    ChargedNoise,
    MeasuredNoise,
    measured_noise,
    rounds_with_unknown_noise,
)
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.verdict import Finding, false_alarm_text, rounds_text
from dpfed.diagnostics.watch import CORRELATION_ERROR, bin_count
from dpfed.records.reading import Unavailable

_LIKE_A_GAUSSIAN = 1e4
"""Variance above which tails of integer noise are computed as a Gaussian's at half-integers.

At five standard deviations the tails differ by 1%, which changes a probability of 1% by 1e-4.
"""
_TILED = 0.5
"""Correlation of noise that was drawn for half of the coordinates and repeated; with more copies it is larger."""


def noise_is_shaped_as_charged(files: RunFiles, *, alpha: float) -> Finding:
    """Test the shape of noise: its largest magnitude, and its autocorrelation over coordinates.

    The largest magnitude of all draws is compared with its exact distribution, which finds a clamp, a cut and heavy
    tails. The largest autocorrelation of a round's noise is compared with a Chernoff bound. Each test has alpha / 2, so
    that noise as charged fails with probability at most alpha.
    """
    found, _ = measured_noise(files)
    if rounds_with_unknown_noise(files):
        return (
            None,
            f"{rounds_text(rounds_with_unknown_noise(files))}: the noise was the clients', and only they have seen it.",
        )
    if not found:
        return True, NO_NOISE
    lacking = [one.round for one in found if one.noise.largest is None or one.noise.correlation is None]
    if lacking:
        raise Unavailable(
            f"diagnostics.jsonl, {rounds_text(lacking)}: the noise has no 'largest' or 'correlation'. The run was "
            "made by a version that did not record them."
        )
    tails, in_tails = _tail_test(found, alpha / 2)
    tiles, in_tiles = _repetition_test(found, alpha / 2)
    words = f"{in_tails} {in_tiles}"
    return (True, words) if tails and tiles else (False, f"{words} {false_alarm_text(alpha)}")


def _tail_test(found: Sequence[MeasuredNoise], alpha: float) -> tuple[bool, str]:
    """Return False if the largest draw is too small or too large, and text on the test.

    No draw is beyond x with probability (1 - P(beyond x))^n.
    """
    entries = sum(one.noise.entries for one in found)
    beyond = min(
        tail_probability(one.charged, one.noise.draws, one.noise.largest or 0.0, reached=False) for one in found
    )
    reached = min(
        tail_probability(one.charged, one.noise.draws, one.noise.largest or 0.0, reached=True) for one in found
    )
    too_small = math.exp(entries * math.log1p(-min(beyond, 1 - 1e-16)))
    too_large = -math.expm1(entries * math.log1p(-min(reached, 1 - 1e-16)))
    farthest = max((one.noise.largest or 0.0) / _noise_std(one.charged, one.noise.draws) for one in found)
    clamp = clamp_that_is_found(entries, alpha / 2)
    words = (
        f"the largest of {entries:,} draws is {farthest:.2f} standard deviations (p-value of so small a value: "
        f"{too_small:.2g}, of so large a value: {too_large:.2g}); noise clamped at {clamp:.2f} would be found."
    )
    return min(too_small, too_large) >= alpha / 2, words


def _repetition_test(found: Sequence[MeasuredNoise], alpha: float) -> tuple[bool, str]:
    each = alpha / len(found)
    outside = [
        one.round for one in found if p_value_of_correlation(one.noise.entries, one.noise.correlation or 0.0) < each
    ]
    largest = max(one.noise.correlation or 0.0 for one in found)
    noticed = max(correlation_that_is_found(one.noise.entries, each) for one in found)
    words = f"The largest correlation between coordinates is {largest:.3f}; {noticed:.3f} would be found"
    words += (
        ", and repeated noise has 0.5." if noticed < _TILED else ", too much to find repeated noise, which has 0.5."
    )
    if outside:
        words = f"{rounds_text(outside)}: the noise of some coordinates repeats that of others. {words}"
    return not outside, words


def p_value_of_correlation(entries: int, correlation: float) -> float:
    """Return a bound on the probability that independent Gaussians have an autocorrelation |r_l| > t at any lag l.

    t: `correlation`, which may be too large by CORRELATION_ERROR, less this error. P(r_l > t) = P(x'(A - t)x > 0),
    where A has 1/2 on both l-th diagonals, as the adjacency matrix of paths. By Chernoff's bound at t / (1 - t^2) and
    the determinant of a path (Chebyshev's U), it is at most (1 - t^2)^(m/2) for every l. For both signs and all m - 1
    lags, 2 (m - 1) times that is a bound. Sums of integers are nearly Gaussian.
    """
    m, correlation = bin_count(entries), correlation - CORRELATION_ERROR
    if m < 2 or correlation <= 0:
        return 1.0
    if correlation >= 1:
        return 0.0
    return min(1.0, 2 * (m - 1) * math.exp(m / 2 * math.log1p(-(correlation**2))))


def correlation_that_is_found(entries: int, alpha: float) -> float:
    """Return the correlation at which the bound of `p_value_of_correlation` is alpha; 1 if there is none."""
    m = bin_count(entries)
    if m < 2:
        return 1.0
    return CORRELATION_ERROR + math.sqrt(-math.expm1(2 / m * math.log(alpha / (2 * (m - 1)))))


def tail_probability(charged: ChargedNoise, draws: int, largest: float, *, reached: bool) -> float:
    """Return P(|X| > largest), or P(|X| >= largest) if `reached`, for the noise X of an entry, a sum of `draws` draws.

    For whole numbers it is exact for Skellam and for one draw of the discrete Gaussian. Sums of discrete Gaussians are
    taken as discrete Gaussian (relative error 1e-4 at variance 1).
    """
    variance = charged.share_variance * draws
    if not charged.whole_numbers:
        return float(2 * ndtr(-largest / math.sqrt(variance)))
    last = math.ceil(largest) - 1 if reached else math.floor(largest)
    if last < 0:
        return 1.0
    if variance >= _LIKE_A_GAUSSIAN:
        return float(2 * ndtr(-(last + 0.5) / math.sqrt(variance)))
    if charged.excess:
        return float(min(1.0, 2 * skellam.sf(last, variance / 2, variance / 2)))
    tails = _discrete_gaussian_tails(variance)
    return float(tails[last]) if last < len(tails) else 0.0


@lru_cache(maxsize=64)
def _discrete_gaussian_tails(variance: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return P(|X| > k) of a discrete Gaussian for k = 0, 1, ..., up to the k at which it is 0 in float64."""
    k = np.arange(int(38 * math.sqrt(variance)) + 2)
    weights = np.exp(-(k.astype(float) ** 2) / (2 * variance))
    beyond = np.append(np.cumsum(weights[::-1])[::-1][1:], 0.0)
    return np.asarray(2 * beyond / (weights[0] + 2 * beyond[0]))


def _noise_std(charged: ChargedNoise, draws: int) -> float:
    return math.sqrt(charged.share_variance * draws)


def clamp_that_is_found(entries: int, alpha: float) -> float:
    """Return x, in standard deviations, with (1 - P(|X| > x))^entries = alpha for a Gaussian X."""
    beyond = -math.expm1(math.log(alpha) / entries)
    return float(-ndtri(beyond / 2))
