"""No compression: every coordinate as a float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dpfed.compress.fields import Floats
from dpfed.compress.payload import LARGEST_ENTRY, Layout, Payload, Payloads, Seed, batched, checked_updates
from dpfed.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Dense:
    """All d coordinates in float32, or float16 (relative error 2^-11; ConfigError above 65,504)."""

    name: ClassVar[str] = "dense"
    linear: ClassVar[bool] = True

    bits: int = 32

    def __post_init__(self) -> None:
        if self.bits not in (16, 32):
            raise ConfigError(f"bits={self.bits} of dense: must be 16 or 32.")

    @property
    def unbiased(self) -> bool:
        return self.bits == 32

    @property
    def largest_entry(self) -> float:
        return LARGEST_ENTRY if self.bits == 32 else 65_000.0

    def layout(self, dimension: int) -> Layout:
        return {"values": Floats(count=dimension, half=self.bits == 16)}

    def encode(self, x: Tensor, *, seed: Seed = 0) -> Payloads:
        x = checked_updates(x)
        values = x.to(torch.float16) if self.bits == 16 else x.clone()
        return Payloads.of(self, x.shape[1], values=values)

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        return batched(payloads, self)["values"].to(torch.float32)

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        return batched(payloads, self)["values"].mean(dim=0, dtype=torch.float32)
