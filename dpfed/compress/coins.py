"""Coins on the wire: masks of FedPM and FedMask, and what their sum says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting import debias
from dpfed.compress.code import Arrived, OnIntegers
from dpfed.compress.mask_bytes import mask_from_bytes, mask_to_bytes
from dpfed.compress.ring_bytes import ring_from_bytes, ring_to_bytes
from dpfed.errors import ConfigError, WireError
from dpfed.randomness import Randomness


@dataclass(frozen=True, kw_only=True, eq=False)
class Coins:
    """Rows are moves of mask probabilities; a client sends the coins of the probabilities it ends at (FedPM).

        p = clip(origin + row [+ N(0, noise_std^2)], edge, 1 - edge);   m ~ Bern(p), or 1[p >= 1/2] if not `stochastic`

    in float64 with 53-bit uniforms, so that a coin has its probability to 2^-53. The sum S of m over K uploads decodes
    to S - K g(origin), g being the mean of a coin: g(p) = p without noise, accounting.debias.clipped_mean with it; with
    `correction` "linear" that is divided by g', with "invert" it is K (g^-1(S / K) - origin).

    slots: K, where the sum must always hold so many uploads of clients: what is missing is filled with coins of the
           public origin. Of clients the caller sends no more than K.
    canaries: how many made-up clients take part in a round on top of them
    summed: what is seen is the sum, so an upload is an integer of `bits` an entry, else a mask in bytes, range-coded
           with the public origin.
    bits:   of the ring that the sum lives in; ceil(log2(K + 1)) where it always holds K uploads
    """

    randomness: Randomness
    edge: float
    stochastic: bool = True
    noise_std: float = 0.0
    correction: str = "linear"
    slots: int | None = None
    canaries: Callable[[int], int] | None = None
    summed: bool = False
    bits: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.edge < 0.5:
            raise ConfigError(f"mask.edge={self.edge}: must be in [0, 1/2).")
        if self.correction not in ("none", "linear", "invert"):
            raise ConfigError(f"privacy.correction={self.correction!r}: must be none, linear or invert.")

    @property
    def summed_as(self) -> torch.dtype:
        return torch.float32

    def width(self, size: int) -> int:
        return size

    def fixed_bits(self, size: int) -> int | None:
        bits = self._bits_an_entry
        return None if bits is None or not self.summed else size * bits

    @property
    def _bits_an_entry(self) -> int | None:
        return self.bits or (None if self.slots is None else self.slots.bit_length())

    def send(self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived:
        masks = self._masks(rows, origin, clients, round)
        if self.summed:
            return Arrived(rows=masks, uplink_bytes=None)
        return Arrived(rows=masks, uplink_bytes=sum(map(len, self._coded(masks, origin))))

    def messages(
        self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int, noise: OnIntegers | None = None
    ) -> list[bytes]:
        masks = self._masks(rows, origin, clients, round)
        if self.summed:
            return ring_to_bytes(masks, self._bits_an_entry or 1)
        return self._coded(masks, origin)

    def arrived(self, messages: Sequence[bytes], origin: Tensor, clients: NDArray[np.int64], round: int) -> Arrived:
        if self.summed:
            entries = ring_from_bytes(messages, size=len(origin), bits=self._bits_an_entry or 1)
            if len(entries) and int(entries.max()) > 1:
                raise WireError(f"an entry {int(entries.max())} of a mask: must be 0 or 1. Drop the client's message.")
            return Arrived(rows=entries.to(origin.device, origin.dtype), uplink_bytes=None)
        probabilities = origin.cpu().numpy()
        masks = torch.empty(len(messages), len(origin), dtype=origin.dtype)
        for mask, message in zip(masks, messages, strict=True):
            mask.copy_(torch.from_numpy(mask_from_bytes(message, probabilities)))
        return Arrived(rows=masks.to(origin.device), uplink_bytes=sum(map(len, messages)))

    def decode(self, total: Tensor, origin: Tensor, uploads: int, round: int) -> Tensor:
        total = total.to(origin.dtype)
        if self.slots is not None:
            slots = self.slots + (0 if self.canaries is None else self.canaries(round))
            for missing in range(slots - uploads):
                total = total + self._toss(origin.double(), "coins.padding", round, missing)
            uploads = slots
        if not self.noise_std:
            return total - uploads * origin.clamp(self.edge, 1 - self.edge)
        return self._corrected(total, origin, uploads)

    def near_the_ends(self, total: Tensor) -> None:
        return None

    def keep(self) -> Mapping[str, Tensor]:
        return {}

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        pass

    def _masks(self, rows: Tensor, origin: Tensor, clients: NDArray[np.int64], round: int) -> Tensor:
        """What clients toss, zeros and ones in the dtype of rows."""
        masks = torch.empty_like(rows)
        for row, mask, client in zip(rows, masks, clients, strict=True):
            mask.copy_(self._toss(origin.double() + row.double(), "coins", round, int(client)))
        return masks

    def _coded(self, masks: Tensor, origin: Tensor) -> list[bytes]:
        probabilities = origin.cpu().numpy()
        return [mask_to_bytes(mask.cpu().numpy() != 0, probabilities) for mask in masks]

    def _toss(self, probabilities: Tensor, purpose: str, *path: int) -> Tensor:
        """Coins [k] of probabilities [k], float64, after noise and clip."""
        if self.noise_std:
            noise = self.randomness.normal(
                len(probabilities), purpose + ".noise", *path, device=str(probabilities.device)
            )
            probabilities = probabilities + self.noise_std * noise
        clipped = probabilities.clamp(self.edge, 1 - self.edge)
        if not self.stochastic:
            return clipped.ge(0.5)
        uniforms = torch.from_numpy(self.randomness.uniform(len(clipped), purpose, *path)).to(clipped.device)
        return uniforms.lt(clipped)

    def _corrected(self, total: Tensor, origin: Tensor, uploads: int) -> Tensor:
        setting = {"c": self.edge, "noise_std": self.noise_std}
        start = np.clip(origin.cpu().numpy().astype(np.float64), self.edge, 1 - self.edge)
        mean = total.cpu().numpy().astype(np.float64) / uploads
        if self.correction == "invert":
            moves = debias.invert(mean, **setting) - start
        else:
            moves = mean - debias.clipped_mean(start, **setting)
            if self.correction == "linear":
                moves = moves / debias.clipped_mean_slope(start, **setting)
        return torch.from_numpy((uploads * moves).astype(np.float32)).to(total.device)
