"""Selection of the largest or smallest magnitudes, ties to the lower index: coordinates to send, weights to purge."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.errors import ConfigError

Sparsity = Callable[[int], float]
"""Fraction in [0, 1) of prunable entries that are zero after a given number of rounds, a function of the rounds."""

_NUMBERS_AT_ONCE = 1 << 22


def largest_indices(x: Tensor, kept: int) -> Tensor:
    """Return the coordinates of the `kept` largest |x| of each row of [c, d], sorted, int64 [c, kept], 1 <= kept <= d.

    Ties go to the lower index, which torch.topk does not guarantee: chosen are all entries above the kept-th largest
    magnitude, then the first entries equal to it. A selection, not a sort: linear in d.
    """
    if x.device.type == "cpu":  # numpy selects several times as fast as torch
        return torch.from_numpy(np.stack([_largest_magnitudes(row.abs().numpy(), kept) for row in x.detach()]))
    clients, dimension = x.shape
    chosen = torch.empty(clients, kept, dtype=torch.int64, device=x.device)
    rows = max(1, _NUMBERS_AT_ONCE // dimension)
    for first in range(0, clients, rows):
        magnitudes = x[first : first + rows].abs()
        threshold = magnitudes.topk(kept, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
        above, equal = magnitudes > threshold, magnitudes == threshold
        room = kept - above.sum(dim=1, keepdim=True)
        mask = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))
        chosen[first : first + rows] = mask.nonzero()[:, 1].view(-1, kept)
    return chosen


def _largest_magnitudes(magnitudes: NDArray[np.float32], kept: int) -> NDArray[np.int64]:
    """Return the places of the `kept` largest magnitudes of one row [d], int64 [kept]."""
    threshold = _kth_largest(magnitudes, kept)
    mask = magnitudes > threshold
    room = kept - int(np.count_nonzero(mask))
    mask[positions_of(magnitudes == threshold)[:room]] = True
    return positions_of(mask)


def _kth_largest(magnitudes: NDArray[np.float32], kept: int) -> np.float32:
    """Return the kept-th largest magnitude. Zeros are removed first, because numpy is ten times as slow if many numbers
    are equal, as in a pruned model."""
    positive = magnitudes > 0
    held = int(np.count_nonzero(positive))
    if held < kept:
        return np.float32(0.0)
    if held < len(magnitudes):
        magnitudes = magnitudes[positions_of(positive)]
    last = held - kept
    threshold: np.float32 = np.partition(magnitudes, last)[last]
    return threshold


def scatter_values(values: Tensor, indices: Tensor, dimension: int) -> Tensor:
    """Return [c, dimension] with the values [c, k] at indices [c, k], and zeros elsewhere."""
    return values.new_zeros(len(values), dimension).scatter_(1, indices, values)


def scatter_mean(values: Tensor, indices: Tensor, dimension: int) -> Tensor:
    """Return the mean over clients of `scatter_values`, [dimension], without building `scatter_values`."""
    total = values.new_zeros(dimension)
    return total.index_add_(0, indices.reshape(-1), values.reshape(-1)).div_(len(values))


def positions_of(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the sorted positions at which mask [n] is true, as np.flatnonzero, at up to three times its speed.

    If at most a tenth is true, numpy jumps from one true entry to the next, and a jump takes the time of ten entries.
    Here groups of eight entries with a true one are found first, then the true entries in these groups.
    """
    if 10 * np.count_nonzero(mask) > len(mask):
        return np.flatnonzero(mask)
    eights = np.packbits(mask)
    holding = np.flatnonzero(eights != 0)
    inside = np.flatnonzero(np.unpackbits(eights[holding]).view(np.bool_))
    positions: NDArray[np.int64] = (holding[inside >> 3] << 3) + (inside & 7)
    return positions


def purged_count(entries: int, sparsity: float) -> int:
    """Return floor(sparsity · entries) in decimal arithmetic: 0.29 of 100 is 29. Raise ConfigError outside [0, 1)."""
    if not 0 <= sparsity < 1:
        raise ConfigError(f"sparsity={sparsity}: must be a fraction in [0, 1).")
    return math.floor(Fraction(repr(float(sparsity))) * entries)


def purge(models: Tensor, prunable: Tensor, sparsity: float) -> Tensor:
    """Return models [c, d] with the smallest magnitudes among the entries `prunable` [m] set to zero, in place.

    `purged_count` entries of each model are set. Of equal magnitudes the lower index is kept; NaN counts as the
    largest.
    """
    purged = purged_count(len(prunable), sparsity)
    if purged == 0:
        return models
    order = models[:, prunable].abs().sort(dim=1, descending=True, stable=True).indices
    return models.scatter_(1, prunable[order[:, len(prunable) - purged :]], 0.0)


def cubic_sparsity(number: int, *, final: float, rounds: int, initial: float = 0.0) -> float:
    """Return the sparsity of a round: s_f + (s_i - s_f) (1 - round / rounds)³ (Zhu and Gupta, arXiv:1710.01878).

    The sparsity is s_f from round `rounds` on. Raises ConfigError unless 0 <= s_i <= s_f < 1 and rounds >= 1.
    """
    if not 0 <= initial <= final < 1:
        raise ConfigError(f"initial={initial}, final={final}: sparsities must be 0 <= initial <= final < 1.")
    if rounds < 1:
        raise ConfigError(f"rounds={rounds}: must be at least 1.")
    if number <= 0:
        return initial
    if number >= rounds:
        return final
    return final + (initial - final) * (1 - number / rounds) ** 3
