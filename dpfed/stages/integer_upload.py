"""Fixed point as the code of a round: whole numbers that are summed modulo 2^b."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.fixed_point import FixedPoint, saturated
from dpfed.compress.ring import centred
from dpfed.compress.ring_bytes import ring_from_bytes, ring_to_bytes
from dpfed.randomness import Randomness
from dpfed.seeds import Seeds
from dpfed.stages.code import Arrived, OnIntegers


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerUpload:
    """Rows of norm at most `clip_norm` are scaled, rotated, rounded at random; the sum is scaled and rotated back.

    bits: of the ring Z_{2^b}. A sum that leaves it wraps around, which costs accuracy. Noise is added to the rows that
          `send` returns, or to their sum before `decode` (`dpfed.stages.integer_sums`), which reduces it modulo 2^b
          again: (S mod M + N) mod M = (S + N) mod M, so that what is released is post-processing of S + N, whatever
          residues clients send. What `decode` returns is no sum that noise may be added to any more.
    """

    fixed_point: FixedPoint
    clip_norm: float
    bits: int
    seeds: Seeds
    randomness: Randomness

    @property
    def slots(self) -> None:
        return None

    @property
    def summed_as(self) -> torch.dtype:
        return torch.int64

    def width(self, size: int) -> int:
        return self.fixed_point.padded

    def fixed_bits(self, size: int) -> int:
        return self.fixed_point.padded * self.bits

    def send(self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived:
        encoded = self.fixed_point.encode(
            rows,
            clip_norm=self.clip_norm,
            rotation_seed=self._rotation(round),
            randomness=self.randomness,
            clients=clients,
            round=round,
        )
        integers = encoded.integers.to(rows.device, torch.int64)
        return Arrived(rows=integers, uplink_bytes=None, not_finite=encoded.gave_up)

    def messages(
        self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int, noise: OnIntegers | None = None
    ) -> list[bytes]:
        """`bits` an entry, with the client's noise: what a secure sum would take."""
        integers = self.send(rows, origin, clients, round).rows
        return ring_to_bytes(integers if noise is None else noise(integers), self.bits)

    def arrived(self, messages: Sequence[bytes], origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived:
        residues = ring_from_bytes(messages, size=self.fixed_point.padded, bits=self.bits)
        return Arrived(rows=centred(residues, self.bits).to(origin.device), uplink_bytes=None)

    def decode(self, total: Tensor, origin: Tensor, uploads: int, round: int) -> Tensor:
        """From a sum of integers with its noise, reduced before the noise or not: this reduces it after the noise."""
        return self.fixed_point.decode(centred(total, self.bits), rotation_seed=self._rotation(round))

    def near_the_ends(self, total: Tensor) -> int:
        return saturated(centred(total, self.bits), self.bits)

    def keep(self) -> Mapping[str, Tensor]:
        return {}

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        pass

    def _rotation(self, round: int) -> int:
        return self.seeds.integer("fixed_point.rotation", round)
