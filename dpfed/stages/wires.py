"""Lossless wires: integers modulo 2^b in b bits each, and masks range-coded with public probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.mask_bytes import MaskCoder
from dpfed.compress.ring import centre_residues, ring_from_bytes, ring_to_bytes
from dpfed.errors import WireError
from dpfed.stages.stage import Round, Stage


@dataclass(frozen=True, kw_only=True)
class Words(Stage):
    """Rows [c, size] are sent as residues. In one process they are unchanged: the sum reduces them.

    largest: largest value of an entry, if rows are symbols or Bernoulli samples; None: any residue, read as centred
             about 0
    """

    size: int
    bits: int
    largest: int | None = None
    dtype: torch.dtype = torch.int64

    @property
    def ring_bits(self) -> int | None:
        return None if self.dtype.is_floating_point else self.bits  # for floats the previous stage defines the ring

    def fixed_bits(self, size: int) -> int:
        return self.size * self.bits

    def messages(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> list[bytes]:
        return ring_to_bytes(rows, self.bits)

    def read(self, messages: Sequence[bytes], ids: NDArray[np.int64], now: Round) -> Tensor:
        residues = ring_from_bytes(messages, size=self.size, bits=self.bits)
        if self.largest is None:
            return centre_residues(residues, self.bits).to(now.reference.device)
        if residues.numel() and int(residues.max()) > self.largest:
            raise WireError(
                f"an entry {int(residues.max())} of an upload: must be from 0 to {self.largest}. Drop the client's "
                "message."
            )
        return residues.to(now.reference.device, self.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskWire(Stage):
    """Rows of zeros and ones are sent in about their entropy under the round's reference. Lossless: in one process they
    are coded only to count their bytes."""

    def fixed_bits(self, size: int) -> None:
        return None

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        _count_bits(now, self.messages(rows, ids, now), rows)
        return rows

    def messages(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> list[bytes]:
        coder = _mask_coder(now.reference.cpu().numpy().tobytes())
        return [coder.encode(mask.cpu().numpy() != 0) for mask in rows]

    def read(self, messages: Sequence[bytes], ids: NDArray[np.int64], now: Round) -> Tensor:
        coder = _mask_coder(now.reference.cpu().numpy().tobytes())
        masks = torch.empty(len(messages), len(now.reference), dtype=now.reference.dtype)
        for mask, message in zip(masks, messages, strict=True):
            mask.copy_(torch.from_numpy(coder.decode(message)))
        _count_bits(now, messages, masks)
        return masks.to(now.reference.device)


def entropy_of_ones(mask: Tensor) -> int:
    """Return the bits of a mask [n] by FedPM's measure (Section 3.1): n H(fraction of ones), rounded to an integer.

    This is the length of an ideal code that knows only the fraction. `MaskWire` sends fewer bits, since client and
    server know the probability of each entry.
    """
    ones = int(torch.count_nonzero(mask))
    shares = [count / len(mask) for count in (ones, len(mask) - ones) if count]
    return round(-len(mask) * sum(share * math.log2(share) for share in shares))


def _count_bits(now: Round, messages: Sequence[bytes], masks: Tensor) -> None:
    """Add the uploads' bytes, and their bits by FedPM's measure, to the round's tally."""
    now.tally.uplink_bytes = (now.tally.uplink_bytes or 0) + sum(map(len, messages))
    now.tally.mask_entropy = (now.tally.mask_entropy or 0) + sum(map(entropy_of_ones, masks))


@lru_cache(maxsize=1)
def _mask_coder(probabilities: bytes) -> MaskCoder:
    """Return the coder of a round's public float32 probabilities, kept for the clients of that round."""
    return MaskCoder(probabilities=np.frombuffer(probabilities, dtype=np.float32))
