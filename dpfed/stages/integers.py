"""Integers: rows become whole numbers, whose sum is taken modulo 2^b."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.fixed_point import FixedPoint, saturated
from dpfed.compress.ring import centred
from dpfed.randomness import Randomness
from dpfed.seeds import Seeds
from dpfed.stages.stage import Round


@dataclass(frozen=True, kw_only=True, eq=False)
class Integers:
    """Rows of norm at most `clip_norm` are scaled, rotated, rounded at random; the sum is scaled and rotated back.

    bits: of the ring Z_{2^b}. A sum that leaves it wraps around, which costs accuracy. Noise is added to the rows that
          `client` returns, or to their sum before `server` (`dpfed.mechanisms.integers`), which reduces it modulo 2^b
          again: (S mod M + N) mod M = (S + N) mod M, so that what is released is post-processing of S + N, whatever
          residues clients send. What `server` returns is no sum that noise may be added to any more.
    """

    fixed_point: FixedPoint
    clip_norm: float
    bits: int
    seeds: Seeds
    randomness: Randomness

    @property
    def summed_as(self) -> torch.dtype:
        return torch.int64

    def width(self, size: int) -> int:
        return self.fixed_point.padded

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        encoded = self.fixed_point.encode(
            rows,
            clip_norm=self.clip_norm,
            rotation_seed=self._rotation(now.number),
            randomness=self.randomness,
            clients=ids,
            number=now.number,
        )
        now.tally.not_finite += encoded.gave_up
        return encoded.integers.to(rows.device, torch.int64)

    def server(self, total: Tensor, now: Round) -> Tensor:
        """From a sum of integers with its noise, reduced before the noise or not: this reduces it after the noise."""
        return self.fixed_point.decode(centred(total, self.bits), rotation_seed=self._rotation(now.number))

    def near_the_ends(self, total: Tensor) -> int:
        """How many entries of a sum in the ring have probably wrapped around."""
        return saturated(centred(total, self.bits), self.bits)

    def _rotation(self, number: int) -> int:
        return self.seeds.integer("fixed_point.rotation", number)
