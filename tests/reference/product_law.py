"""Uploads of d coins by enumeration of all 2^d outcomes."""

import itertools

import numpy as np
from scipy.special import logsumexp


def law(p: np.ndarray) -> np.ndarray:
    """Probabilities [2^d] of all outcomes of coins with probabilities p [d]."""
    outcomes = np.array(list(itertools.product((0, 1), repeat=len(p))))
    return np.prod(np.where(outcomes == 1, p, 1 - np.asarray(p)), axis=1)


def hockey_stick(epsilon: float, p: np.ndarray, q: np.ndarray) -> float:
    """The larger of sum max(P - e^epsilon Q, 0) and the same exchanged, for laws P and Q."""
    forward = np.maximum(p - np.exp(epsilon) * q, 0).sum()
    return float(max(forward, np.maximum(q - np.exp(epsilon) * p, 0).sum()))


def renyi(order: float, p: np.ndarray, q: np.ndarray) -> float:
    """D_order(P || Q) of laws P and Q, in logarithms."""
    return float(logsumexp(order * np.log(p) + (1 - order) * np.log(q)) / (order - 1))
