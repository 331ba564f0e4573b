"""Replacing a client moves the sum by 2 C; the noise is for C."""

from parts import gaussian, noisy_sum

THREAD = "google/differential-privacy#378"
UPSTREAM = "open (464 proposes a change)"
SETTING = {"claim": gaussian(2.0, "replace-one"), "trials": 2000}


def broken(updates, seed):
    return noisy_sum(updates, seed)


def sound(updates, seed):
    return noisy_sum(updates, seed, noise_std=2.0)
