"""FedMRN: a client sends which entries of noise, known to both sides by its seed, are close to its update.

Li et al., "Masked Random Noise for Communication Efficient Federated Learning" (FedMRN). Here the masks are drawn
from a finished update; training through the mask, where the method's accuracy comes from, uses the same noise and
`mask_probabilities`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from dpfed.compress import counter
from dpfed.compress.counter import client_seeds
from dpfed.compress.fields import SymbolField
from dpfed.compress.payload import Layout, Payload, Payloads, Seed, batched, checked_updates
from dpfed.errors import ConfigError

NOISES = ("uniform", "gaussian", "bernoulli")
_SMALLEST = 2.0**-24  # the least magnitude of noise, as a share of alpha
_AT_ONCE = 1 << 17
_AT_ONCE_GPU = 1 << 24


@dataclass(frozen=True, kw_only=True)
class _NoiseMasks:
    """What both kinds of mask share: the noise, and cutting clients and coordinates into pieces."""

    noise: str
    alpha: float
    signed: bool
    shared_seed: int | None

    def check(self, name: str) -> None:
        if self.noise not in NOISES:
            raise ConfigError(f"{name}: noise={self.noise!r}: must be one of {', '.join(NOISES)}.")
        if not 1e-30 <= self.alpha <= 1e30:
            raise ConfigError(f"{name}: alpha={self.alpha}: the size of the noise must be from 1e-30 to 1e30.")
        if self.shared_seed is not None:
            client_seeds([self.shared_seed], 1)

    def masks(self, updates: Tensor, seeds: Tensor) -> Tensor:
        """m ~ Bern(mask_probabilities), uint8 [c, d]; the coins are the client's own even if the noise is shared."""
        masks = torch.empty_like(updates, dtype=torch.uint8)
        for rows, columns, noise in self.pieces(seeds, len(updates), updates.shape[1]):
            chances = mask_probabilities(updates[rows, columns], noise, signed=self.signed)
            masks[rows, columns] = counter.coins(chances, seeds[rows], "masked_noise.coins", start=columns.start)
        return masks

    def decode(self, masks: Tensor, seeds: Tensor) -> Tensor:
        decoded = torch.empty_like(masks, dtype=torch.float32)
        for rows, columns, noise in self.pieces(seeds, *masks.shape):
            decoded[rows, columns] = mask_weights(masks[rows, columns].float(), signed=self.signed) * noise
        return decoded

    def mean(self, masks: Tensor, seeds: Tensor) -> Tensor:
        clients, dimension = masks.shape
        total = torch.zeros(dimension, dtype=torch.float32, device=masks.device)
        for rows, columns, noise in self.pieces(seeds, clients, dimension):
            total[columns] += (mask_weights(masks[rows, columns].float(), signed=self.signed) * noise).sum(dim=0)
        return total.div_(clients)

    def pieces(self, seeds: Tensor, clients: int, dimension: int) -> Iterator[tuple[slice, slice, Tensor]]:
        """Some clients, some coordinates, and their noise [rows, coordinates], or [1, coordinates] when shared."""
        room = _AT_ONCE if seeds.device.type == "cpu" else _AT_ONCE_GPU
        width = min(dimension, 1 << 16)
        height = max(1, room // width)
        for first in range(0, dimension, width):
            columns = slice(first, min(first + width, dimension))
            for row in range(0, clients, height):
                rows = slice(row, min(row + height, clients))
                yield rows, columns, self.noise_of(seeds[rows], columns.stop - first, start=first)

    def noise_of(self, seeds: Tensor, count: int, *, start: int = 0) -> Tensor:
        """Entries start .. start + count - 1; not to be written to."""
        if self.shared_seed is not None:
            seeds = client_seeds([self.shared_seed], 1).to(seeds.device)
        if seeds.device.type == "cpu" and len(seeds) * count <= _AT_ONCE:
            return _remembered_noise(tuple(seeds.tolist()), self.noise, self.alpha, count, start)
        return random_noise(seeds, self.noise, self.alpha, count, start=start)


@dataclass(frozen=True, kw_only=True)
class FedMrn:
    """Binary masks: m ~ Bern(clip(u / n, 0, 1)), decoded n m. About one bit a coordinate, less where |u| << alpha.

    E[n m] = u where 0 <= u / n <= 1. Where n has the wrong sign nothing is sent, which over symmetric noise halves
    the update; with noise shared by all clients they lose the same half.

    noise: "uniform" on [-alpha, alpha], "gaussian" of standard deviation alpha, or "bernoulli", ±alpha.
    shared_seed: the round's noise for every client, so that masks can be summed before they are decoded; None: every
                 client its own seed.

    The coins come from `seed`, repeatable: no privacy follows from them.
    """

    name: ClassVar[str] = "fedmrn"
    unbiased: ClassVar[bool] = False

    noise: str = "uniform"
    alpha: float = 1e-2
    shared_seed: int | None = None

    def __post_init__(self) -> None:
        self._kind.check(self.name)

    @property
    def linear(self) -> bool:
        return self.shared_seed is not None

    @property
    def _kind(self) -> _NoiseMasks:
        return _NoiseMasks(noise=self.noise, alpha=self.alpha, signed=False, shared_seed=self.shared_seed)

    def layout(self, dimension: int) -> Layout:
        return {"mask": SymbolField(alphabet=2, count=dimension)}

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        return _encode(self, self._kind, x, seed)

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batched(payloads, self)
        return self._kind.decode(sent["mask"], sent.seeds)

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batched(payloads, self)
        return self._kind.mean(sent["mask"], sent.seeds)


@dataclass(frozen=True, kw_only=True)
class FedMrnSigned:
    """Signed masks: m = ±1, +1 with probability clip((u + n) / (2 n), 0, 1), decoded n m. One bit a coordinate.

    E[n m] = u where |u| <= |n|. Options as in FedMrn; with shared noise prefer these masks: a sum s of c of them
    decodes to n (2 s - c).
    """

    name: ClassVar[str] = "fedmrns"
    unbiased: ClassVar[bool] = False

    noise: str = "uniform"
    alpha: float = 5e-3
    shared_seed: int | None = None

    def __post_init__(self) -> None:
        self._kind.check(self.name)

    @property
    def linear(self) -> bool:
        return self.shared_seed is not None

    @property
    def _kind(self) -> _NoiseMasks:
        return _NoiseMasks(noise=self.noise, alpha=self.alpha, signed=True, shared_seed=self.shared_seed)

    def layout(self, dimension: int) -> Layout:
        return {"mask": SymbolField(alphabet=2, count=dimension)}

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        return _encode(self, self._kind, x, seed)

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batched(payloads, self)
        return self._kind.decode(sent["mask"], sent.seeds)

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batched(payloads, self)
        return self._kind.mean(sent["mask"], sent.seeds)


def mask_probabilities(updates: Tensor, noise: Tensor, *, signed: bool, floor: float = 0.0) -> Tensor:
    """P(m = 1): clip(u / n, 0, 1), or signed clip((u + n) / (2 n), 0, 1); broadcast, n without zeros.

    `floor` c clips to [c, 1 - c] instead: a mask drawn with secret coins is then d randomised responses, pure
    differential privacy with ε = d log((1 - c) / c), and nothing at all with c = 0.
    """
    if not 0 <= floor <= 0.5:
        raise ConfigError(f"floor={floor}: the least probability of either outcome must be in [0, 1/2].")
    ratio = updates / noise
    return (ratio.add_(1).div_(2) if signed else ratio).clamp_(floor, 1 - floor)


def mask_weights(masks: Tensor, *, signed: bool) -> Tensor:
    """What noise is multiplied by: m, or signed 2 m - 1; float masks, in place."""
    return masks.mul_(2).sub_(1) if signed else masks


def random_noise(seeds: Tensor, noise: str, alpha: float, count: int, *, start: int = 0) -> Tensor:
    """Entries start .. start + count - 1 of every seed's noise, float32 [c, count], |n| >= 2^-24 alpha.

    No entry is zero, as u / n would be undefined: uniform noise sits at the odd multiples of 2^-24 alpha, and
    Gaussian noise closer to zero moves out to that.
    """
    purpose = "masked_noise"
    if noise == "uniform":
        drawn = counter.uniform(seeds, purpose, count, start=start).mul_(2).sub_(1 - _SMALLEST)
    elif noise == "gaussian":
        drawn = counter.normal(seeds, purpose, count, start=start)
        drawn = torch.where(drawn.abs() < _SMALLEST, torch.full_like(drawn, _SMALLEST).copysign_(drawn), drawn)
    else:
        drawn = counter.rademacher(seeds, purpose, count, start=start)
    return drawn.mul_(alpha)


@lru_cache(maxsize=32)
def _remembered_noise(seeds: tuple[int, ...], noise: str, alpha: float, count: int, start: int) -> Tensor:
    """From the encoder to the decoder of one process, and for all clients where they share it; 16 MiB at most."""
    return random_noise(torch.tensor(seeds, dtype=torch.int64), noise, alpha, count, start=start)


def _encode(scheme: FedMrn | FedMrnSigned, kind: _NoiseMasks, x: Tensor, seed: Seed) -> Payloads:
    x = checked_updates(x)
    seeds = client_seeds(seed, len(x)).to(x.device)
    mask = kind.masks(x, seeds)
    return Payloads.of(scheme, x.shape[1], seeds=None if scheme.linear else seeds, mask=mask)
