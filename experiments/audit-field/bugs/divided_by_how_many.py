"""Noise and sum are divided by the number of rows that are there, which one row changes."""

from parts import gaussian, noisy_sum

THREAD = "meta-pytorch/opacus#571"
UPSTREAM = "open"
SETTING = {"claim": gaussian(), "trials": 2000}


def broken(updates, seed):
    return noisy_sum(updates, seed) / len(updates)


def sound(updates, seed):
    return noisy_sum(updates, seed) / 4
