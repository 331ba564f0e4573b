"""Client-level privacy from coins: bound the move of a client's probabilities; the coins of its mask are the noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Release
from accounting.mechanisms import SingleRelease
from accounting.mechanisms.bernoulli import BernoulliChannel
from dpfed.stages.clip import ROOM_FOR_ROUNDING, Clipped, clip_rows

Seen = Literal["sum", "uploads"]


@dataclass(frozen=True, kw_only=True)
class ClientLevelCoins:
    """Clip every client's move of theta to `linf_clip` in each coordinate and to the L2 norm C; coins do the rest.

    Claim: a round is `mechanism`, in which one client moves its probabilities by at most C (L2) and linf_clip. What
    makes it private is done by `dpfed.stages.coins.Coins`, which must have the same edge, noise and slots: the
    composition root builds both from one plan. Nothing is added to the sum, everything after it is post-processing.
    """

    mechanism: SingleRelease
    linf_clip: float | None
    edge: float
    noise_std: float

    @property
    def on_integers(self) -> bool:
        return False

    @property
    def in_shares(self) -> bool:
        return False

    @property
    def in_every_upload(self) -> bool:
        return isinstance(self.mechanism, BernoulliChannel)

    def bound(self, rows: Tensor, norm: float) -> Clipped:
        if self.linf_clip is None:
            return clip_rows(rows, norm)
        # NaN stays NaN and infinity is kept for clip_rows to find: a wrong row counts as zero, not as a large move.
        infinite = rows.isinf().any(dim=1)
        within = rows.abs().amax(dim=1) <= self.linf_clip if rows.shape[1] else infinite.logical_not()
        largest = self.linf_clip * (1 - ROOM_FOR_ROUNDING)  # float32 might round the clip itself upwards
        rows.clamp_(-largest, largest)
        rows[infinite] = float("nan")
        clipped = clip_rows(rows, norm)
        return replace(clipped, inside=clipped.inside & within)

    def share(self, rows: Tensor, clients: NDArray[np.int64], norm: float, round: int) -> Tensor:
        return rows

    def finish(self, total: Tensor, norm: float, round: int) -> Tensor:
        return total

    def release(self, norm: float, round: int, sent: int, uploads: int) -> Release:
        detail: dict[str, float] = {"dimension": sent, "edge": self.edge}
        if self.linf_clip is not None:
            detail["linf_clip"] = self.linf_clip
        return Release(
            round=round,
            mechanism=self.mechanism,
            clip_norm=norm,
            noise_std=self.noise_std,
            noise_placement="uploads" if self.in_every_upload else "coins",
            detail=detail,
        )

    def next_norm(self, norm: float, centred_count: float, round: int) -> float:
        return norm
