"""What the files here have in common: a right clip, noise of a seed, a claim."""

import numpy as np

from accounting import Adjacency, Gaussian

CLIP_NORM = 1.0


def gaussian(noise_multiplier=1.0, adjacency="add-remove"):
    """The claim of a clipped sum with Gaussian noise."""
    return Gaussian(noise_multiplier=noise_multiplier, adjacency=Adjacency.of(adjacency))


def clipped(updates, clip_norm=CLIP_NORM):
    """Rows [..., d] of norm at most clip_norm."""
    norms = np.maximum(np.linalg.norm(updates, axis=-1, keepdims=True), 1e-12)
    return updates * np.minimum(1, clip_norm / norms)


def normal(seed, shape):
    return np.random.default_rng(seed).standard_normal(shape)


def noisy_sum(updates, seed, noise_std=1.0):
    """What is right."""
    total = clipped(updates).sum(axis=0)
    return total + noise_std * normal(seed, total.shape)
