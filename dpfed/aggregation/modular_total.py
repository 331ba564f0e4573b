"""What a secure sum gives: the total modulo 2^b and who is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class ModularTotal:
    """total: uint32 [d], the sum modulo 2^b of the rows of the clients `included`, sorted int64."""

    total: NDArray[np.uint32]
    included: NDArray[np.int64]


def reduced(words: NDArray[Any], bits: int) -> NDArray[np.uint32]:
    """Words of the ring modulo 2^b."""
    return words.astype(np.uint32) & np.uint32((1 << bits) - 1)
