"""Clients block by block: what is drawn for a large population needs no memory for all of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 17
"""Clients that are drawn from at a time."""


def in_blocks(clients: int, takes_part: Callable[[int, int], NDArray[np.bool_]]) -> NDArray[np.int64]:
    """Sorted ids of those for whom `takes_part` (how many clients, the block's number) is true."""
    found = [
        block * BLOCK + np.flatnonzero(takes_part(min(BLOCK, clients - block * BLOCK), block))
        for block in range(-(-clients // BLOCK))
    ]
    return np.concatenate(found)
