"""Rows of whole numbers as messages: entries modulo 2^b, b bits each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpfed.compress.packing import pack, unpack
from dpfed.compress.ring import to_ring


def ring_to_bytes(rows: Tensor, bits: int) -> list[bytes]:
    """A message for each row [c, k] of whole numbers."""
    return [pack(row, bits) for row in to_ring(rows, bits)]


def ring_from_bytes(messages: Sequence[bytes], *, size: int, bits: int) -> Tensor:
    """Residues in [0, 2^bits), int64 [c, size]. WireError for a message of another length; any of the right one is a
    row."""
    rows = np.empty((len(messages), size), dtype=np.int64)
    for row, message in zip(rows, messages, strict=True):
        row[:] = unpack(memoryview(message), size, bits)
    return torch.from_numpy(rows)
