"""Adaptive clipping: was the count of clients inside the bound released with its noise?

Successive clip norms tell the noisy fraction that moved them; diagnostics tell the true one. The difference is the
noise of the count, which must be normal with the standard deviation that is charged.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import chi2

from dpfed.audit.evidence.run_files import RunFiles, clip_norm_before
from dpfed.audit.evidence.run_lines import Unavailable
from dpfed.audit.verdict import chance_in_words
from dpfed.participation.of_run import sampler_of

Floats = NDArray[np.float64]
Finding = tuple[bool | None, str]


def counts_are_noised(files: RunFiles, *, alpha: float) -> Finding:
    """Claim: noise of counts as charged fails with probability at most alpha, a third each for: its mean square
    (chi-square, two-sided); its smallest magnitude (a count without noise has 0); its two nearest values (noise that is
    used again)."""
    table = files.config.privacy.adaptive if files.config.privacy is not None else None
    if table is None:
        return True, "the clip norm is fixed: no count is released."
    noise = np.array([_noise_of(files, one.round, table.quantile, table.rate) for one in files.results])
    if not len(noise):
        return None, "no round has a result."
    squares = float((noise**2).sum())
    p_size = 2 * min(float(chi2.cdf(squares, len(noise))), float(chi2.sf(squares, len(noise))))
    smallest = float(np.abs(noise).min())
    p_none = len(noise) * (2 * float(ndtr(smallest)) - 1)
    p_again = _too_near(noise)
    spread = math.sqrt(squares / len(noise))
    detail = (
        f"over {len(noise)} rounds the noise of the count is {spread:.3g} standard deviations "
        f"of what is charged (p = {min(p_size, 1.0):.2g}), the least of it {smallest:.2g} (p = {min(p_none, 1.0):.2g})."
    )
    if min(p_size, p_none, p_again) < alpha / 3:
        return False, f"{detail} Clip norms do not follow a count with the charged noise. {chance_in_words(alpha)}"
    return True, detail


def _noise_of(files: RunFiles, number: int, quantile: float, rate: float) -> float:
    """The noise of a round's count, in units of what is charged: C' = C exp(-rate (b - quantile)), b the noisy fraction
    of the expected cohort, 1/2 + (sum of (inside - 1/2) + noise) / cohort."""
    facts, after = files.rounds[number - 1], files.published[number - 1].clip_norm
    if facts.counted is None or facts.clipped is None:
        raise Unavailable(f"diagnostics.jsonl, line {number}: does not say how many clients were inside the bound.")
    std = files.released[number].detail.get("count_noise_std") if number in files.released else None
    if not isinstance(std, float) or not std > 0 or not after:
        raise Unavailable(f"round {number}: no noise of a count is charged, or no clip norm follows.")
    fraction = quantile - math.log(after / clip_norm_before(files, number)) / rate
    centred = (fraction - 0.5) * sampler_of(files.config).expected
    return (centred - (facts.counted / 2 - facts.clipped)) / std


def _too_near(noise: Floats) -> float:
    """A bound on the probability of values so near: differences have density at most 1 / sqrt(4 pi)."""
    pairs = len(noise) * (len(noise) - 1) / 2
    nearest = min((b - a for a, b in itertools.pairwise(sorted(noise.tolist()))), default=math.inf)
    return pairs * 2 * nearest / math.sqrt(4 * math.pi) if pairs else 1.0
