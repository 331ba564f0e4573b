"""Laws on the integers by summing: discrete Gaussians, their sums, Skellam; and exact divergences of shifted copies."""

import math

import numpy as np


def discrete_gaussian(variance: float, reach: int) -> np.ndarray:
    """Probabilities of N_Z(0, variance) on -reach..reach."""
    x = np.arange(-reach, reach + 1.0)
    weights = np.exp(-(x**2) / (2 * variance))
    return weights / math.fsum(weights)


def summed(law: np.ndarray, shares: int) -> np.ndarray:
    """The law of the sum of independent draws."""
    total = law
    for _ in range(shares - 1):
        total = np.convolve(total, law)
    return total


def skellam(variance: float, reach: int) -> np.ndarray:
    """Probabilities of the difference of two Poisson(variance / 2) on -reach..reach, by convolving the two."""
    mean = variance / 2
    n = np.arange(4 * reach + 200)
    poisson = np.exp(n * math.log(mean) - mean - np.array([math.lgamma(k + 1) for k in n]))
    difference = np.convolve(poisson, poisson[::-1])
    centre = len(n) - 1
    return difference[centre - reach : centre + reach + 1]


def shifted(law: np.ndarray, moves: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The product law of len(moves) coordinates moved by `moves`, and unmoved, on the same cells."""
    margin = max(abs(move) for move in moves)
    still, moved = np.ones(1), np.ones(1)
    for move in moves:
        still = np.outer(still, np.pad(law, margin)).ravel()
        moved = np.outer(moved, np.pad(law, (margin + move, margin - move))).ravel()
    return moved, still


def mixed(pair: tuple[np.ndarray, np.ndarray], q: float) -> tuple[np.ndarray, np.ndarray]:
    """The pair of a client that takes part with probability q."""
    moved, still = pair
    return (1 - q) * still + q * moved, still


def hockey_stick(pair: tuple[np.ndarray, np.ndarray], epsilon: float) -> float:
    """The larger of both orders."""
    p, q = pair
    gamma = math.exp(epsilon)
    return max(float(np.maximum(p - gamma * q, 0).sum()), float(np.maximum(q - gamma * p, 0).sum()))


def smallest_epsilon(pair: tuple[np.ndarray, np.ndarray], delta: float) -> float:
    """The exact epsilon of the pair, to 1e-12, by bisection."""
    if hockey_stick(pair, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while hockey_stick(pair, high) > delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if hockey_stick(pair, middle) <= delta else (middle, high)
    return low


def renyi(pair: tuple[np.ndarray, np.ndarray], order: float, floor: float = 1e-250) -> float:
    """The larger of both orders' divergences, without cells that hold less than `floor` in either (a lower bound)."""
    p, q = (np.asarray(law) for law in pair)
    kept = (p > floor) & (q > floor)
    log_p, log_q = np.log(p[kept]), np.log(q[kept])

    def one(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.logaddexp.reduce(order * a + (1 - order) * b)) / (order - 1)

    return max(one(log_p, log_q), one(log_q, log_p))
