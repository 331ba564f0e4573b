"""A trusted sum: the aggregator sees every row and returns only their total."""

from __future__ import annotations

import torch
from torch import Tensor


class PlainSum:
    """Weighted sum of rows in float32, group by group."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._total = torch.zeros(size, device=device)

    def add(self, rows: Tensor, weights: Tensor | None = None) -> None:
        """Add rows [c, size], each times its weight [c] (1 where none are given)."""
        self._total += rows.sum(dim=0) if weights is None else weights.to(rows.dtype) @ rows

    def close(self) -> Tensor:
        """The total [size]."""
        return self._total
