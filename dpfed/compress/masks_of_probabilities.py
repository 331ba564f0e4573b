"""Masks drawn from probabilities (FedPM), or their thresholds (FedMask), as schemes by themselves.

In rounds `dpfed.mechanisms.bernoulli` draws the coins, where they may be private; here they come from a seed,
repeatable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dpfed.compress import counter
from dpfed.compress.counter import client_seeds
from dpfed.compress.fields import SymbolField
from dpfed.compress.payload import (
    Layout,
    Payload,
    Payloads,
    Seed,
    batched,
    checked_updates,
    mean_of_decoded,
    refuse_rows,
)


@dataclass(frozen=True, kw_only=True)
class FedPm:
    """m ~ Bern(x) for probabilities x in [0, 1]; decoded m. One bit an entry, less where the ones are rare or common.

    Unbiased; the mean of n masks misses the mean probability by x (1 - x) / n (Isik et al. 2023). No privacy follows
    from coins that a seed repeats.
    """

    name: ClassVar[str] = "fedpm"
    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def layout(self, dimension: int) -> Layout:
        return {"mask": SymbolField(alphabet=2, count=dimension)}

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        x = _probabilities(x, self.name)
        seeds = client_seeds(seed, len(x)).to(x.device)
        return Payloads.of(self, x.shape[1], mask=counter.coins(x, seeds, "fedpm.coins").byte())

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        return batched(payloads, self)["mask"].float()

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        return mean_of_decoded(self.decode, payloads)


@dataclass(frozen=True, kw_only=True)
class FedMask:
    """m = 1[x >= 1/2] for probabilities x in [0, 1]; decoded m. Biased, no randomness (Li et al. 2021)."""

    name: ClassVar[str] = "fedmask"
    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False

    def layout(self, dimension: int) -> Layout:
        return {"mask": SymbolField(alphabet=2, count=dimension)}

    def encode(self, x: Tensor, *, seed: Seed = 0) -> Payloads:
        x = _probabilities(x, self.name)
        return Payloads.of(self, x.shape[1], mask=x.ge(0.5).byte())

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        return batched(payloads, self)["mask"].float()

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        return mean_of_decoded(self.decode, payloads)


def _probabilities(x: Tensor, name: str) -> Tensor:
    x = checked_updates(x)
    outside = (x < 0).any(dim=1) | (x > 1).any(dim=1)
    refuse_rows(outside, f"{name} takes probabilities, and one is outside [0, 1]", "clip them")
    return x
