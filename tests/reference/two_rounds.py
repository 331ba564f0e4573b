"""Exact laws of two and three rounds, by quadrature over the outputs.

With h the one-round profile, T rounds of one pair have  delta_T(gamma) = integral p(x) delta_(T-1)(gamma q(x)/p(x)) dx.
The integrand has kinks where the remaining profile has them; the panels are cut there.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from reference.mixtures import Mixture, hockey_stick, log_density

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def panels(edges):
    """Nodes and weights of Gauss-Legendre rules between consecutive edges."""
    edges = np.asarray(sorted(edges))
    half = np.diff(edges)[:, None] / 2
    x = edges[:-1, None] + half * (1 + NODES)
    return x.ravel(), (half * WEIGHTS).ravel()


def mixture_pair(p: Mixture, q: Mixture, epsilon: float) -> float:
    """delta(epsilon) of two rounds of a pair of mixtures."""
    means = [m for _, m in p + q]
    low, high = min(means) - 7.5, max(means) + 7.5

    def loss(x):
        return log_density(p, x) - log_density(q, x)

    edges = np.linspace(low, high, 33)
    dense = loss(np.linspace(low - 20, high + 20, 2001))
    kinks = [epsilon - dense.min(), epsilon - dense.max()]  # beyond them the second round gains nothing, or everything
    x, weight = panels([*edges, *(at for kink in kinks for at in _crossings(lambda x: loss(x) - kink, edges))])  # noqa: B023
    gammas = np.exp(epsilon - loss(x))
    inner = np.array([hockey_stick(p, q, gamma, points=301) for gamma in gammas])
    return float(weight @ (np.exp(log_density(p, x)) / math.sqrt(2 * math.pi) * inner))


def _crossings(function, edges):
    values = [float(function(x)) for x in edges]
    return [brentq(function, edges[i], edges[i + 1]) for i in range(len(edges) - 1) if values[i] * values[i + 1] < 0]


def fixed_size_pair(q: float, sigma: float, epsilon: float, rounds: int = 2) -> float:
    """delta(epsilon) of the pair whose profile is h(gamma) = q H_(1+(gamma-1)/q)(N(2/sigma) || N(0)) and its mirror.

    On losses above 0 its worlds are (1-q) N(0) + q N(mu) and N(0) on x > mu/2, mu = 2/sigma; below 0 the mirror image;
    what is left is an atom at loss 0. One round is known in closed form; each further round is one quadrature.
    """
    mu = 2 / sigma
    atom = 1 - q * ndtr(mu / 2) - (1 - q) * ndtr(-mu / 2) - ndtr(-mu / 2)

    def loss(x):
        return np.log(1 - q + q * np.exp(mu * x - mu * mu / 2))

    def one(log_gamma):
        size = np.abs(log_gamma)
        log_g = np.log1p(np.expm1(size) / q)
        above = q * ndtr(mu / 2 - log_g / mu) - (np.exp(size) - 1 + q) * ndtr(-mu / 2 - log_g / mu)
        return np.where(log_gamma >= 0, above, 1 - np.exp(-size) + np.exp(-size) * above)

    def after(count: int, log_gamma: float) -> float:
        if count == 1:
            return float(one(np.asarray(log_gamma)))
        edges = np.linspace(mu / 2, mu + 12, 13)
        x, weight = panels([*edges, *_crossings(lambda x: float(loss(x)) - abs(log_gamma), edges)])
        quiet = weight * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
        if count == 2:
            forth, back = one(log_gamma - loss(x)), one(log_gamma + loss(x))
        else:
            forth = np.array([after(count - 1, log_gamma - at) for at in loss(x)])
            back = np.array([after(count - 1, log_gamma + at) for at in loss(x)])
        return atom * after(count - 1, log_gamma) + float(forth @ (quiet * np.exp(loss(x))) + back @ quiet)

    return after(rounds, epsilon)
