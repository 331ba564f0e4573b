"""Exact laws of two and three rounds, by quadrature over the outputs.

With h the one-round profile, T rounds of one pair have  delta_T(gamma) = integral p(x) delta_(T-1)(gamma q(x)/p(x)) dx.
"""

import math

import numpy as np
from scipy.special import ndtr

from reference.mixtures import Mixture, hockey_stick, log_density

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def panels(low: float, high: float, pieces: int):
    """Nodes and weights of Gauss-Legendre rules on equal pieces of [low, high]."""
    edges = np.linspace(low, high, pieces + 1)
    half = np.diff(edges)[:, None] / 2
    x = edges[:-1, None] + half * (1 + NODES)
    return x.ravel(), (half * WEIGHTS).ravel()


def mixture_pair(p: Mixture, q: Mixture, epsilon: float) -> float:
    """delta(epsilon) of two rounds of a pair of mixtures."""
    means = [m for _, m in p + q]
    x, weight = panels(min(means) - 10, max(means) + 10, 16)
    log_p = log_density(p, x)
    gammas = np.exp(epsilon - (log_p - log_density(q, x)))
    inner = np.array([hockey_stick(p, q, gamma, points=801) for gamma in gammas])
    return float(weight @ (np.exp(log_p) / math.sqrt(2 * math.pi) * inner))


def fixed_size_pair(q: float, sigma: float, epsilon: float, rounds: int = 2) -> float:
    """delta(epsilon) of the pair whose profile is h(gamma) = q H_(1+(gamma-1)/q)(N(2/sigma) || N(0)) and its mirror.

    On losses above 0 its worlds are (1-q) N(0) + q N(mu) and N(0) on x > mu/2, mu = 2/sigma; below 0 the mirror image;
    what is left is an atom at loss 0. One round is known in closed form; each further round is one quadrature.
    """
    mu = 2 / sigma
    x, weight = panels(mu / 2, mu + 12, 150)  # many: the profile has a kink
    quiet = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    ratio = 1 - q + q * np.exp(mu * x - mu * mu / 2)
    atom = 1 - q * ndtr(mu / 2) - (1 - q) * ndtr(-mu / 2) - ndtr(-mu / 2)

    def one(log_gamma):
        size = np.abs(log_gamma)
        log_g = np.log1p(np.expm1(size) / q)
        above = q * ndtr(mu / 2 - log_g / mu) - (np.exp(size) - 1 + q) * ndtr(-mu / 2 - log_g / mu)
        return np.where(log_gamma >= 0, above, 1 - np.exp(-size) + np.exp(-size) * above)

    def after(count: int, log_gamma):
        if count == 1:
            return one(np.asarray(log_gamma))
        loss = np.log(ratio)
        flat = np.asarray(log_gamma, float).ravel()
        forth = np.array([after(count - 1, g - loss) @ (weight * quiet * ratio) for g in flat])
        back = np.array([after(count - 1, g + loss) @ (weight * quiet) for g in flat])
        return (atom * after(count - 1, flat) + forth + back).reshape(np.shape(log_gamma))

    return float(after(rounds, epsilon))
