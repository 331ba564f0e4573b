"""Integer noise on sums of integers: drawn by the server, or in shares of the clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import Release
from accounting.mechanisms import DiscreteGaussian, Sampling, SingleRelease, Skellam, subsample
from dpfed.mechanisms.integer_laws import IntegerLaw, law_of
from dpfed.randomness import Randomness
from dpfed.stages.stage import Round


@dataclass(frozen=True, kw_only=True)
class IntegerNoise:
    """Integer noise of the law that `noise` describes, on every row of integers, or on their sum.

    Claim: a round is `noise` on a cohort of the law `sampling`, if rows are integer vectors that keep to its `l2_bound`
    (`dpfed.stages.integers.Integers` after `dpfed.stages.clip.Clip`; `dpfed.stages.chain` holds them together). What is
    drawn has the description's own `share_variance`: what is charged is what is drawn. Everything after the sum is
    post-processing: the modulus, scaling and rotating back.

    `server` may be given a sum that was reduced modulo 2^b already, if what it returns is reduced again before anything
    else is done with it (`Integers.server` does): that is the noisy sum reduced, wherever either wraps around. So
    whatever residues others send, they move a client's own integers and noise, and hide none of the noise
    (docs/theory.md, section 7). With placement "clients" the noise is that of the clients which add theirs.

    charged: ledger lines say how many uploads arrived, which is what they charge; otherwise they hold no such count
    steps_per_unit, detail: what a ledger line says of the integers
    """

    noise: DiscreteGaussian | Skellam
    sampling: Sampling
    placement: Literal["server", "clients"]
    randomness: Randomness
    steps_per_unit: float
    detail: Mapping[str, Any]
    charged: bool = False

    @property
    def in_rows(self) -> bool:
        return self.placement == "clients"

    @property
    def in_every_upload(self) -> bool:
        return False

    def mechanism(self, uploads: int | None = None) -> SingleRelease:
        """One round, for the accountant; where that is charged, with the shares of `uploads`."""
        return subsample(self._arrived(uploads), self.sampling)

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        if self.placement == "clients":
            for row, client in zip(rows, ids, strict=True):
                row += self._drawn(row, "noise.share", now.number, int(client))
        return rows

    def server(self, total: Tensor, now: Round) -> Tensor:
        if self.placement != "server":
            return total
        noise = self._drawn(total, "noise.sum", now.number)
        if now.observer is not None:
            now.observer.noise(noise)
        return total.to(torch.int64) + noise

    def release(self, now: Round) -> Release:
        detail = {"dimension": now.projection.sent, **self.detail}
        if self.charged:
            detail["uploads"] = now.uploads
        return Release(
            round=now.number,
            mechanism=self.mechanism(now.uploads),
            clip_norm=now.clip_norm,
            noise_std=math.sqrt(self._arrived(now.uploads).variance) / self.steps_per_unit,
            noise_placement=self.placement,
            detail=detail,
        )

    @property
    def law(self) -> IntegerLaw:
        """The law of every draw."""
        return law_of(self.noise)

    def _arrived(self, uploads: int | None) -> DiscreteGaussian | Skellam:
        return replace(self.noise, shares=uploads) if self.charged and uploads is not None else self.noise

    def _drawn(self, like: Tensor, purpose: str, *path: int) -> Tensor:
        return torch.from_numpy(self.law.sample(len(like), self.randomness, purpose, *path)).to(like.device)
