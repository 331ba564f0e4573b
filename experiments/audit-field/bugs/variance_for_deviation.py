"""Noise is scaled by its variance where its standard deviation belongs."""

from parts import gaussian, noisy_sum

THREAD = "google-deepmind/optax#281"
UPSTREAM = "mended (294)"
SETTING = {"claim": gaussian(0.5), "trials": 2000}


def broken(updates, seed):
    return noisy_sum(updates, seed, noise_std=0.5**2)


def sound(updates, seed):
    return noisy_sum(updates, seed, noise_std=0.5)
