"""DRIVE: the signs of a rotated vector, one bit a coordinate, and one scale a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dpfed.compress.payload import Layout, Payload, Payloads, Seed, batched
from dpfed.compress.rotated_levels import UNBIASED, RotatedLevels, check_options


@dataclass(frozen=True, kw_only=True)
class Drive:
    """sign(R x) and S (Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021).

    scale: "unbiased", S = ||y||^2 / ||y||_1, relative error π/2 - 1 = .571 of one vector, divided by the number of
           clients in a mean; the same as EDEN with one bit. Or "min-mse", S = ||y||_1 / n, error 1 - 2/π = .363, but
           every coordinate shrinks by 2/π, which no mean over clients undoes.
    rounds: of the randomised Hadamard rotation of 2^16 coordinates; smaller blocks get more, for the same quality. With
            one the unbiased scale is biased on spiky vectors.
    block: coordinates rotated together, a power of two. A vector is cut into blocks, so that d = 1025 costs 1025 bits.
    """

    name: ClassVar[str] = "drive"
    linear: ClassVar[bool] = False

    scale: str = UNBIASED
    rounds: int = 2
    block: int = 1 << 16

    def __post_init__(self) -> None:
        check_options(self.name, scale=self.scale, rounds=self.rounds, block=self.block)

    @property
    def unbiased(self) -> bool:
        return self.scale == UNBIASED and self.rounds > 1

    @property
    def quantiser(self) -> RotatedLevels:
        return RotatedLevels(levels=(-1.0, 1.0), scale=self.scale, rounds=self.rounds, block=self.block)

    def layout(self, dimension: int) -> Layout:
        return self.quantiser.layout(dimension)

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        return self.quantiser.encode(self, x, seed)

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        return self.quantiser.decode(batched(payloads, self))

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        return self.quantiser.mean(batched(payloads, self))
