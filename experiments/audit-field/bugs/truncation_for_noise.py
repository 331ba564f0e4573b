"""Entries below a percentile are dropped and the others cut, without noise, under the name of privacy."""

import numpy as np
from parts import noisy_sum

THREAD = "KatherLab/MediSwarm#530"
UPSTREAM = "closed"
SETTING = {"claim": (3.0, 1e-5), "trials": 600}


def broken(updates, seed):
    row = updates.sum(axis=0)
    kept = np.abs(row) >= np.percentile(np.abs(row), 10)
    return np.clip(row * kept, -0.01, 0.01)


def sound(updates, seed):
    return noisy_sum(updates, seed)
