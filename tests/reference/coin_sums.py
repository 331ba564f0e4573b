"""Exact laws of sums of coins, and the exact divergences of products of them, by enumeration."""

import itertools

import numpy as np

from reference.poisson_binomial import law as sum_law


def product_law(columns):
    """The law of independent counts, one for each column of probabilities."""
    law = np.ones(1)
    for column in columns:
        law = np.multiply.outer(law, sum_law(column)).ravel()
    return law


def hockey_stick(p, q, gammas):
    """sum of max(P - gamma Q, 0), for each gamma."""
    return np.array([np.maximum(p - gamma * q, 0).sum() for gamma in gammas])


def losses(p, q):
    """Likelihood ratios, between which a hockey-stick divergence is linear."""
    return np.unique(p / q)


def corners(d):
    """Signs of moves in d coordinates, up to exchanging all."""
    return [np.array((1.0, *signs)) for signs in itertools.product((1.0, -1.0), repeat=d - 1)]
