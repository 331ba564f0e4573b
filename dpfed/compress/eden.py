"""EDEN: a rotated vector's coordinates at the centroids of the normal law, 1 to 4 bits each, or less than one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dpfed.compress.payload import Layout, Payload, Payloads, Seed, batched
from dpfed.compress.rotated_levels import UNBIASED, RotatedLevels, check_options
from dpfed.errors import ConfigError

POSITIVE_CENTROIDS: Mapping[int, tuple[float, ...]] = {
    1: (0.797884560802865356,),
    2: (0.452780034636492009, 1.5104176084990954),
    3: (0.245094178944221668, 0.756005281205877275, 1.34390927850499988, 2.15194570453698729),
    4: (
        0.12839502985114701,
        0.388048299490290197,
        0.656759118532463381,
        0.942340456486961371,
        1.25623119734717715,
        1.61804638602188263,
        2.06901722653138658,
        2.73258957099516307,
    ),
}
"""The quantiser of least squared error for N(0, 1) with 2^bits levels (Lloyd; Max, 1960): its levels above zero.

Each is the mean of N(0, 1) between the middles to its neighbours.
"""


@dataclass(frozen=True, kw_only=True)
class Eden:
    """The centroid nearest to each standardised coordinate of R x, and S (Vargaftik et al., "EDEN", ICML 2022).

    bits: 1, 2, 3 or 4 a coordinate: relative error of one vector .571, .133, .0358, .00959, divided by the number of
          clients in a mean. Or below 1: that share of the rotated coordinates at one bit, error (π/2) / bits - 1;
          which ones follows from the seed, so that they cost nothing.
    scale: "unbiased", S = ||y||^2 / <c, y>, or "min-mse", S = <c, y> / ||c||^2, which shrinks every coordinate.
    rounds, block: of the rotation, as in DRIVE.
    """

    name: ClassVar[str] = "eden"
    linear: ClassVar[bool] = False

    bits: float = 1
    scale: str = UNBIASED
    rounds: int = 2
    block: int = 1 << 16

    def __post_init__(self) -> None:
        if not (0 < self.bits < 1 or self.bits in POSITIVE_CENTROIDS):
            raise ConfigError(f"{self.name}: bits={self.bits}: must be 1, 2, 3 or 4, or between 0 and 1.")
        check_options(self.name, scale=self.scale, rounds=self.rounds, block=self.block)

    @property
    def unbiased(self) -> bool:
        return self.scale == UNBIASED and self.rounds > 1

    @property
    def quantiser(self) -> RotatedLevels:
        share = min(float(self.bits), 1.0)
        positive = POSITIVE_CENTROIDS[int(self.bits) if share == 1 else 1]
        levels = tuple(-level for level in reversed(positive)) + positive
        return RotatedLevels(levels=levels, scale=self.scale, rounds=self.rounds, block=self.block, share=share)

    def layout(self, dimension: int) -> Layout:
        return self.quantiser.layout(dimension)

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        return self.quantiser.encode(self, x, seed)

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        return self.quantiser.decode(batched(payloads, self))

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        return self.quantiser.mean(batched(payloads, self))
