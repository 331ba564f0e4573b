"""Distributed mean estimation by coins: the FedPM paper's Figure 5, with exact accounting beside it.

100 clients hold theta in [.2, .8]^d, each uploads one coin a coordinate after Gaussian noise and a clip; the server
averages. Error against epsilon (local: one client's upload, replaced by any other inside the bound) for

1 the Gaussian alone, classical calibration        2 the paper's bound on top: min(epsilon, d r_alpha(c))
3 the same with bias correction                     4 the exact account of noise and coins together
5 the same with bias correction

python experiments/fedpm-mean-estimation/run.py      writes d5.csv, d100000.csv and curves.png beside itself; a minute
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb

from accounting import bernoulli, calibrate, debias, rdp
from dpfed.plots.figure import figure

Floats = NDArray[np.float64]

HERE = Path(__file__).parent
CLIENTS, C, DELTA = 100, 0.2, 1e-4
ORDERS = np.array([1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64])
NAMES = {
    1: "no amplification",
    2: "the paper's bound",
    3: "the paper's bound, bias corrected",
    4: "exact account",
    5: "exact account, bias corrected",
}


def classical_noise(epsilon: float, sensitivity: float) -> float:
    """The calibration that the paper uses, also where it is no theorem (epsilon >= 1), to draw its own curve."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon


def paper_cap(dimension: int) -> float:
    """The paper's reading of d r_alpha(c) at alpha = 5, with its conversion: 8.96 at d = 5."""
    return dimension * float(bernoulli.divergence(5.0, C, 1 - C)) + math.log(1 / DELTA) / 4


def exact_epsilon_of_five(noise_std: float) -> float:
    """d = 5, any two vectors of [c, 1-c]^5: five coins of probability g(c) against 1 - g(c); by enumeration."""
    p = float(debias.clipped_mean(C, c=C, noise_std=noise_std))
    k = np.arange(6)
    likely, unlikely = comb(5, k) * p**k * (1 - p) ** (5 - k), comb(5, k) * (1 - p) ** k * p ** (5 - k)
    low, high = 0.0, 5 * math.log((1 - p) / p)
    for _ in range(80):
        middle = (low + high) / 2
        above = np.maximum(unlikely - math.exp(middle) * likely, 0.0).sum() > DELTA
        low, high = (middle, high) if above else (low, middle)
    return high


def channel_epsilon(noise_std: float, dimension: int, sensitivity: float) -> float:
    """Any d: the certified Renyi bound of noise, clip and coins."""
    curve = bernoulli.channel_rdp(ORDERS, dimension=dimension, c=C, noise_std=noise_std, l2_sensitivity=sensitivity)
    return rdp.epsilon_from_curve(ORDERS, np.asarray(curve), delta=DELTA).epsilon


def least_noise(cost: Callable[[float], float], epsilon: float) -> float:
    """The smallest noise within epsilon; 0 where the coins alone are enough."""
    if cost(0.0) <= epsilon:
        return 0.0
    return calibrate.smallest(cost, epsilon, name="noise_std", start=0.5)


def error(thetas: Floats, noise_std: float, corrected: bool, repeats: int, generator: np.random.Generator) -> float:
    """Mean squared error per coordinate of the server's estimate of the mean, over `repeats` draws."""
    probabilities = np.asarray(debias.clipped_mean(thetas, c=C, noise_std=noise_std))
    truth, errors = thetas.mean(axis=0), []
    for _ in range(repeats):
        estimate = (generator.random(thetas.shape) < probabilities).mean(axis=0)
        if corrected:
            estimate = np.asarray(debias.invert(estimate, c=C, noise_std=noise_std))
        errors.append(float(np.mean((estimate - truth) ** 2)))
    return float(np.mean(errors))


def curves(
    thetas: Floats, sensitivity: float, epsilons: Floats, cost: Callable[[float], float], repeats: int
) -> list[dict[str, float]]:
    """A row for every epsilon and method."""
    generator = np.random.default_rng(5)
    cap, rows = paper_cap(thetas.shape[1]), []
    for epsilon in epsilons:
        classical = classical_noise(float(epsilon), sensitivity)
        paper = 0.0 if epsilon >= cap else classical
        exact = least_noise(cost, float(epsilon))
        for method, noise, corrected in ((1, classical, 0), (2, paper, 0), (3, paper, 1), (4, exact, 0), (5, exact, 1)):
            wrong = error(thetas, noise, bool(corrected), repeats, generator)
            rows.append({"epsilon": float(epsilon), "method": method, "noise_std": noise, "squared_error": wrong})
    return rows


def main() -> None:
    generator = np.random.default_rng(0)
    five = generator.uniform(C, 1 - C, (CLIENTS, 5))
    small = curves(five, (1 - 2 * C) * math.sqrt(5), np.linspace(1, 12, 23), exact_epsilon_of_five, 300)
    # Many coordinates: every client within 1/2 (L2) of a public vector, so that neighbours are at most 1 apart.
    size = 100_000
    public = generator.uniform(0.3, 0.7, size)
    moves = generator.standard_normal((CLIENTS, size))
    many = public + 0.5 * moves / np.linalg.norm(moves, axis=1, keepdims=True)
    large = curves(many, 1.0, np.linspace(1, 12, 12), lambda s: channel_epsilon(s, size, 1.0), 2)
    for name, rows in (("d5", small), (f"d{size}", large)):
        with open(HERE / f"{name}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    with figure(HERE / "curves.png", columns=2) as axes:
        for axis, rows, dimension in zip(axes, (small, large), (5, size), strict=True):
            for method, label in NAMES.items():
                mine = [row for row in rows if row["method"] == method]
                style = "--" if method in (3, 5) else "-"
                axis.plot([r["epsilon"] for r in mine], [r["squared_error"] for r in mine], style, label=label)
            axis.set(yscale="log", xlabel="local epsilon, delta 1e-4", ylabel="squared error per coordinate")
            axis.set_title(f"d = {dimension:,}", fontsize=10)
        axes[0].legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    main()
