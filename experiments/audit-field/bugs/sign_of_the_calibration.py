"""A sign in the calibration of the analytic Gaussian mechanism makes the noise too small."""

from parts import gaussian, noisy_sum

from accounting.gaussian import noise_std

# With a = right sqrt(2 epsilon), the other sign gives 1 / a in place of a (Balle, Wang 2018, Alg. 1).
RIGHT = float(noise_std(1.0, 1e-5, l2_sensitivity=1.0))

THREAD = "opendp/smartnoise-core#316"
UPSTREAM = "closed, mended (315)"
SETTING = {"claim": gaussian(RIGHT), "trials": 2000}


def broken(updates, seed):
    return noisy_sum(updates, seed, noise_std=1 / (2 * RIGHT))


def sound(updates, seed):
    return noisy_sum(updates, seed, noise_std=RIGHT)
