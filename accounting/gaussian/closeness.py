"""What it adds to a Renyi divergence that a law is only nearly another one."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def penalty(orders: ArrayLike, closeness: float) -> Floats:
    """What a law that is within e^±closeness adds to a Renyi divergence: closeness (2a - 1)/(a - 1)."""
    a = np.asarray(orders, dtype=float)
    return np.asarray(closeness * (2 * a - 1) / (a - 1))
