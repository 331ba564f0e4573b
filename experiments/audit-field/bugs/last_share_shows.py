"""Additive shares from a narrow range: the last one, secret minus the others, shows the secret."""

import numpy as np
from parts import clipped

THREAD = "epfml/disco#1074"
UPSTREAM = "open"
SETTING = {"claim": (1.0, 1e-5), "adjacency": "zero-out", "trials": 400}


def broken(updates, seed):
    shares = np.random.default_rng(seed).uniform(-1, 1, (9, updates.shape[1]))
    return 100 * clipped(updates)[-1] - shares.sum(axis=0)


def sound(updates, seed):
    secret = np.round(100 * np.nan_to_num(clipped(updates)[-1])).astype(np.int64)
    shares = np.random.default_rng(seed).integers(0, 2**16, (9, updates.shape[1]))
    return (secret - shares.sum(axis=0)) % 2**16
