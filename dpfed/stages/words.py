"""Words on the wire: rows of whole numbers modulo 2^b, b bits each, as a secure sum takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.compress.ring import centred, ring_from_bytes, ring_to_bytes
from dpfed.errors import WireError
from dpfed.stages.stage import Round


@dataclass(frozen=True, kw_only=True)
class Words:
    """Rows [c, size] travel as residues. In one process they stay as they are: the sum reduces them.

    largest: of what an entry may be, where rows hold symbols or coins; None: any residue, read as centred about 0
    """

    size: int
    bits: int
    largest: int | None = None
    dtype: torch.dtype = torch.int64

    def fixed_bits(self, size: int) -> int:
        return self.size * self.bits

    def client(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> Tensor:
        return rows

    def server(self, total: Tensor, now: Round) -> Tensor:
        return total

    def messages(self, rows: Tensor, ids: NDArray[np.int64], now: Round) -> list[bytes]:
        return ring_to_bytes(rows, self.bits)

    def read(self, messages: Sequence[bytes], ids: NDArray[np.int64], now: Round) -> Tensor:
        residues = ring_from_bytes(messages, size=self.size, bits=self.bits)
        if self.largest is None:
            return centred(residues, self.bits).to(now.reference.device)
        if residues.numel() and int(residues.max()) > self.largest:
            raise WireError(
                f"an entry {int(residues.max())} of an upload: must be from 0 to {self.largest}. Drop the client's "
                "message."
            )
        return residues.to(now.reference.device, self.dtype)
