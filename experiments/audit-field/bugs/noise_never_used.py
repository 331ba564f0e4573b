"""The weight of the noise is read, and then not used."""

from parts import clipped, gaussian, noisy_sum

THREAD = "privcount/privcount#360"
UPSTREAM = "not looked up"
SETTING = {"claim": gaussian(), "trials": 200}


def broken(updates, seed):
    return clipped(updates).sum(axis=0)


def sound(updates, seed):
    return noisy_sum(updates, seed)
