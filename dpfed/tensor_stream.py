"""Random tensors of one stream, one after the other: normal noise and coins."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class TensorStream(Protocol):
    """Every call goes on where the one before ended."""

    def normal(self, count: int) -> Tensor:
        """Independent standard normals, float32 [count]."""

    def fill_uniform(self, row: Tensor) -> None:
        """Independent uniforms on {0, 1, ..., 2^24 - 1} / 2^24 into row [n], float32, contiguous."""


class OnTheHost:
    """Drawn by numpy on the CPU, the same on every kind of processor, and copied to `device`.

    Not by torch, whose generator on the CPU keeps 32 bits of a seed, so that two of 10^5 streams are one more often
    than not, and whose float32 normals end at 5.77. Philox with keys of 128 bits; normals by the ziggurat in float64,
    rounded once.
    """

    def __init__(self, device: str, *, key: int) -> None:
        self._device = device
        self._generator = np.random.Generator(np.random.Philox(key=key))

    def normal(self, count: int) -> Tensor:
        return torch.from_numpy(self._generator.standard_normal(count).astype(np.float32)).to(self._device)

    def fill_uniform(self, row: Tensor) -> None:
        if row.device.type == "cpu":
            self._generator.random(dtype=np.float32, out=row.numpy())
        else:
            row.copy_(torch.from_numpy(self._generator.random(len(row), dtype=np.float32)))


class OnCuda:
    """Drawn on the GPU by torch's Philox: a seed of 64 bits is its key, beside a counter of 64 for each thread."""

    def __init__(self, device: str, *, key: int) -> None:
        self._generator = torch.Generator(device).manual_seed(key)

    def normal(self, count: int) -> Tensor:
        return torch.randn(count, generator=self._generator, device=self._generator.device)

    def fill_uniform(self, row: Tensor) -> None:
        row.uniform_(generator=self._generator)
