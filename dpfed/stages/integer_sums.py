"""Client-level privacy of sums of integers: clip, then, after the rounding, integer noise in shares or on the sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Release
from accounting.mechanisms import SingleRelease
from dpfed.randomness import Randomness
from dpfed.stages.clip import Clipped, clip_rows
from dpfed.stages.integer_noise import IntegerLaw


@dataclass(frozen=True, kw_only=True)
class ClientLevelIntegers:
    """Clip every client's row to the norm C; add integer noise of `law` to every row's integers, or to their sum.

    `charged`: ledger lines say how many uploads arrived, which is what they charge; otherwise they hold no such count.

    Claim: a round whose sum holds `uploads` rows is `mechanism(uploads)`, if rows become integers in between that keep
    to the norm that is accounted: `dpfed.stages.integer_upload.IntegerUpload`, built from the same plan by the
    composition root. Everything after the sum is post-processing: the modulus, scaling and rotating back.

    `finish` may be given a sum that was reduced modulo 2^b already, if what it returns is reduced again before anything
    else is done with it (`IntegerUpload.decode` does): that is the noisy sum reduced, wherever either wraps around. So
    whatever residues others send, they move a client's own integers and noise, and hide none of the noise
    (docs/theory.md, section 7). With placement "clients" the noise is that of the clients which add theirs.
    """

    law: IntegerLaw
    randomness: Randomness
    mechanism: Callable[[int], SingleRelease]
    noise_std: Callable[[int], float]
    placement: Literal["server", "clients"]
    detail: Mapping[str, Any]
    charged: bool = False

    def bound(self, rows: Tensor, norm: float) -> Clipped:
        return clip_rows(rows, norm)

    @property
    def on_integers(self) -> bool:
        return True

    @property
    def in_shares(self) -> bool:
        return self.placement == "clients"

    @property
    def in_every_upload(self) -> bool:
        return False

    def share(self, rows: Tensor, clients: NDArray[np.int64], norm: float, round: int) -> Tensor:
        if self.placement == "clients":
            for row, client in zip(rows, clients, strict=True):
                row += self._noise(row, "noise.share", round, int(client))
        return rows

    def finish(self, total: Tensor, norm: float, round: int) -> Tensor:
        if self.placement == "server":
            total = total.to(torch.int64)
            total += self._noise(total, "noise.sum", round)
        return total

    def release(self, norm: float, round: int, sent: int, uploads: int) -> Release:
        detail = {"dimension": sent, **self.detail}
        if self.charged:
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

    def _noise(self, like: Tensor, purpose: str, *path: int) -> Tensor:
        return torch.from_numpy(self.law.sample(len(like), self.randomness, purpose, *path)).to(like.device)
