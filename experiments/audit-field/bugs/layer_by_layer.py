"""Every layer has the whole clip norm for itself."""

import numpy as np
from parts import clipped, gaussian, noisy_sum, normal

THREAD = "fedbiomed/fedbiomed#1443"
UPSTREAM = "not looked up"
SETTING = {"claim": gaussian(), "trials": 2000}


def broken(updates, seed):
    layers = [clipped(layer).sum(axis=0) for layer in np.array_split(updates, 4, axis=1)]
    total = np.concatenate(layers)
    return total + normal(seed, total.shape)


def sound(updates, seed):
    return noisy_sum(updates, seed)
