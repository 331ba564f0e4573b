"""Client-level privacy of sums of integers: clip here; rounding and integer noise belong to the code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Release
from accounting.mechanisms import SingleRelease
from dpfed.privacy.clip import Clipped, clip_rows


@dataclass(frozen=True, kw_only=True)
class ClientLevelIntegers:
    """Clip every client's row to the norm C; its integers keep the bound after rounding, and carry the noise.

    Claim: a round whose sum holds `uploads` rows is `mechanism(uploads)`. What makes it so is done by
    `dpfed.compress.integer_upload.IntegerUpload`, which must have the same law, variance and steps: the composition
    root builds both from one plan. Everything after the sum is post-processing: the modulus, scaling and rotating back.
    """

    mechanism: Callable[[int], SingleRelease]
    noise_std: Callable[[int], float]
    placement: Literal["server", "clients"]
    detail: Mapping[str, Any]

    def bound(self, rows: Tensor, norm: float) -> Clipped:
        return clip_rows(rows, norm)

    def share(self, rows: Tensor, clients: NDArray[np.int64], norm: float, round: int) -> Tensor:
        return rows

    def finish(self, total: Tensor, norm: float, round: int) -> Tensor:
        return total

    def release(self, norm: float, round: int, sent: int, uploads: int) -> Release:
        detail = {"dimension": sent, **self.detail}
        if self.placement == "clients":
            detail["uploads"] = uploads
        return Release(
            round=round,
            mechanism=self.mechanism(uploads),
            clip_norm=norm,
            noise_std=self.noise_std(uploads),
            noise_placement=self.placement,
            detail=detail,
        )

    def next_norm(self, norm: float, centred_count: float, round: int) -> float:
        return norm
