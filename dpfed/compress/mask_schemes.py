"""Mask schemes, one bit or less per coordinate: masks of shared noise (FedMRN), or of probabilities (FedPM, FedMask).

Masks as bytes, range-coded with probabilities that encoder and decoder both have.

The length of a coded mask is its cross-entropy with these probabilities: below 1 bit per entry unless they are 1/2.
Entries of similar probability are coded together, eight to a symbol, with their mean probability.

FedMRN: client and server draw noise from the client's seed, and the client sends a mask of the noise entries close to
its update (Li et al., "Masked Random Noise for Communication Efficient Federated Learning"). Here masks are drawn from
a finished update. Training through the mask, on which the method's accuracy depends, uses the same noise and
`mask_probabilities`.

FedPM and FedMask: in rounds `dpfed.mechanisms.bernoulli` draws the masks, with privacy if configured. Here masks are
drawn repeatably from a seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import ClassVar, Literal

import constriction
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress import counter
from dpfed.compress.counter import client_seeds
from dpfed.compress.fields import SymbolField
from dpfed.compress.payload import Batch, Layout, Payload, Payloads, Scheme, Seed, batch, checked_updates, refuse_rows
from dpfed.errors import ConfigError, WireError

PROBABILITY_STEPS = 4096
"""Probabilities are rounded to multiples of 1/4096 before coding, so that the model is equal on every machine."""

_GROUP = 8
_MEAN_STEPS = 1 << 16
_WEIGHT_BITS = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskCoder:
    """Encoder and decoder of masks [n] whose entries are 1 with `probabilities` [n]; an instance is for many masks.

    Probabilities p are grouped by isqrt(2 · 4096 p), or that of 1 - p above 1/2, into 129 contexts. Coding with a
    context's mean probability takes at most 1e-4 bits per entry more than with the exact ones. The entries of a context
    form symbols of eight, in order; the remaining entries are coded one by one with their own probability. The model is
    in integers throughout, so encoder and decoder have equal models.
    """

    probabilities: NDArray[np.float32]

    def encode(self, mask: NDArray[np.bool_]) -> bytes:
        """Return the bytes of a mask. Any mask can be coded; a mask likely under the probabilities is shorter.

        The size is about the cross-entropy in bits, plus at most 64 bits and 1e-4 bits per entry.
        """
        entries = mask.view(np.uint8)
        symbols = np.packbits(entries[self._grouped_entries], bitorder="little").astype(np.int32)
        encoder = constriction.stream.queue.RangeEncoder()
        for first, last, model in self._models:
            encoder.encode(symbols[first:last], model)
        if len(self._singles):
            encoder.encode(
                entries[self._singles].astype(np.int32), _bit_model(), self._steps[self._singles] / PROBABILITY_STEPS
            )
        words: bytes = encoder.get_compressed().astype("<u4").tobytes()
        return words

    def decode(self, content: bytes) -> NDArray[np.bool_]:
        """Return the mask [n] of `encode` with the same probabilities.

        Bytes may come from an attacker: any bytes of a multiple of four decode to some mask, in memory bounded by n.
        Raises WireError for another length, for more bytes than any mask needs, and for bytes left over.
        """
        count = len(self.probabilities)
        if len(content) % 4 or len(content) > 4 * (count * 13 // 32 + 3):
            raise WireError(
                f"a mask of {len(content)} bytes: must be a multiple of 4 and at most what {count} entries can need. "
                "The upload is damaged or forged; drop it."
            )
        decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(content, dtype="<u4").astype(np.uint32))
        symbols = np.empty(len(self._grouped_entries) // _GROUP, dtype=np.uint8)
        mask = np.empty(count, dtype=np.uint8)
        try:
            for first, last, model in self._models:
                symbols[first:last] = decoder.decode(model, last - first)
            if len(self._singles):
                mask[self._singles] = decoder.decode(_bit_model(), self._steps[self._singles] / PROBABILITY_STEPS)
        except (AssertionError, ValueError) as error:
            raise WireError(f"a mask of {len(content)} bytes: not a coded mask ({error}). Drop it.") from None
        if not decoder.maybe_exhausted():
            raise WireError(f"a mask of {len(content)} bytes: more than its {count} entries need. Drop it.")
        mask[self._grouped_entries] = np.unpackbits(symbols, bitorder="little")
        return mask.view(np.bool_)

    @cached_property
    def _steps(self) -> NDArray[np.uint16]:
        steps = np.rint(self.probabilities.astype(np.float64) * PROBABILITY_STEPS)
        return np.clip(steps, 1, PROBABILITY_STEPS - 1).astype(np.uint16)

    @cached_property
    def _context_order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The entries ordered by context, and the start of each context in this order, with the end."""
        contexts = _CONTEXTS[self._steps]
        starts = np.concatenate([[0], np.cumsum(np.bincount(contexts, minlength=int(_CONTEXTS.max()) + 1))])
        return np.argsort(contexts, kind="stable"), starts

    @cached_property
    def _grouped_entries(self) -> NDArray[np.int64]:
        """The entries that are coded eight at a time, in order."""
        order, starts = self._context_order
        return np.concatenate([order[a : b - (b - a) % _GROUP] for a, b in pairwise(starts)])

    @cached_property
    def _singles(self) -> NDArray[np.int64]:
        order, starts = self._context_order
        return np.concatenate([order[b - (b - a) % _GROUP : b] for a, b in pairwise(starts)])

    @cached_property
    def _models(self) -> list[tuple[int, int, constriction.stream.model.Categorical]]:
        """For every context, the (first, end) of its symbols and their model."""
        order, starts = self._context_order
        models, first = [], 0
        for a, b in pairwise(starts.tolist()):
            last = first + (b - a) // _GROUP
            if last > first:
                total = int(self._steps[order[a:b]].sum(dtype=np.int64))
                models.append((first, last, _byte_model(total * _MEAN_STEPS // (PROBABILITY_STEPS * (b - a)))))
            first = last
        return models


def mask_to_bytes(mask: NDArray[np.bool_], probabilities: NDArray[np.float32]) -> bytes:
    """Return `MaskCoder.encode` of one mask."""
    return MaskCoder(probabilities=probabilities).encode(mask)


def mask_from_bytes(content: bytes, probabilities: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return `MaskCoder.decode` of one mask."""
    return MaskCoder(probabilities=probabilities).decode(content)


def _bit_model() -> constriction.stream.model.Bernoulli:
    return constriction.stream.model.Bernoulli(perfect=False)


def _byte_model(ones: int) -> constriction.stream.model.Categorical:
    """Return the model of a byte of eight Bernoulli samples with mean ones / 65,536; weights in whole numbers."""
    shift = 16 * _GROUP - _WEIGHT_BITS
    by_ones = [max(1, ones**k * (_MEAN_STEPS - ones) ** (_GROUP - k) >> shift) for k in range(_GROUP + 1)]
    weights = np.array([by_ones[byte.bit_count()] for byte in range(1 << _GROUP)], dtype=np.float64)
    return constriction.stream.model.Categorical(weights, perfect=False)


def _context_of_steps(steps: int) -> int:
    below = min(steps, PROBABILITY_STEPS - steps)
    place = math.isqrt(2 * below)
    return place if steps == below else 2 * math.isqrt(PROBABILITY_STEPS) - place


_CONTEXTS = np.array([_context_of_steps(steps) for steps in range(PROBABILITY_STEPS + 1)], dtype=np.uint8)


Noise = Literal["uniform", "gaussian", "bernoulli"]
_SMALLEST = 2.0**-24  # the least magnitude of noise, as a fraction of alpha
_AT_ONCE = 1 << 17
_AT_ONCE_GPU = 1 << 24


@dataclass(frozen=True, kw_only=True)
class FedMrn(Scheme):
    """Binary masks: m ~ Bern(clip(u / n, 0, 1)), decoded to n m. About one bit per coordinate, less if |u| << alpha.

    E[n m] = u if 0 <= u / n <= 1. If n has the wrong sign nothing is sent, which halves the update over symmetric
    noise. With noise shared by all clients, all lose the same half.

    noise:       "uniform" on [-alpha, alpha], "gaussian" of standard deviation alpha, or "bernoulli", ±alpha.
    shared_seed: seed of the round's noise for every client, so that masks can be summed before they are decoded; None:
                 a separate seed for every client.

    The Bernoulli samples are repeatable from `seed`, so they give no privacy.
    """

    name: ClassVar[str] = "fedmrn"
    unbiased: ClassVar[bool] = False
    signed: ClassVar[bool] = False

    noise: Noise = "uniform"
    alpha: float = 1e-2
    shared_seed: int | None = None

    def __post_init__(self) -> None:
        if not 1e-30 <= self.alpha <= 1e30:
            raise ConfigError(f"{self.name}: alpha={self.alpha}: the size of the noise must be from 1e-30 to 1e30.")
        if self.shared_seed is not None:
            client_seeds([self.shared_seed], 1)

    @property
    def linear(self) -> bool:
        return self.shared_seed is not None

    def layout(self, dimension: int) -> Layout:
        return {"mask": SymbolField(alphabet=2, count=dimension)}

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        """Return masks m ~ Bern(mask_probabilities); each client's samples are separate even if the noise is shared."""
        x = checked_updates(x)
        seeds = client_seeds(seed, len(x)).to(x.device)
        masks = torch.empty_like(x, dtype=torch.uint8)
        for rows, columns, noise in self._noise_pieces(seeds, *x.shape):
            chances = mask_probabilities(x[rows, columns], noise, signed=self.signed)
            masks[rows, columns] = counter.coins(chances, seeds[rows], "masked_noise.coins", start=columns.start)
        return Payloads.of(self, x.shape[1], seeds=None if self.linear else seeds, mask=masks)

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        decoded = torch.empty_like(sent["mask"], dtype=torch.float32)
        for rows, columns, part in self._decoded_pieces(sent):
            decoded[rows, columns] = part
        return decoded

    def mean(self, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        total = torch.zeros(sent.dimension, dtype=torch.float32, device=sent.seeds.device)
        for _, columns, part in self._decoded_pieces(sent):
            total[columns] += part.sum(dim=0)
        return total.div_(len(sent))

    def _decoded_pieces(self, sent: Batch) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield ranges of clients and of coordinates, with their masked noise."""
        masks = sent["mask"]
        for rows, columns, noise in self._noise_pieces(sent.seeds, *masks.shape):
            yield rows, columns, mask_weights(masks[rows, columns].float(), signed=self.signed) * noise

    def _noise_pieces(self, seeds: Tensor, clients: int, dimension: int) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield ranges of clients and of coordinates, with their noise [rows, coordinates], or [1, coordinates] if it
        is shared."""
        room = _AT_ONCE if seeds.device.type == "cpu" else _AT_ONCE_GPU
        width = min(dimension, 1 << 16)
        height = max(1, room // width)
        for first in range(0, dimension, width):
            columns = slice(first, min(first + width, dimension))
            for row in range(0, clients, height):
                rows = slice(row, min(row + height, clients))
                yield rows, columns, self._noise_entries(seeds[rows], columns.stop - first, start=first)

    def _noise_entries(self, seeds: Tensor, count: int, *, start: int) -> Tensor:
        """Return entries start .. start + count - 1 of the noise; the tensor must not be written to."""
        if self.shared_seed is not None:
            seeds = client_seeds([self.shared_seed], 1).to(seeds.device)
        if seeds.device.type == "cpu" and len(seeds) * count <= _AT_ONCE:
            return _remembered_noise(tuple(seeds.tolist()), self.noise, self.alpha, count, start)
        return random_noise(seeds, self.noise, self.alpha, count, start=start)


@dataclass(frozen=True, kw_only=True)
class FedMrnSigned(FedMrn):
    """Signed masks: m = ±1, +1 with probability clip((u + n) / (2 n), 0, 1), decoded to n m. One bit per coordinate.

    E[n m] = u if |u| <= |n|. Options as in FedMrn. With shared noise signed masks are preferable: a sum s of c masks
    decodes to n (2 s - c).
    """

    name: ClassVar[str] = "fedmrns"
    signed: ClassVar[bool] = True

    alpha: float = 5e-3


def mask_probabilities(updates: Tensor, noise: Tensor, *, signed: bool) -> Tensor:
    """Return P(m = 1): clip(u / n, 0, 1), or signed clip((u + n) / (2 n), 0, 1); broadcast, n without zeros."""
    ratio = updates / noise
    return (ratio.add_(1).div_(2) if signed else ratio).clamp_(0, 1)


def mask_weights(masks: Tensor, *, signed: bool) -> Tensor:
    """Return the factors of the noise, in place of float masks m: m, or signed 2 m - 1."""
    return masks.mul_(2).sub_(1) if signed else masks


def random_noise(seeds: Tensor, noise: str, alpha: float, count: int, *, start: int = 0) -> Tensor:
    """Return entries start .. start + count - 1 of every seed's noise, float32 [c, count], |n| >= 2^-24 alpha.

    No entry is zero, as u / n would be undefined: uniform noise takes odd multiples of 2^-24 alpha, and Gaussian noise
    of smaller magnitude is moved out to 2^-24 alpha.
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
    """Return noise, cached for the decoder of the same process, and for all clients that share it; at most 16 MiB."""
    return random_noise(torch.tensor(seeds, dtype=torch.int64), noise, alpha, count, start=start)


@dataclass(frozen=True, kw_only=True)
class FedPm(Scheme):
    """Masks m ~ Bern(x) for probabilities x in [0, 1]; decoded to m. One bit per entry, less if ones are rare or
    common.

    Unbiased; the squared error of the mean of n masks is x (1 - x) / n (Isik et al. 2023). Samples that can be repeated
    from a seed give no privacy.
    """

    name: ClassVar[str] = "fedpm"
    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def layout(self, dimension: int) -> Layout:
        return {"mask": SymbolField(alphabet=2, count=dimension)}

    def encode(self, x: Tensor, *, seed: Seed) -> Payloads:
        x = checked_updates(x)
        outside = (x < 0).any(dim=1) | (x > 1).any(dim=1)
        refuse_rows(outside, f"{self.name} accepts probabilities, and one is outside [0, 1]", "clip them")
        return Payloads.of(self, x.shape[1], mask=self._masks(x, seed).byte())

    def decode(self, payloads: Sequence[Payload]) -> Tensor:
        return batch(payloads, self)["mask"].float()

    def _masks(self, x: Tensor, seed: Seed) -> Tensor:
        return counter.coins(x, client_seeds(seed, len(x)).to(x.device), "fedpm.coins")


@dataclass(frozen=True, kw_only=True)
class FedMask(FedPm):
    """Masks m = 1[x >= 1/2] for probabilities x in [0, 1]; decoded to m. Biased, no randomness (Li et al. 2021)."""

    name: ClassVar[str] = "fedmask"
    unbiased: ClassVar[bool] = False

    def encode(self, x: Tensor, *, seed: Seed = 0) -> Payloads:
        return super().encode(x, seed=seed)

    def _masks(self, x: Tensor, seed: Seed) -> Tensor:
        return x.ge(0.5)
