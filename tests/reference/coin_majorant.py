"""The largest divergence of d noised coins, sampled densely: what the certified bound must not be below.

Nothing is certified here: every value is attained by some pair of neighbours (up to rounding d), so it bounds the exact
one from below; on these grids by about 0.1%.
"""

import numpy as np
from scipy.stats import norm


def mean(theta, c, sigma):
    """E clip(theta + N(0, sigma^2), c, 1-c), straight from the formula."""
    theta = np.asarray(theta, dtype=float)
    if sigma == 0:
        return theta
    a, b = (c - theta) / sigma, (1 - c - theta) / sigma
    inner = theta * (norm.cdf(b) - norm.cdf(a)) - sigma * (norm.pdf(b) - norm.pdf(a))
    return c * norm.cdf(a) + inner + (1 - c) * norm.sf(b)


def divergence(order, p, q):
    return np.log(p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)) / (order - 1)


def phi(order, c, sigma, moves, bases=401):
    """The largest divergence in both directions at each move, and the base at which it is."""
    base = c + np.linspace(0, 1, bases)[:, None] * (1 - 2 * c - moves)
    low, high = mean(base, c, sigma), mean(np.minimum(base + moves, 1 - c), c, sigma)
    both = np.stack([divergence(order, low, high), divergence(order, high, low)])
    at = both.max(axis=0).argmax(axis=0)
    return both.max(axis=(0, 1)), base[at, np.arange(len(moves))], both[:, at, np.arange(len(moves))].argmax(axis=0)


def moves_up_to(farthest, step, count=220):
    here = min(np.sqrt(step), farthest)
    dense = np.geomspace(max(here / 10, 1e-4), farthest, count)
    return np.unique(np.concatenate([dense, np.linspace(0, farthest, 100)[1:], [here]]))


def hull(u, values):
    """Corners of the least concave majorant of points (u, values), from (0, 0)."""
    corners = [(0.0, 0.0)]
    for point in zip(u, values, strict=True):
        while len(corners) > 1 and _left_of(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return np.array(corners)


def _left_of(first, middle, last):
    return (middle[1] - first[1]) * (last[0] - first[0]) <= (last[1] - first[1]) * (middle[0] - first[0])


def channel(order, *, d, c, sigma, l2, linf=None):
    """d phi^(min(l2^2/d, t^2)), sampled."""
    farthest = 1 - 2 * c if linf is None else min(linf, 1 - 2 * c)
    step = min(l2 * l2 / d, farthest**2)
    moves = moves_up_to(farthest, step)
    corners = hull(moves**2, phi(order, c, sigma, moves)[0])
    return d * np.interp(step, corners[:, 0], np.maximum.accumulate(corners[:, 1]))
