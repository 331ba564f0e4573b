"""Arrays of settings of a sampled Gaussian round, checked: orders, sampling probabilities, noise multipliers."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting.errors import InvalidParameter

Floats = NDArray[np.float64]


def flat(
    orders: ArrayLike, sampling_probability: ArrayLike, noise_multiplier: ArrayLike
) -> tuple[tuple[int, ...], Floats, Floats, Floats]:
    """The shape that the three broadcast to, and each of them in that shape, flattened.

    Errors: InvalidParameter unless orders are finite and above 1, probabilities in [0, 1], noise from 1e-9 to 1e9.
    """
    try:
        a, q, sigma = (np.asarray(value, dtype=float) for value in (orders, sampling_probability, noise_multiplier))
        shape = np.broadcast_shapes(a.shape, q.shape, sigma.shape)
    except (TypeError, ValueError):
        raise InvalidParameter(
            "orders, sampling_probability, noise_multiplier: must be numbers, or arrays whose shapes broadcast."
        ) from None
    for name, given, fits, allowed in (
        ("orders", a, (a > 1) & (a < np.inf), "finite numbers above 1"),
        ("sampling_probability", q, (q >= 0) & (q <= 1), "probabilities in [0, 1]"),
        ("noise_multiplier", sigma, (sigma >= 1e-9) & (sigma <= 1e9), "numbers from 1e-09 to 1e+09"),
    ):
        if not np.all(fits):
            raise InvalidParameter(f"{name}={given[~fits].flat[0]}: must be {allowed}.")
    a, q, sigma = (np.broadcast_to(part, shape).ravel() for part in (a, q, sigma))
    return shape, a, q, sigma
