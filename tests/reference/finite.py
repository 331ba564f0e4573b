"""Random finite channels: laws as rows of a table, divergences by summing."""

import numpy as np


def random_laws(rng: np.random.Generator, count: int, outcomes: int) -> np.ndarray:
    """Laws of shape (count, outcomes), from nearly uniform to nearly deterministic."""
    concentration = 10 ** rng.uniform(-1, 1, (count, 1))
    weights = rng.gamma(np.broadcast_to(concentration, (count, outcomes))) + 1e-9
    return weights / weights.sum(axis=1, keepdims=True)


def renyi(order: float, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """D_order(p || q) along the last axis."""
    return np.log(np.sum(p**order * q ** (1 - order), axis=-1)) / (order - 1)
