"""Who chooses the round's map: nobody, a public seed, or public data."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpfed.compress.counter import client_seeds
from dpfed.compress.masked_noise import random_noise
from dpfed.errors import ConfigError
from dpfed.seeds import Seeds
from dpfed.stages.maps import Identity, Map, SharedMask, SignedProbabilities, random_indices, top_indices

FLOAT_BITS = 32
SEED_BITS = 64


def index_bits(size: int) -> int:
    """Bits that name one of `size` coordinates."""
    return math.ceil(math.log2(size)) if size > 1 else 0


class Trainer(Protocol):
    """Trains on samples that are given (`dpfed.clients.LocalTraining`)."""

    def train_on(
        self, inputs: Tensor, labels: Tensor, broadcast: Tensor, *, round: int, seeds: Seeds, purpose: str
    ) -> Tensor:
        """The update [d] from broadcast [d]."""


class MapChoice(Protocol):
    """Fixes the map of a round from public things only: the broadcast weights, seeds, public data.

    `sent` is how many values a client sends, `downlink_bits` what it gets: the weights and the mask.
    """

    @property
    def sent(self) -> int: ...

    @property
    def downlink_bits(self) -> int: ...

    def for_round(self, weights: Tensor, round: int, seeds: Seeds) -> Map: ...


@dataclass(frozen=True, kw_only=True)
class SendAll:
    """No compression."""

    size: int

    @property
    def sent(self) -> int:
        return self.size

    @property
    def downlink_bits(self) -> int:
        return FLOAT_BITS * self.size

    def for_round(self, weights: Tensor, round: int, seeds: Seeds) -> Map:
        return Identity(size=self.size)


@dataclass(frozen=True, kw_only=True)
class RandomSharedMask:
    """Fed-SMP rand-k: k coordinates from the round's public seed, times d/k."""

    size: int
    kept: int

    @property
    def sent(self) -> int:
        return self.kept

    @property
    def downlink_bits(self) -> int:
        return FLOAT_BITS * self.size + SEED_BITS

    def for_round(self, weights: Tensor, round: int, seeds: Seeds) -> Map:
        indices = random_indices(self.size, self.kept, seeds, "mask.shared", round).to(weights.device)
        return SharedMask(size=self.size, indices=indices, scale=self.size / self.kept)


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

    def for_round(self, weights: Tensor, round: int, seeds: Seeds) -> Map:
        update = self.trainer.train_on(
            self.inputs, self.labels, weights, round=round, seeds=seeds, purpose="public.shuffle"
        )
        indices = top_indices(update[None], self.kept)[0]
        used = fingerprint(self.inputs, self.labels)
        return SharedMask(size=self.size, indices=indices, scale=1.0, chosen_by=used)


@dataclass(frozen=True, kw_only=True)
class PublicSigns:
    """What coins of an update are read with: +bound and -bound, or the round's shared noise ±bound (FedMRNS)."""

    size: int
    bound: float
    noise_purpose: str | None

    @property
    def sent(self) -> int:
        return self.size

    @property
    def downlink_bits(self) -> int:
        return FLOAT_BITS * self.size + (SEED_BITS if self.noise_purpose else 0)

    def for_round(self, weights: Tensor, round: int, seeds: Seeds) -> Map:
        signs = torch.ones(1, device=weights.device)
        if self.noise_purpose is not None:
            own = client_seeds([seeds.integer(self.noise_purpose, round)], 1).to(weights.device)
            signs = random_noise(own, "bernoulli", 1.0, self.size)[0]
        return SignedProbabilities(size=self.size, signs=signs, bound=self.bound)


def fingerprint(inputs: Tensor, labels: Tensor) -> str:
    """SHA-256 of samples in their order."""
    found = hashlib.sha256(f"{list(inputs.shape)} {inputs.dtype} {labels.dtype}".encode())
    for one in (inputs, labels):
        found.update(one.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def kept_coordinates(size: int, *, keep: float | None, k: int | None) -> int:
    """k, or the fraction `keep` of d coordinates; ConfigError unless 1 <= k <= d and exactly one is given."""
    if (keep is None) == (k is None):
        raise ConfigError(f"method.keep={keep}, method.k={k}: give exactly one, a fraction or a number of coordinates.")
    if keep is not None and not 0 < keep <= 1:
        raise ConfigError(f"method.keep={keep}: must be a fraction in (0, 1].")
    kept = k if k is not None else max(1, round(size * (keep or 0)))
    if not 1 <= kept <= size:
        raise ConfigError(f"method.k={kept}: must be from 1 to the model's d={size} coordinates.")
    return kept
