"""Evidence that noise has the charged variance and shape, is fresh in every round, and is added to released counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import chi2, skellam

from accounting.arrays import Floats
from accounting.ledger import Release
from accounting.mechanisms import NoisyIntegers, noise_of, unsampled
from accounting.require import LARGEST_CLIP, SMALLEST_CLIP
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.verdict import Finding, false_alarm_text, rounds_text
from dpfed.diagnostics.watch import CORRELATION_ERROR, bin_count
from dpfed.records.reading import LARGEST, Unavailable
from dpfed.records.round import SumNoise

_FEW = 10
"""Least number of entries for the comparison of mean squares: with fewer, fresh noise has near values too often."""

_ROUNDING = 100 * 2.0**-24

NO_NOISE = (
    "no noise is added to sums: uploads are Bernoulli samples, or clients add noise in local steps, which these "
    "files do not show."
)


@dataclass(frozen=True, kw_only=True)
class ChargedNoise:
    """Noise in a sum according to its ledger line, in the units of its addition (real numbers, or integer steps).

    share_variance: variance of one draw in each of `entries` coordinates
    least_draws:    smallest number of draws in a sum that the accountant assumes
    whole_numbers:  True if whole numbers are added
    excess:         excess kurtosis of one draw: 1/V for Skellam, 0 for Gaussians (discrete ones: below 1e-6 at V >= 1)
    """

    share_variance: float
    least_draws: int
    entries: int
    whole_numbers: bool
    excess: float


def charged_noise(release: Release) -> ChargedNoise | None:
    """Return the charged noise of a release; None for Bernoulli samples, which have no sum of noise."""
    mechanism = unsampled(release.mechanism)
    if isinstance(mechanism, NoisyIntegers):
        return ChargedNoise(
            share_variance=mechanism.share_variance,
            least_draws=mechanism.shares,
            entries=mechanism.dimension,
            whole_numbers=True,
            excess=mechanism.excess_kurtosis,
        )
    if noise_of(mechanism) is None:
        return None
    variance, draws = release.noise_std**2, 1
    if release.noise_placement == "clients":
        share = release.detail.get("share_std")
        if not isinstance(share, float) or not 1 / LARGEST < share < LARGEST:
            raise Unavailable(f"ledger.jsonl, round {release.round + 1}: no standard deviation of the noise shares.")
        draws = math.ceil(variance / share**2 * (1 - 1e-9))
        variance = share**2
    entries = release.detail.get("dimension")
    if not isinstance(entries, int) or not variance > 0:
        raise Unavailable(f"ledger.jsonl, round {release.round + 1}: no length of uploads, or no noise.")
    return ChargedNoise(share_variance=variance, least_draws=draws, entries=entries, whole_numbers=False, excess=0.0)


@dataclass(frozen=True, kw_only=True)
class MeasuredNoise:
    """Recorded noise of a round, its charged noise, and the ratio of the mean square to the charged variance."""

    round: int
    noise: SumNoise
    charged: ChargedNoise
    ratio: float


def testable_noise(files: RunFiles) -> list[MeasuredNoise] | Finding:
    """Return the noise of all rounds; in place of noise that cannot be tested, the finding that says why."""
    if unknown := [one.round for one in files.results if one.noise is None and not one.noise_known]:
        return None, f"{rounds_text(unknown)}: the noise was the clients', and only they have seen it."
    return measured_noise(files)[0] or (True, NO_NOISE)


def measured_noise(files: RunFiles) -> tuple[list[MeasuredNoise], list[int]]:
    """Return the noise of every round with a result and charged noise, and the rounds that lack charged noise."""
    found, silent = [], []
    for one in files.results:
        release = files.releases.get(one.round)
        charged = charged_noise(release) if release is not None else None
        if release is None or charged is None:
            continue
        unsent = release.noise_placement == "uploads" and one.arrived == 0  # nothing was sent
        if one.noise is None or one.noise.draws == 0 or one.noise.mean_square == 0:
            silent += [one.round] if one.noise_known and not unsent else []
            continue
        ratio = one.noise.mean_square / (charged.share_variance * one.noise.draws)
        found.append(MeasuredNoise(round=one.round, noise=one.noise, charged=charged, ratio=ratio))
    return found, silent


def shortfall_found(degrees: int, alpha: float) -> float:
    """Return the part by which noise must be short for a lower chi-square test at alpha to find it with 95%."""
    return 1 - math.sqrt(float(chi2.ppf(alpha, float(degrees)) / chi2.ppf(0.95, float(degrees)))) if degrees else 0.0


def limits_of_ratio(one: MeasuredNoise, *, alpha: float) -> tuple[float, float]:
    """Return limits between which the ratio of a correct round is with probability 1 - alpha."""
    scale, degrees = _chi_square_parameters([one])
    low, high = chi2.ppf([alpha / 2, 1 - alpha / 2], degrees) * scale / one.noise.entries
    return float(low), float(high)


def noise_is_as_charged(files: RunFiles, *, alpha: float) -> Finding:
    """Test the variance of noise by two-sided chi-square tests, of single rounds and of all rounds, at alpha / 2 each.

    For Gaussian noise, entries x ratio is chi-square with `entries` degrees of freedom. For integers, the degrees of
    freedom are lowered to match the variance of a sum of squares with this kurtosis. Noise as charged fails with
    probability at most alpha.
    """
    if silent := measured_noise(files)[1]:
        return False, f"{rounds_text(silent)}: the sum has no noise, although noise is charged."
    found = testable_noise(files)
    if isinstance(found, tuple):
        return found
    wrong = [one.round for one in found if one.noise.entries != one.charged.entries]
    if wrong:
        return False, f"{rounds_text(wrong)}: the number of entries with noise differs from the charged one."
    whole = sum(one.noise.entries for one in found)
    pooled = sum(one.ratio * one.noise.entries for one in found) / whole
    each = alpha / 2 / len(found)
    outside = [one.round for one in found if _two_sided_p_value([one]) < each]
    together = _two_sided_p_value(found)
    detail = (
        f"over {len(found)} rounds and {whole:,} entries the standard deviation is {math.sqrt(pooled):.4f} of the "
        f"charged one for the draws that arrived (p = {together:.2g})."
    )
    if outside:
        detail = f"{rounds_text(outside)}: the variance is not that of the charged noise. All rounds: {detail}"
    if outside or together < alpha / 2:
        return False, f"{detail} {false_alarm_text(alpha)}"
    return True, detail


def noise_is_fresh(files: RunFiles, *, alpha: float) -> Finding:
    """Check that no two rounds have equal noise.

    Fingerprints must differ. For Gaussian noise, mean squares must differ by more than rounding. Independent noise
    fails with probability at most alpha.
    """
    found = testable_noise(files)
    if isinstance(found, tuple):
        return found
    by_digest: dict[str, list[int]] = {}
    for one in found:
        by_digest.setdefault(one.noise.digest, []).append(one.round)
    repeated = [rounds for rounds in by_digest.values() if len(rounds) > 1]
    if repeated:
        return False, f"{rounds_text(repeated[0])} have equal noise, so that the difference of their sums has no noise."
    near = _rounds_with_near_noise(
        [one for one in found if not one.charged.whole_numbers and one.noise.entries >= _FEW], alpha
    )
    if near:
        return False, f"{rounds_text(near)} have noise of equal norm up to rounding, so the noise was repeated."
    return True, f"the fingerprints of the noise of {len(found)} rounds are all different."


def _rounds_with_near_noise(found: Sequence[MeasuredNoise], alpha: float) -> list[int]:
    """Return two rounds whose ratios are nearer to each other than those of fresh noise; empty if there are none.

    P(nearer than t) <= 2 t max density, for each pair. The density of chi-square is largest at n - 2, and there at most
    1 / sqrt(4 pi (n - 2)) by Stirling's formula. Equal noise is recorded from two float32 sums, whose rounding changes
    a mean square by about 2^-24 / sqrt(n) of it, and more if the sums are larger than the noise. The test allows a
    hundred times that.
    """
    pairs = len(found) * (len(found) - 1) / 2
    if not pairs:
        return []
    n = max(one.noise.entries for one in found)
    nearest = min(alpha / pairs * math.sqrt(math.pi * (n - 2)) / n, _ROUNDING / math.sqrt(n))
    ordered = sorted(found, key=lambda one: one.ratio)
    for one, other in itertools.pairwise(ordered):
        if other.ratio - one.ratio <= nearest:
            return sorted([one.round, other.round])
    return []


def _chi_square_parameters(found: Sequence[MeasuredNoise]) -> tuple[float, float]:
    """Return (a, b) such that the sum of entries x ratio has the mean and the variance of a x chi-square(b)."""
    entries = sum(one.noise.entries for one in found)
    excess = max(one.charged.excess / one.noise.draws for one in found)
    scale = 1 + excess / 2
    return scale, entries / scale


def _two_sided_p_value(found: Sequence[MeasuredNoise]) -> float:
    scale, degrees = _chi_square_parameters(found)
    reached = sum(one.ratio * one.noise.entries for one in found) / scale
    return float(min(1.0, 2 * np.minimum(chi2.cdf(reached, degrees), chi2.sf(reached, degrees))))


def counts_are_noised(files: RunFiles, *, alpha: float) -> Finding:
    """Check the noise of released counts by three tests, at alpha / 3 each.

    They test the mean square (chi-square, two-sided), the smallest magnitude (0 for a count without noise), and the
    distance of the two nearest values (0 for repeated noise).
    Claim: noise as charged fails with probability at most alpha."""
    assert files.config.privacy is not None
    table = files.config.privacy.adaptive
    assert table is not None
    noise = np.array([_noise_of_count(files, one.round, table.quantile, table.rate) for one in files.results])
    if not len(noise):
        return None, "no round has a result."
    squares = float((noise**2).sum())
    p_size = 2 * min(float(chi2.cdf(squares, len(noise))), float(chi2.sf(squares, len(noise))))
    smallest = float(np.abs(noise).min())
    p_none = len(noise) * (2 * float(ndtr(smallest)) - 1)
    p_again = _p_value_of_nearest_counts(noise)
    spread = math.sqrt(squares / len(noise))
    detail = (
        f"over {len(noise)} rounds the noise of the count has {spread:.3g} times the charged standard deviation "
        f"(p = {min(p_size, 1.0):.2g}), its smallest magnitude is {smallest:.2g} (p = {min(p_none, 1.0):.2g})."
    )
    if min(p_size, p_none, p_again) < alpha / 3:
        return False, f"{detail} Clip norms do not follow a count with the charged noise. {false_alarm_text(alpha)}"
    return True, detail


def _noise_of_count(files: RunFiles, number: int, quantile: float, rate: float) -> float:
    """Return the noise of a round's count, over its charged standard deviation.

    It follows from the clip norms: C' = C exp(-rate (b - quantile)), with the noisy fraction b = 1/2 + (sum of (inside
    - 1/2) + noise) / expected cohort.
    """
    facts, after = files.rounds[number - 1], files.published_rounds[number - 1].clip_norm
    if facts.counted is None or facts.clipped is None:
        raise Unavailable(f"diagnostics.jsonl, line {number}: has no number of clients inside the bound.")
    std = files.releases[number].detail.get("count_noise_std") if number in files.releases else None
    if not isinstance(std, float) or not std > 0 or not after:
        raise Unavailable(f"round {number}: no noise of a count is charged, or no clip norm follows.")
    if not SMALLEST_CLIP < after < LARGEST_CLIP:
        raise Unavailable(f"round {number}: the clip norm is at a limit of its range, and no noise follows from it.")
    fraction = quantile - (math.log(after) - math.log(files.clip_norm_before(number))) / rate
    centred = (fraction - 0.5) * files.sampler.expected
    return (centred - (facts.counted / 2 - facts.clipped)) / std


def _p_value_of_nearest_counts(noise: Floats) -> float:
    """Return a bound on the probability that two values of fresh noise are as near as the nearest two.

    The density of a difference is at most 1 / sqrt(4 pi).
    """
    pairs = len(noise) * (len(noise) - 1) / 2
    nearest = min((b - a for a, b in itertools.pairwise(sorted(noise.tolist()))), default=math.inf)
    return pairs * 2 * nearest / math.sqrt(4 * math.pi) if pairs else 1.0


_LIKE_A_GAUSSIAN = 1e4
"""Variance above which tails of integer noise are computed as a Gaussian's at half-integers.

