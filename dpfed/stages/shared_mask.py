"""Fed-SMP's masks: all clients of a round send the same k coordinates, drawn at random or chosen by public data."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.data.dataset import floats_hold
from dpfed.errors import ConfigError
from dpfed.seeds import Seeds
from dpfed.stages.maps import FLOAT_BITS, SEED_BITS, Map

_SHOWN = 4096


class Trainer(Protocol):
    """Training on given samples (`dpfed.clients.LocalTraining`)."""

    def train_on(
        self, inputs: Tensor, labels: Tensor, broadcast: Tensor, *, number: int, seeds: Seeds, purpose: str
    ) -> Tensor:
        """Return the update [d] from broadcast [d]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedMask:
    """Map to coordinates that are equal for all clients of the round, times `scale` (Fed-SMP, Algorithm 2).

    With uniformly random indices and scale d/k, the sent vector scattered back to R^d has the update as its mean over
    masks. With chosen indices (top-k of a public update) scale is 1. Rows are clipped after scaling, in the k values
    that are sent, so that their norm is the sensitivity. `chosen_by`: the fingerprint of the public samples that
    chose the indices, else None.
    """

    size: int
    indices: Tensor
    scale: float
    chosen_by: str | None = None

    @property
    def sent(self) -> int:
        return len(self.indices)

    @property
    def description(self) -> dict[str, object] | None:
        if self.chosen_by is None:
            return None
        return {"samples": self.chosen_by, "kept": len(self.indices), "shown": sampled_bits(self.indices, self.size)}

    def forward(self, updates: Tensor, clients: NDArray[np.int64]) -> Tensor:
        return updates.index_select(1, self.indices).mul_(self.scale)

    def adjoint(self, total: Tensor) -> Tensor:
        return total.new_zeros(self.size).index_copy_(0, self.indices, total)

    def restrict(self, broadcast: Tensor) -> Tensor:
        return broadcast.index_select(0, self.indices)


@dataclass(frozen=True, kw_only=True)
class RandomSharedMask:
    """Fed-SMP rand-k: k coordinates drawn from the round's public seed, times d/k.

    stays:  True: the coordinates of the first round are used in every round
    scaled: False: without the factor d/k, as for Bernoulli samples, whose values are public
    """

    size: int
    kept: int
    stays: bool = False
    scaled: bool = True

    @property
    def sent(self) -> int:
        return self.kept

    @property
    def downlink_bits(self) -> int:
        return FLOAT_BITS * self.size + SEED_BITS

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        at = 0 if self.stays else number
        indices = random_indices(self.size, self.kept, seeds, "mask.shared", at).to(weights.device)
        scale = self.size / self.kept if self.scaled else 1.0
        return SharedMask(size=self.size, indices=indices, scale=scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicTopMask:
    """Fed-SMP top-k: the k largest magnitudes of an update trained by the server on public data."""

    size: int
    kept: int
    trainer: Trainer
    inputs: Tensor
    labels: Tensor

    @property
    def sent(self) -> int:
        return self.kept

    @property
    def downlink_bits(self) -> int:
        return FLOAT_BITS * self.size + min(self.size, self.kept * index_bits(self.size))

    def for_round(self, weights: Tensor, number: int, seeds: Seeds) -> Map:
        update = self.trainer.train_on(
            self.inputs, self.labels, weights, number=number, seeds=seeds, purpose="public.shuffle"
        )
        indices = top_indices(update[None], self.kept)[0]
        used = fingerprint(self.inputs, self.labels)
        return SharedMask(size=self.size, indices=indices, scale=1.0, chosen_by=used)


def sampled_bits(indices: Tensor, size: int) -> str:
    """Return one bit for each of the coordinates 0, s, 2s, ... (at most 8,191), set if it is among the indices, in
    hexadecimal."""
    kept = torch.zeros(size, dtype=torch.bool)
    kept[indices.cpu()] = True
    return np.packbits(kept[:: max(1, size // _SHOWN)].numpy()).tobytes().hex()


def random_indices(size: int, kept: int, seeds: Seeds, purpose: str, *path: int) -> Tensor:
    """Return `kept` of `size` coordinates, uniformly without replacement, sorted, int64."""
    drawn = seeds.generator(purpose, *path).choice(size, kept, replace=False, shuffle=False)
    return torch.from_numpy(np.sort(drawn).astype(np.int64))


def top_indices(updates: Tensor, kept: int) -> Tensor:
    """Return indices of the `kept` largest magnitudes of each row of [c, d], sorted, int64 [c, kept].

    Ties go to the lower index and NaN counts as zero: by a stable sort, since torch.topk guarantees neither.
    """
    magnitudes = updates.abs().nan_to_num_(nan=0.0)
    order = torch.sort(magnitudes, dim=1, descending=True, stable=True).indices
    return order[:, :kept].sort(dim=1).values


def index_bits(size: int) -> int:
    """Return the bits of an index of `size` coordinates."""
    return math.ceil(math.log2(size)) if size > 1 else 0


def fingerprint(inputs: Tensor, labels: Tensor) -> str:
    """Return the SHA-256 of samples in their order; integers and equal floats have equal digests."""
    if not inputs.is_floating_point() and floats_hold(inputs.cpu().numpy()):
        inputs = inputs.float()
    found = hashlib.sha256(f"{list(inputs.shape)} {inputs.dtype} {labels.dtype}".encode())
    for one in (inputs, labels):
        found.update(one.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def kept_coordinates(size: int, *, keep: float | None, k: int | None) -> int:
    """Return k, or the fraction `keep` of d coordinates; ConfigError unless exactly one is given and 1 <= k <= d."""
    if (keep is None) == (k is None):
        raise ConfigError(f"method.keep={keep}, method.k={k}: give exactly one, a fraction or a number of coordinates.")
    if keep is not None and not 0 < keep <= 1:
        raise ConfigError(f"method.keep={keep}: must be a fraction in (0, 1].")
    kept = k if k is not None else max(1, round(size * (keep or 0)))
    if not 1 <= kept <= size:
        raise ConfigError(f"method.k={kept}: must be from 1 to the model's d={size} coordinates.")
    return kept
