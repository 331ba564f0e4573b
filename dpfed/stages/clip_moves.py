"""Clip of a mask's moves: the bound on the change of a client's Bernoulli probabilities."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.stages.clip import ROOM_FOR_ROUNDING, ClippedRows, clip_rows, count_clipped, row_norms
from dpfed.stages.stage import Round, Stage


@dataclass(frozen=True, kw_only=True)
class ClipMoves(Stage):
    """Clip of a client's move of theta to at most `linf` in each coordinate (None: no such bound) and L2 norm C.

    metric: "euclidean"; or "fisher", in which both bounds are on the move over sqrt(theta (1 - theta)), theta the
    round's public probabilities clipped to [edge, 1 - edge]. Claim: both bounds hold in exact arithmetic. With these
    bounds the Bernoulli samples (`dpfed.mechanisms.bernoulli.Coins`) are the charged ones.
    """

    linf: float | None
    metric: str = "euclidean"
    edge: float = 0.0

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        if self.metric == "euclidean":
            return count_clipped(self.clip_to_bounds(rows, now.clip_norm), now)
        units = self.units(now.reference)
        clipped = self.clip_to_bounds(rows.div_(units), now.clip_norm)
        clipped.rows.mul_(units)
        return count_clipped(clipped, now)

    def units(self, reference: Tensor) -> Tensor:
        """Return the distance [k] that a coordinate moves for a move of 1 in the metric.

        The relative rounding error is at most 2^-22. The clip of rows in this unit lowers its bound by a relative
        `ROOM_FOR_ROUNDING`, which is more than this error and the rounding error of the product together.
        """
        return self._exact_units(reference).to(reference.dtype)

    def largest_bound_fraction(self, rows: Tensor, reference: Tensor, norm: float) -> float:
        """Return the largest fraction of either bound in rows [c, k]: at most 1 if all rows obey both bounds."""
        moves = rows.double() / self._exact_units(reference)
        largest = float(row_norms(moves).max()) / norm if len(rows) else 0.0
        return max(largest, float(moves.abs().max()) / self.linf) if self.linf and moves.numel() else largest

    def _exact_units(self, reference: Tensor) -> Tensor:
        if self.metric == "euclidean":
            return torch.ones_like(reference, dtype=torch.float64)
        theta = reference.double().clamp(self.edge, 1 - self.edge)
        return (theta * (1 - theta)).sqrt()

    def clip_to_bounds(self, rows: Tensor, norm: float) -> ClippedRows:
        """Clip rows to both bounds, in place."""
        if self.linf is None:
            return clip_rows(rows, norm)
        # NaN and infinity stay, so that clip_rows finds them: an invalid row counts as zero, not as a large move.
        infinite = rows.isinf().any(dim=1)
        within = rows.abs().amax(dim=1) <= self.linf if rows.shape[1] else infinite.logical_not()
        largest = self.linf * (1 - ROOM_FOR_ROUNDING)  # float32 might round the clip itself upwards
        rows.clamp_(-largest, largest)
        rows[infinite] = float("nan")
        clipped = clip_rows(rows, norm)
        inside = clipped.inside & within
        return replace(clipped, inside=inside, outside=clipped.outside | (clipped.inside & ~inside))
