"""Randomness for audits: every call is fresh, as from the operating system, and yet it can be repeated."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class OneStream:
    """Draws in the order of the calls, whatever they are called.

    An audit repeats one round thousands of times: by their names all its draws would be the same. What names do in a
    run (that no two rounds or clients share noise) is for `round_checks` to test, on the run's own source.
    """

    def __init__(self, seed: int) -> None:
        self._numpy = np.random.Generator(np.random.Philox(seed))

    @property
    def name(self) -> str:
        return "simulated"

    def uniform(self, count: int, purpose: str, *path: int) -> NDArray[np.float64]:
        return self._numpy.random(count)

    def bits(self, count: int, purpose: str, *path: int) -> NDArray[np.uint64]:
        return self._numpy.integers(0, 1 << 64, count, dtype=np.uint64)

    def subset(self, size: int, population: int, purpose: str, *path: int) -> NDArray[np.int64]:
        drawn = self._numpy.choice(population, size, replace=False, shuffle=False)
        return np.sort(drawn).astype(np.int64)

    def normal(self, count: int, purpose: str, *path: int, device: str = "cpu") -> Tensor:
        return torch.from_numpy(self._numpy.standard_normal(count).astype(np.float32)).to(device)


class NoDraws:
    """No randomness: every normal draw is zero, and nothing else can be drawn."""

    @property
    def name(self) -> str:
        return "none"

    def uniform(self, count: int, purpose: str, *path: int) -> NDArray[np.float64]:
        raise NotImplementedError(purpose)

    def bits(self, count: int, purpose: str, *path: int) -> NDArray[np.uint64]:
        raise NotImplementedError(purpose)

    def subset(self, size: int, population: int, purpose: str, *path: int) -> NDArray[np.int64]:
        raise NotImplementedError(purpose)

    def normal(self, count: int, purpose: str, *path: int, device: str = "cpu") -> Tensor:
        return torch.zeros(count, device=device)
