"""Each of n clients adds noise of z C / n, so that the sum has z C / sqrt(n)."""

from parts import clipped, gaussian, normal

THREAD = "flwrlabs/flower#1892"
UPSTREAM = "open"
SETTING = {"claim": gaussian(), "trials": 2000}


def broken(updates, seed):
    shares = normal(seed, (4, updates.shape[1])) / 4
    return clipped(updates).sum(axis=0) + shares.sum(axis=0)


def sound(updates, seed):
    shares = normal(seed, (4, updates.shape[1])) / 4**0.5
    return clipped(updates).sum(axis=0) + shares.sum(axis=0)
