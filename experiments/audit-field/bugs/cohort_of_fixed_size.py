"""Cohorts of fixed size, accounted as Poisson sampling."""

import numpy as np
from parts import clipped, gaussian

from accounting import PoissonSampling, subsample

THREAD = "meta-pytorch/opacus#80"
UPSTREAM = "closed"
SETTING = {"claim": subsample(gaussian(), PoissonSampling(probability=0.25)), "trials": 20000}


def broken(updates, seed):
    rng = np.random.default_rng(seed)
    drawn = rng.choice(len(updates), 1, replace=False)
    return clipped(updates[drawn]).sum(axis=0) + rng.standard_normal(updates.shape[1])


def sound(updates, seed):
    rng = np.random.default_rng(seed)
    drawn = rng.random(len(updates)) < 0.25
    return clipped(updates[drawn]).sum(axis=0) + rng.standard_normal(updates.shape[1])
