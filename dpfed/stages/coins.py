"""Coins on the wire: masks of FedPM and FedMask, and what their sum says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.bernoulli import debias
from dpfed.compress.counter import at_least
from dpfed.compress.mask_bytes import MaskCoder
from dpfed.compress.ring_bytes import ring_from_bytes, ring_to_bytes
from dpfed.errors import ConfigError, WireError
from dpfed.randomness import Randomness
from dpfed.stages.code import Arrived, OnIntegers

_REST = 53 - 16
_DOUBT = 2.0**-6
"""Of 2^16 p in float32: the sum and the edge are each rounded by at most 2^-24, and the difference by less."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Coins:
    """Rows are moves of mask probabilities; a client sends the coins of the probabilities it ends at (FedPM).

        p = clip(origin + row [+ N(0, noise_std^2)], edge, 1 - edge);   m ~ Bern(p), or 1[p >= 1/2] if not `stochastic`

    with p in float64 and 53-bit uniforms, so that a coin has its probability to 2^-53: 16 of the bits first, the others
    where those do not decide. The sum S of m over K uploads decodes
    to S - K g(origin), g being the mean of a coin: g(p) = p without noise,
    accounting.bernoulli.debias.clipped_mean with it; with `correction` "linear" that is divided by g', with "invert" it
    is K (g^-1(S / K) - origin).

    slots: K, where the sum must always hold so many uploads of clients: what is missing is filled with coins of the
           public origin. Of clients the caller sends no more than K.
    canaries: how many made-up clients take part in a round on top of them
    summed: what is seen is the sum, so an upload is an integer of `bits` an entry, else a mask in bytes, range-coded
           with the public origin.
    bits:   of the ring that a secure sum lives in, None without one. It holds every count of zeros and ones with
            certainty, canaries' too. A client may send any residue instead: then the count is wrong, and what is
            released is still post-processing of the number of the others' coins, those that fill up included, since
            `decode` reduces the sum again after them
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
    _coders: list[MaskCoder] = field(default_factory=list, repr=False)

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
        coder = self._coder(origin)
        masks = torch.empty(len(messages), len(origin), dtype=origin.dtype)
        for mask, message in zip(masks, messages, strict=True):
            mask.copy_(torch.from_numpy(coder.decode(message)))
        return Arrived(rows=masks.to(origin.device), uplink_bytes=sum(map(len, messages)))

    def decode(self, total: Tensor, origin: Tensor, uploads: int, round: int) -> Tensor:
        if self.slots is not None:
            slots = self.slots + (0 if self.canaries is None else self.canaries(round))
            for missing in range(slots - uploads):
                total = total + self._toss(origin, None, "coins.padding", round, missing)
            uploads = slots
        total = (total if self.bits is None else total.remainder(1 << self.bits)).to(origin.dtype)
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
            mask.copy_(self._toss(origin, row, "coins", round, int(client)))
        return masks

    def _coded(self, masks: Tensor, origin: Tensor) -> list[bytes]:
        coder = self._coder(origin)
        return [coder.encode(mask.cpu().numpy() != 0) for mask in masks]

    def _coder(self, origin: Tensor) -> MaskCoder:
        """The coder of a public origin, remembered for the clients of a round."""
        probabilities = origin.cpu().numpy()
        if not self._coders or not np.array_equal(self._coders[0].probabilities, probabilities):
            self._coders[:] = [MaskCoder(probabilities=probabilities.copy())]
        return self._coders[0]

    def _toss(self, origin: Tensor, row: Tensor | None, purpose: str, *path: int) -> Tensor:
        """Coins [k], bool, of the probabilities origin + row, after noise and clip."""
        if self.stochastic and not self.noise_std:
            return self._tossed(origin, row, purpose, *path)
        probabilities = _sum(origin, row)
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

    def _tossed(self, origin: Tensor, row: Tensor | None, purpose: str, *path: int) -> Tensor:
        """1 where U < p: U of 53 bits, h the first 16 of them, p in float64.

        2^16 p is known from float32 to less than `_DOUBT`. Above h + 1 + _DOUBT it decides for 1, below h - _DOUBT for
        0, whatever the other bits are; once in 2^16 coins it does neither, and the other 37 bits are drawn.
        """
        heads = self.randomness.bits(-(-len(origin) // 4), purpose, *path).view(np.uint16)[: len(origin)]
        near = origin.clone() if row is None else origin + row
        above = near.clamp_(self.edge, 1 - self.edge).mul_(1 << 16)
        above -= torch.from_numpy(heads.astype(np.float32)).to(above.device)
        ones, perhaps = at_least(above, 1 + _DOUBT), at_least(above, -_DOUBT)
        unsure = (ones ^ perhaps).nonzero()[:, 0]
        if len(unsure):
            chosen = unsure.cpu().numpy()
            rest = self.randomness.bits(len(chosen), purpose + ".rest", *path) >> np.uint64(64 - _REST)
            uniforms = np.ldexp((heads[chosen].astype(np.uint64) << np.uint64(_REST) | rest).astype(np.float64), -53)
            exact = _sum(origin[unsure], None if row is None else row[unsure]).clamp(self.edge, 1 - self.edge)
            ones[unsure] = torch.from_numpy(uniforms).to(exact.device).lt(exact)
        return ones

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


def _sum(origin: Tensor, row: Tensor | None) -> Tensor:
    """In float64, where it is exact enough to be called the probability."""
    return origin.double() if row is None else origin.double() + row.double()
