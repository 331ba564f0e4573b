"""Sums of independent coins, by multiplying out."""

import numpy as np
from scipy.special import logsumexp


def law(p):
    """Probabilities of 0..len(p) heads."""
    result = np.ones(1)
    for one in p:
        result = np.convolve(result, [1 - one, one])
    return result


def renyi(order, p, q):
    """D_order of the sum of coins p from the sum of coins q."""
    return float(logsumexp(order * np.log(law(p)) + (1 - order) * np.log(law(q))) / (order - 1))
