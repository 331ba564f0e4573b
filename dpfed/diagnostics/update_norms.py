"""How long updates are before they are clipped: counted by half octaves of the clip norm, so that groups of clients and
processes add up. Covered by no epsilon: for the operator."""

from __future__ import annotations

import torch
from torch import Tensor

_PER_OCTAVE, _OCTAVES = 2, 16
_BINS = 2 * _OCTAVES * _PER_OCTAVE


def no_norms() -> Tensor:
    """Counts [bins] of nothing."""
    return torch.zeros(_BINS, dtype=torch.int64)


def count_norms(norms: Tensor, clip_norm: float) -> Tensor:
    """Counts [bins] of the norms [c] over the clip norm, from 2^-16 to 2^16, the ends holding what is beyond. What is
    not finite is not counted."""
    ratios = norms[torch.isfinite(norms)].cpu() / clip_norm
    places = ((torch.log2(ratios.clamp_min(2.0**-100)) + _OCTAVES) * _PER_OCTAVE).floor().long().clamp(0, _BINS - 1)
    return torch.bincount(places, minlength=_BINS)


def typical(counts: Tensor) -> float | None:
    """The median over the clip norm, within a factor of 2^(1/4); None of nothing."""
    total = int(counts.sum())
    if not total:
        return None
    place = int(torch.searchsorted(counts.cumsum(0), (total + 1) // 2))
    return float(2.0 ** ((place + 0.5) / _PER_OCTAVE - _OCTAVES))
