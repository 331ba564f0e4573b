"""What is clipped is the model that a client sends, not its update: from a model at -C, +C is 2C away."""

import numpy as np
from parts import clipped, gaussian, noisy_sum, normal

THREAD = "epfml/disco#317"
UPSTREAM = "closed, mended (320)"
SETTING = {"claim": gaussian(adjacency="zero-out"), "trials": 2000}


def broken(updates, seed):
    model = np.full(updates.shape[1], -1 / updates.shape[1] ** 0.5)
    total = (clipped(model + updates) - model).sum(axis=0)
    return total + normal(seed, total.shape)


def sound(updates, seed):
    return noisy_sum(updates, seed)
