"""Sums of long rows that do not depend on how many threads there are."""

from __future__ import annotations

import torch
from torch import Tensor

_RUN = 64


def row_sums(rows: Tensor) -> Tensor:
    """The sums [c] of rows [c, n], float64: of runs of 64 in float32, then of those in float64.

    A few times as fast as float64 throughout. Relative to the sum of magnitudes the error is below 64 · 2^-24.
    """
    whole = rows.shape[1] // _RUN * _RUN
    runs = rows[:, :whole].reshape(len(rows), whole // _RUN, _RUN).sum(dim=2).sum(dim=1, dtype=torch.float64)
    return runs if whole == rows.shape[1] else runs + rows[:, whole:].sum(dim=1, dtype=torch.float64)
