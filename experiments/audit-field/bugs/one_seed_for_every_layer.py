"""Noise generators of several layers start from one seed: layer minus layer has no noise."""

import numpy as np
from parts import clipped, gaussian, normal

THREAD = "IBM/differential-privacy-library#31"
UPSTREAM = "closed (72)"
SETTING = {"claim": gaussian(), "trials": 2000}


def broken(updates, seed):
    layers = np.array_split(clipped(updates).sum(axis=0), 4)
    return [layer + normal(seed, layer.shape) for layer in layers]


def sound(updates, seed):
    layers = np.array_split(clipped(updates).sum(axis=0), 4)
    return [layer + normal([seed, k], layer.shape) for k, layer in enumerate(layers)]
