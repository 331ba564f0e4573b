"""Exact hockey-stick divergences of one-dimensional mixtures of unit-variance Gaussians.

A mixture is a list of (weight, mean). H_gamma(P || Q) = integral of max(0, p - gamma q): the sign changes of
p - gamma q are bracketed on a dense grid and polished, and each stretch is a difference of distribution functions.
"""

import itertools
import math

import mpmath as mp
import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

Mixture = list[tuple[float, float]]


def log_density(mixture: Mixture, x):
    """Logarithm of the density, without the constant sqrt(2 pi)."""
    terms = [math.log(w) - (np.asarray(x, float) - m) ** 2 / 2 for w, m in mixture if w > 0]
    return np.logaddexp.reduce(terms, axis=0)


def hockey_stick(p: Mixture, q: Mixture, gamma: float, *, points: int = 4001) -> float:
    """H_gamma(P || Q), good to about 1e-15 absolute."""
    means = [m for _, m in p + q]
    x = np.linspace(min(means) - 14, max(means) + 14, points)

    def gain(at):
        return log_density(p, at) - log_density(q, at) - math.log(gamma)

    signs = gain(x) > 0
    crossings = [brentq(gain, x[i], x[i + 1], xtol=1e-12) for i in np.flatnonzero(signs[1:] != signs[:-1])]
    edges = [-np.inf, *crossings, np.inf]
    taken = list(itertools.pairwise(edges))[0 if signs[0] else 1 :: 2]
    return math.fsum(w * _mass(m, a, b) for a, b in taken for w, m in p) - gamma * math.fsum(
        w * _mass(m, a, b) for a, b in taken for w, m in q
    )


def _mass(mean: float, low: float, high: float) -> float:
    return float(ndtr(mean - low) - ndtr(mean - high)) if low > mean else float(ndtr(high - mean) - ndtr(low - mean))


def hockey_stick_in_many_digits(p: Mixture, q: Mixture, gamma: float, digits: int = 40) -> mp.mpf:
    """H_gamma(P || Q) where the loss rises with x (one crossing), with relative accuracy at any size."""
    with mp.workdps(digits):

        def density(mixture, x):
            return sum(mp.mpf(w) * mp.npdf(x, m) for w, m in mixture if w > 0)

        def above(mixture, x):
            return sum(mp.mpf(w) * mp.erfc((x - mp.mpf(m)) / mp.sqrt(2)) / 2 for w, m in mixture if w > 0)

        def gain(x):
            return density(p, x) - mp.mpf(gamma) * density(q, x)

        low, high = mp.mpf(-60), mp.mpf(60) + max(m for _, m in p + q)
        if gain(high) <= 0:
            return mp.mpf(0)
        if gain(low) > 0:
            return 1 - mp.mpf(gamma)
        for _ in range(160):
            middle = (low + high) / 2
            low, high = (middle, high) if gain(middle) <= 0 else (low, middle)
        return above(p, high) - mp.mpf(gamma) * above(q, high)
