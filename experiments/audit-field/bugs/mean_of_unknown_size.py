"""Noise for a mean of n known values, where adding one changes n: the mean moves by up to 2 C / n."""

from parts import clipped, gaussian, noisy_sum, normal

THREAD = "opendp/smartnoise-core#356"
UPSTREAM = "closed"
SETTING = {"claim": gaussian(), "trials": 2000}


def broken(updates, seed):
    mean = clipped(updates).mean(axis=0)
    return mean + normal(seed, mean.shape) / 4


def sound(updates, seed):
    return noisy_sum(updates, seed) / 4
