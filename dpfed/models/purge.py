"""Zeroing the smallest magnitudes of a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from torch import Tensor

from dpfed.errors import ConfigError

Sparsity = Callable[[int], float]
"""The share of prunable entries that are zero after so many rounds, in [0, 1)."""


def purged_count(entries: int, sparsity: float) -> int:
    """floor(sparsity · entries), the decimal fraction being meant: 0.29 of 100 is 29. ConfigError outside [0, 1)."""
    if not 0 <= sparsity < 1:
        raise ConfigError(f"sparsity={sparsity}: must be a fraction in [0, 1).")
    return math.floor(Fraction(repr(float(sparsity))) * entries)


def purge(models: Tensor, prunable: Tensor, sparsity: float) -> Tensor:
    """Models [c, d] with the smallest magnitudes among the entries `prunable` [m] zeroed: `purged_count` of each model.

    Of equal magnitudes the lower index is kept; NaN counts as the largest. Writes into its argument.
    """
    purged = purged_count(len(prunable), sparsity)
    if purged == 0:
        return models
    order = models[:, prunable].abs().sort(dim=1, descending=True, stable=True).indices
    return models.scatter_(1, prunable[order[:, len(prunable) - purged :]], 0.0)
