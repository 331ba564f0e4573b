"""From bytes to what a network sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def standardise(
    images: NDArray[np.uint8],
    means: Sequence[float],
    deviations: Sequence[float],
    *,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Images [n, channels, height, width], scaled to [0, 1], minus each channel's mean, over its deviation.

    The constants are published ones: nothing is computed from private data. Writes into `out` if given.
    """
    inputs = np.empty(images.shape, dtype=np.float32) if out is None else out
    inputs[...] = images
    inputs /= 255
    inputs -= np.array(means, dtype=np.float32)[:, None, None]
    inputs /= np.array(deviations, dtype=np.float32)[:, None, None]
    return inputs
