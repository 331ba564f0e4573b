"""Statistics of the noise in a round's sum, by which an audit tests the noise distribution that is charged."""

from __future__ import annotations

import hashlib
import math

import torch
from scipy import fft
from torch import Tensor

from dpfed.diagnostics.probes import probe_of
from dpfed.records.round import SumNoise

_MOST_BINS = 1 << 18
"""Length above which noise is folded before its correlations are computed."""
CORRELATION_ERROR = 3e-5
"""Bound on the rounding error of a correlation of independent noise.

A transform of length n in float32 has L2 error e = 7 log2(n) 2^-24 relative to its result (Higham 2002, Theorem 24.2),
8e-6 for n = 2^19. By Cauchy and Schwarz the spectrum's error moves no r_l by more than 2 e, and the inverse's by e
|r| / r_0, which is about e sqrt(2).
"""


def noise_record(noise: Tensor, draws: int) -> SumNoise | None:
    """Return statistics of the noise [k], the sum of `draws` draws, in the units of the sum; None if the noise is zero.

    correlation: the largest magnitude of `correlations` (noise that repeats over coordinates correlates with itself)
    """
    if not noise.numel():
        return None
    exact = noise.double()
    least, most = torch.aminmax(exact)
    largest = max(-float(least), float(most))
    if largest == 0:
        return None
    return SumNoise(
        mean_square=float(exact @ exact) / noise.numel(),
        largest=largest,
        correlation=float(correlations(exact).abs().max()) if bin_count(noise.numel()) > 1 else 0.0,
        entries=noise.numel(),
        draws=draws,
        digest=digest(noise),
        probe=probe_of(noise),
    )


def bin_count(entries: int) -> int:
    """Return the number of bins into which `entries` entries are folded."""
    return entries // max(1, math.ceil(entries / _MOST_BINS))


def correlations(noise: Tensor) -> Tensor:
    """Return the autocorrelations r of noise [k], folded into m = `bin_count(k)` sums x of entries that are m apart.

        r_l = (x_1 x_{1+l} + ... + x_{m-l} x_m) / (x_1^2 + ... + x_m^2),   l = 1 ... m - 1

    Noise that repeats after P entries repeats in x, too. Computed in float32 on x divided by its largest magnitude:
    twice as fast as in float64. CORRELATION_ERROR bounds the error.
    """
    m = bin_count(noise.numel())
    folded = noise[: noise.numel() // m * m].view(-1, m).sum(dim=0)
    peak = folded.abs().max()
    if not float(peak) > 0:
        return torch.zeros(m - 1)
    length = fft.next_fast_len(2 * m - 1, real=True)
    spectrum = fft.rfft((folded / peak).float().cpu().numpy(), length)  # four times as fast as torch's on one core
    products = torch.from_numpy(fft.irfft(spectrum.real**2 + spectrum.imag**2, length)[:m])
    return products[1:] / products[0]


def digest(noise: Tensor) -> str:
    """Return the SHA-256 of a noise vector; equal digests of two rounds mean that a seed was used twice."""
    return hashlib.sha256(noise.detach().cpu().contiguous().numpy().data).hexdigest()
