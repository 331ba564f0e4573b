"""Gradients are accumulated over two steps, and the noise is that of one."""

from parts import clipped, gaussian, noisy_sum, normal

THREAD = "meta-pytorch/opacus#203"
UPSTREAM = "found in review, never released"
SETTING = {"claim": gaussian(), "trials": 2000}


def broken(updates, seed):
    total = 2 * clipped(updates).sum(axis=0)
    return total + normal(seed, total.shape)


def sound(updates, seed):
    return noisy_sum(updates, seed)