At five standard deviations the tails differ by 1%, which changes a probability of 1% by 1e-4.
"""


def noise_is_shaped_as_charged(files: RunFiles, *, alpha: float) -> Finding:
    """Test the shape of noise: its largest magnitude, and its autocorrelation over coordinates.

    The largest magnitude of all draws is compared with its exact distribution, which finds a clamp, a cut and heavy
    tails. The largest autocorrelation of a round's noise is compared with a Chernoff bound. Each test has alpha / 2, so
    that noise as charged fails with probability at most alpha.
    """
    found = testable_noise(files)
    if isinstance(found, tuple):
        return found
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
    beyond, reached = (
        min(tail_probability(one.charged, one.noise.draws, one.noise.largest or 0.0, reached=end) for one in found)
        for end in (False, True)
    )
    too_small = math.exp(entries * math.log1p(-min(beyond, 1 - 1e-16)))
    too_large = -math.expm1(entries * math.log1p(-min(reached, 1 - 1e-16)))
    farthest = max(
        (one.noise.largest or 0.0) / math.sqrt(one.charged.share_variance * one.noise.draws) for one in found
    )
    words = (
        f"the largest of {entries:,} draws is {farthest:.2f} standard deviations (p-value of so small a value: "
        f"{too_small:.2g}, of so large a value: {too_large:.2g})."
    )
    return min(too_small, too_large) >= alpha / 2, words


def _repetition_test(found: Sequence[MeasuredNoise], alpha: float) -> tuple[bool, str]:
    each = alpha / len(found)
    outside = [
        one.round for one in found if p_value_of_correlation(one.noise.entries, one.noise.correlation or 0.0) < each
    ]
    largest = max(one.noise.correlation or 0.0 for one in found)
    words = f"The largest correlation between coordinates is {largest:.3f}."
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


def clamp_that_is_found(entries: int, alpha: float) -> float:
    """Return x, in standard deviations, with (1 - P(|X| > x))^entries = alpha for a Gaussian X."""
    beyond = -math.expm1(math.log(alpha) / entries)
    return float(-ndtri(beyond / 2))
