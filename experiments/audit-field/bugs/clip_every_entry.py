"""The server clips every entry to the bound in place of the norm."""

import numpy as np
from parts import gaussian, noisy_sum, normal

THREAD = "KanishJebaMathewM/Truxify#3844"
UPSTREAM = "mended (3858)"
SETTING = {"claim": gaussian(), "trials": 2000}


def broken(updates, seed):
    total = np.clip(updates, -1.0, 1.0).sum(axis=0)
    return total + normal(seed, total.shape)


def sound(updates, seed):
    return noisy_sum(updates, seed)
