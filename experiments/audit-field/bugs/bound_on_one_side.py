"""The sensitivity is computed from the lower bound of the values only."""

import numpy as np
from parts import gaussian, normal

THREAD = "IBM/differential-privacy-library#110"
UPSTREAM = "open"
SETTING = {"claim": gaussian(adjacency="zero-out"), "trials": 2000}


LOWER, UPPER = -0.2, 1.0


def values(updates):
    return np.clip(updates[:, :1], LOWER, UPPER).sum(axis=0)


def broken(updates, seed):
    return values(updates) + abs(LOWER) * normal(seed, 1)


def sound(updates, seed):
    return values(updates) + max(abs(LOWER), UPPER) * normal(seed, 1)
