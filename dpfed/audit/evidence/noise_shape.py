"""Evidence on the shape of a run's noise: tails as charged, and no repetitions over coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import skellam

from dpfed.audit.evidence.noise_evidence import NO_NOISE, ChargedNoise, Measured, measured, unseen
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.verdict import Finding, chance_text, rounds_text
from dpfed.diagnostics.noise_record import CORRELATION_ERROR, bin_count
from dpfed.records.reading import Unavailable

_LIKE_A_GAUSSIAN = 1e4
"""Variance from which the tails of integer noise count as a Gaussian's between whole numbers: at five standard
deviations they differ by a hundredth, which moves a probability of 1% by a ten-thousandth.
"""
_TILED = 0.5
"""Correlation of noise that was drawn for half of the coordinates and repeated; more copies have more."""


def noise_is_shaped_as_charged(files: RunFiles, *, alpha: float) -> Finding:
    """Test the shape of noise: its largest magnitude, and its correlation with itself.

    The largest magnitude of all draws against its exact distribution (finds a clamp, a cut and heavy tails), and the
    largest correlation of any round's noise with itself, shifted, against a Chernoff bound: alpha / 2 each, so that a
    true account fails with probability at most alpha.
    """
    found, _ = measured(files)
    if unseen(files):
        return None, f"{rounds_text(unseen(files))}: the noise was the clients', and only they have seen it."
    if not found:
        return True, NO_NOISE
    lacking = [one.round for one in found if one.noise.largest is None or one.noise.correlation is None]
    if lacking:
        raise Unavailable(
            f"diagnostics.jsonl, {rounds_text(lacking)}: the noise has no 'largest' or 'correlation'. The run was "
            "made by a version that did not write them."
        )
    tails, in_tails = _tails(found, alpha / 2)
    tiles, in_tiles = _tiles(found, alpha / 2)
    words = f"{in_tails} {in_tiles}"
    return (True, words) if tails and tiles else (False, f"{words} {chance_text(alpha)}")


def _tails(found: Sequence[Measured], alpha: float) -> tuple[bool, str]:
    """Test the largest draw, two-sided: no draw is farther out with probability (1 - P(farther))^n."""
    entries = sum(one.noise.entries for one in found)
    beyond = min(tail(one.charged, one.noise.draws, one.noise.largest or 0.0, reached=False) for one in found)
    reached = min(tail(one.charged, one.noise.draws, one.noise.largest or 0.0, reached=True) for one in found)
    too_small = math.exp(entries * math.log1p(-min(beyond, 1 - 1e-16)))
    too_large = -math.expm1(entries * math.log1p(-min(reached, 1 - 1e-16)))
    farthest = max((one.noise.largest or 0.0) / _std(one.charged, one.noise.draws) for one in found)
    clamp = _noticed_clamp(entries, alpha / 2)
    words = (
        f"the largest of {entries:,} draws is {farthest:.2f} standard deviations (of so little the probability is "
        f"{too_small:.2g}, of so much {too_large:.2g}); noise clamped at {clamp:.2f} would be noticed."
    )
    return min(too_small, too_large) >= alpha / 2, words


def _tiles(found: Sequence[Measured], alpha: float) -> tuple[bool, str]:
    each = alpha / len(found)
    outside = [one.round for one in found if repeats(one.noise.entries, one.noise.correlation or 0.0) < each]
    largest = max(one.noise.correlation or 0.0 for one in found)
    noticed = max(noticed_correlation(one.noise.entries, each) for one in found)
    words = f"The largest correlation between coordinates is {largest:.3f}; {noticed:.3f} would be noticed"
    words += ", noise repeated over the coordinates has 0.5." if noticed < _TILED else ": they are too few to tell."
    if outside:
        words = f"{rounds_text(outside)}: the noise of some coordinates repeats that of others. {words}"
    return not outside, words


def repeats(entries: int, correlation: float) -> float:
    """Return a bound on the probability that independent Gaussians have such a large |r_l| for any of the m - 1 lags.

    P(r_l > t) = P(x'(A - t)x > 0), A with halves on the two l-th diagonals: the adjacency of paths. By Chernoff at t /
    (1 - t^2), with the determinant of a path (Chebyshev's U), it is at most (1 - t^2)^(m/2) for every l; both signs
    and all lags: 2 (m - 1) times that. Sums of integers are nearly Gaussian. The correlation may be too large by
    CORRELATION_ERROR.
    """
    m, correlation = bin_count(entries), correlation - CORRELATION_ERROR
    if m < 2 or correlation <= 0:
        return 1.0
    if correlation >= 1:
        return 0.0
    return min(1.0, 2 * (m - 1) * math.exp(m / 2 * math.log1p(-(correlation**2))))


def noticed_correlation(entries: int, alpha: float) -> float:
    """Return the correlation at which `repeats` is alpha; 1 where there is none."""
    m = bin_count(entries)
    if m < 2:
        return 1.0
    return CORRELATION_ERROR + math.sqrt(-math.expm1(2 / m * math.log(alpha / (2 * (m - 1)))))


def tail(charged: ChargedNoise, draws: int, largest: float, *, reached: bool) -> float:
    """Return P(|X| > largest) of an entry's noise, or P(|X| >= largest).

    For whole numbers: exact for Skellam and for one draw of the discrete Gaussian; sums of its draws count as discrete
    Gaussian (off by 1e-4 of it at variance 1).
    """
    variance = charged.share_variance * draws
    if not charged.whole:
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
    """Return P(|X| > k), k = 0, 1, ... as far as floats reach."""
    k = np.arange(int(38 * math.sqrt(variance)) + 2)
    weights = np.exp(-(k.astype(float) ** 2) / (2 * variance))
    beyond = np.append(np.cumsum(weights[::-1])[::-1][1:], 0.0)
    return np.asarray(2 * beyond / (weights[0] + 2 * beyond[0]))


def _std(charged: ChargedNoise, draws: int) -> float:
    return math.sqrt(charged.share_variance * draws)


def _noticed_clamp(entries: int, alpha: float) -> float:
    """Return the standard deviations x with (1 - P(|X| > x))^entries = alpha, for a Gaussian."""
    beyond = -math.expm1(math.log(alpha) / entries)
    return float(-ndtri(beyond / 2))
