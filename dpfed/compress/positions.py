"""Where a mask is set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def positions_of(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The sorted positions at which mask [n] is true: np.flatnonzero, at up to three times its speed.

    Where at most a tenth are, numpy jumps from one to the next, and a jump costs as much as ten places. Here we look
    first which eights hold one, then which of their places do.
    """
    if 10 * np.count_nonzero(mask) > len(mask):
        return np.flatnonzero(mask)
    eights = np.packbits(mask)
    holding = np.flatnonzero(eights != 0)
    inside = np.flatnonzero(np.unpackbits(eights[holding]).view(np.bool_))
    positions: NDArray[np.int64] = (holding[inside >> 3] << 3) + (inside & 7)
    return positions
