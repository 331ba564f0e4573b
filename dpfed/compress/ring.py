"""Z_{2^b}: what masked uploads live in. Sums of 32-bit words wrap around; reducing them at the end is enough."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_ring(integers: Tensor, bits: int) -> NDArray[np.uint32]:
    """Whole numbers [...] modulo 2^bits, bits <= 32. Floats must be whole."""
    words = integers.detach().to("cpu", torch.int64).numpy()
    return (words & ((1 << bits) - 1)).astype(np.uint32)


def centred(total: Tensor, bits: int) -> Tensor:
    """Residues [...] (or a sum that was never reduced) as int64 in [-2^(bits-1), 2^(bits-1))."""
    half = 1 << (bits - 1)
    return ((total.to(torch.int64) + half) & ((1 << bits) - 1)) - half
