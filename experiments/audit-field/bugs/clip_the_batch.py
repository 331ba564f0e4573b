"""The summed gradient is clipped, not each client's: one can turn its direction."""

from parts import clipped, gaussian, noisy_sum, normal

THREAD = "JeffffffFu/Awesome-Differential-Privacy-and-Meachine-Learning#9"
UPSTREAM = "not looked up"
SETTING = {"claim": gaussian(), "trials": 4000}


def broken(updates, seed):
    total = clipped(updates.sum(axis=0))
    return total + normal(seed, total.shape)


def sound(updates, seed):
    return noisy_sum(updates, seed)
