"""Public linear maps: from a client's update in R^d to what is sent, and back.

A map is fixed for a round before any client trains. Its adjoint turns the (noisy) sum of what was sent into a vector
of R^d; the server divides that by the cohort size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.seeds import Seeds

_SHOWN = 4096


class Map(Protocol):
    """One round's map. `sent` is the number of values in what `forward` returns."""

    @property
    def sent(self) -> int: ...

    @property
    def facts(self) -> dict[str, Any] | None:
        """What is kept of a map that public data chose; None for any other."""

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        """[c, d] -> [c, sent]; may write into its argument."""

    def adjoint(self, total: Tensor) -> Tensor:
        """[sent] -> [d]."""

    def restrict(self, broadcast: Tensor) -> Tensor:
        """[d] -> [sent]: the broadcast entries that the sent ones are moves of; not scaled."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Everything is sent."""

    size: int

    @property
    def sent(self) -> int:
        return self.size

    @property
    def facts(self) -> None:
        return None

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return updates

    def adjoint(self, total: Tensor) -> Tensor:
        return total

    def restrict(self, broadcast: Tensor) -> Tensor:
        return broadcast


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedMask:
    """The same coordinates for every client of the round, times `scale` (Fed-SMP, Algorithm 2).

    With uniformly random indices and scale d/k the sent vector, scattered back, has the update as its mean over the
    mask; with chosen indices (top-k of a public update) scale is 1. Clipping happens after the scale, in the k
    values that are sent, so that their norm is the sensitivity. `chosen_by`: the fingerprint of the public samples that
    chose the indices, if any did.
    """

    size: int
    indices: Tensor
    scale: float
    chosen_by: str | None = None

    @property
    def sent(self) -> int:
        return len(self.indices)

    @property
    def facts(self) -> dict[str, Any] | None:
        if self.chosen_by is None:
            return None
        return {"samples": self.chosen_by, "kept": len(self.indices), "shown": shown(self.indices, self.size)}

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return updates.index_select(1, self.indices).mul_(self.scale)

    def adjoint(self, total: Tensor) -> Tensor:
        return total.new_zeros(self.size).index_copy_(0, self.indices, total)

    def restrict(self, broadcast: Tensor) -> Tensor:
        return broadcast.index_select(0, self.indices)


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedProbabilities:
    """Updates as moves of coins from 1/2: x signs / (2 bound), so that a coin of that mean, read as ±bound times its
    sign, has the mean x.

    Stochastic signs with a public bound (signs 1), and FedMRNS with noise ±bound that all clients share.
    """

    size: int
    signs: Tensor
    bound: float

    @property
    def sent(self) -> int:
        return self.size

    @property
    def facts(self) -> None:
        return None

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return updates.mul_(self.signs).div_(2 * self.bound)

    def adjoint(self, total: Tensor) -> Tensor:
        return total * self.signs * (2 * self.bound)

    def restrict(self, broadcast: Tensor) -> Tensor:
        return torch.full_like(broadcast, 0.5)


def shown(indices: Tensor, size: int) -> str:
    """Which of the coordinates 0, s, 2s, ... are among the indices, a bit each in hexadecimal; at most 8,191."""
    kept = torch.zeros(size, dtype=torch.bool)
    kept[indices.cpu()] = True
    return np.packbits(kept[:: max(1, size // _SHOWN)].numpy()).tobytes().hex()


def random_indices(size: int, kept: int, seeds: Seeds, purpose: str, *path: int) -> Tensor:
    """`kept` of `size` coordinates, uniformly without replacement, sorted, int64."""
    drawn = seeds.generator(purpose, *path).choice(size, kept, replace=False, shuffle=False)
    return torch.from_numpy(np.sort(drawn).astype(np.int64))


def top_indices(updates: Tensor, kept: int) -> Tensor:
    """Indices of the `kept` largest magnitudes of each row of [c, d], sorted, int64 [c, kept].

    Ties go to the lower index and NaN counts as zero: a stable sort, since torch.topk promises neither.
    """
    magnitudes = updates.abs().nan_to_num_(nan=0.0)
    order = torch.sort(magnitudes, dim=1, descending=True, stable=True).indices
    return order[:, :kept].sort(dim=1).values
