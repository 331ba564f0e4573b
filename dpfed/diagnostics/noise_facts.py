"""Measures of the noise in a round's sum, for the audit's tests against the distribution that is charged."""

from __future__ import annotations

import hashlib
import math

import torch
from scipy import fft
from torch import Tensor

from dpfed.diagnostics.probes import probe_of
from dpfed.records.round import SumNoise

_MOST_BINS = 1 << 18
"""Length beyond which noise is folded before its correlations are computed."""


def noise_facts(noise: Tensor, draws: int) -> SumNoise | None:
    """Measure the noise [k] that `draws` draws add up to, in the units it was added in; None where it is zero.

    correlation: the largest magnitude of `correlations` (noise tiled over coordinates is correlated with itself)
    """
    if not bool(noise.any()):
        return None
    exact = noise.double()
    return SumNoise(
        mean_square=float(exact.square().mean()),
        largest=float(exact.abs().max()),
        correlation=float(correlations(exact).abs().max()) if bins(noise.numel()) > 1 else 0.0,
        entries=noise.numel(),
        draws=draws,
        digest=digest(noise),
        probe=probe_of(noise),
    )


def bins(entries: int) -> int:
    """Return the number of bins that `entries` entries are folded into."""
    return entries // max(1, math.ceil(entries / _MOST_BINS))


def correlations(noise: Tensor) -> Tensor:
    """Return the autocorrelations r of noise [k], float64, folded into m = `bins(k)` sums x of entries m apart:

        r_l = (x_1 x_{1+l} + ... + x_{m-l} x_m) / (x_1^2 + ... + x_m^2),   l = 1 ... m - 1

    Noise that repeats after P entries repeats in x, too.
    """
    m = bins(noise.numel())
    folded = noise[: noise.numel() // m * m].view(-1, m).sum(dim=0)
    length = fft.next_fast_len(2 * m - 1, real=True)
    spectrum = fft.rfft(folded.cpu().numpy(), length)  # four times as fast as torch's on one core
    products = torch.from_numpy(fft.irfft(spectrum.real**2 + spectrum.imag**2, length)[:m])
    return products[1:] / products[0] if float(products[0]) > 0 else torch.zeros_like(products[1:])


def digest(noise: Tensor) -> str:
    """Return the SHA-256 of a noise vector; equal digests of two rounds mean that a seed was used twice."""
    return hashlib.sha256(noise.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
