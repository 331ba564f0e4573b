"""FedSparsify: the smallest magnitudes of a model are purged, more of them every round.

Stripelis, Gupta, Ver Steeg, Ambite, "Federated Progressive Sparsification", arXiv:2204.12430; the schedule is that of
Zhu and Gupta, arXiv:1710.01878. What is sent is the model itself, not an update: the mean over clients of vectors
with zeros is biased by design.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from torch import Tensor

from dpfed.compress.fields import Floats, Indices
from dpfed.compress.largest import largest_indices, scattered, scattered_mean
from dpfed.compress.payload import Layout, Payload, Payloads, Seed, batched, checked_updates
from dpfed.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FedSparsify:
    """Exactly floor(sparsity · d) of all d numbers zeroed, the smallest in magnitude; a bitmap and the rest are sent.

    Of equal magnitudes the lower index is kept. The decimal fraction is meant: 0.29 of 100 is 29, whatever the
    nearest double to 0.29 is.
    """

    name: ClassVar[str] = "fedsparsify"
    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    sparsity: float = 0.97

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise ConfigError(f"sparsity={self.sparsity} of fedsparsify: must be a fraction in [0, 1).")

    def layout(self, dimension: int) -> Layout:
        kept = self._kept(dimension)
        return {"kept": Indices(size=dimension, count=kept), "values": Floats(count=kept)}

    def encode(self, x: Tensor, *, seed: Seed = 0) -> Payloads:
        x = checked_updates(x)
        kept = largest_indices(x, self._kept(x.shape[1]))
        return Payloads.of(self, x.shape[1], kept=kept, values=x.gather(1, kept))

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batched(payloads, self)
        return scattered(sent["values"], sent["kept"], sent.dimension)

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batched(payloads, self)
        return scattered_mean(sent["values"], sent["kept"], sent.dimension)

    def _kept(self, dimension: int) -> int:
        return dimension - math.floor(Fraction(repr(float(self.sparsity))) * dimension)


def cubic_sparsity(
    number: int, *, final: float, rounds: int, initial: float = 0.0, first: int = 0, every: int = 1
) -> float:
    """The sparsity of a round: s_f + (s_i - s_f) (1 - (round - first) / rounds)³.

    s_i up to round `first`, s_f from round first + rounds on; in between it moves once in `every` rounds. ConfigError
    unless 0 <= s_i <= s_f < 1 and rounds, every >= 1.
    """
    if not 0 <= initial <= final < 1:
        raise ConfigError(f"initial={initial}, final={final}: sparsities must be 0 <= initial <= final < 1.")
    if rounds < 1 or every < 1:
        raise ConfigError(f"rounds={rounds}, every={every}: both must be at least 1.")
    if number <= first:
        return initial
    if number >= first + rounds:
        return final
    step = (number - first) // every * every
    return final + (initial - final) * (1 - step / rounds) ** 3
