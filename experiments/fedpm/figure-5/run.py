"""FedPM, Figure 5: distributed mean estimation by coins, with exact accounting beside it.

100 clients hold theta in [.2, .8]^d, each uploads one coin a coordinate after Gaussian noise and a clip; the server
averages. Error against epsilon (local: one client's upload, replaced by any other inside the bound) for

1 the Gaussian alone, classical calibration        2 the paper's bound on top: min(epsilon, d r_alpha(c))
3 the same with bias correction                     4 the exact account of noise and coins together
5 the same with bias correction                       0 coins of the vectors themselves, not private

python experiments/fedpm/figure-5/run.py [--profile smoke|cpu|full] [--out DIR]      CSVs and a figure; a minute

No training run, so no TOML for `dpfed sweep`: the means of random vectors are estimated, once for each epsilon.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb

from accounting import bernoulli
from accounting.bernoulli import debias
from accounting.budget import calibrate
from accounting.compose import rdp
from dpfed.report.figures.figure import figure

Floats = NDArray[np.float64]

HERE = Path(__file__).parent
CLIENTS, C, DELTA = 100, 0.2, 1e-4
ORDERS = np.array([1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64])
NAMES = {
    0: "no privacy",
    1: "no amplification",
    2: "the paper's bound",
    3: "the paper's bound, bias corrected",
    4: "exact account",
    5: "exact account, bias corrected",
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How many epsilons, how many repeats of each at d = 5 and at d = `size`."""

    epsilons: tuple[int, int]
    repeats: tuple[int, int]
    size: int


PROFILES = {
    "smoke": Profile(epsilons=(3, 1), repeats=(5, 1), size=1000),
    "cpu": Profile(epsilons=(12, 12), repeats=(300, 2), size=100_000),
    "full": Profile(epsilons=(45, 23), repeats=(1000, 5), size=100_000),
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
        ways = ((0, 0.0, 0), (1, classical, 0), (2, paper, 0), (3, paper, 1), (4, exact, 0), (5, exact, 1))
        for method, noise, corrected in ways:
            wrong = error(thetas, noise, bool(corrected), repeats, generator)
            rows.append({"epsilon": float(epsilon), "method": method, "noise_std": noise, "squared_error": wrong})
    return rows


def write(path: Path, rows: list[dict[str, float]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" for k, v in row.items()} for row in rows)


def read(path: Path) -> list[dict[str, float]]:
    with open(path, newline="") as file:
        return [{key: float(value) for key, value in line.items()} for line in csv.DictReader(file)]


def plot(path: Path, small: list[dict[str, float]], large: list[dict[str, float]], size: int) -> None:
    """Squared error at both dimensions, and the noise that the second one needs."""
    with figure(path, columns=3) as axes:
        panels = ((small, 5, "squared_error"), (large, size, "squared_error"), (large, size, "noise_std"))
        for axis, (rows, dimension, quantity) in zip(axes, panels, strict=True):
            for method, label in NAMES.items():
                mine = [row for row in rows if row["method"] == method]
                if quantity == "noise_std" and method not in (1, 2, 4):
                    axis.plot([], [])  # keep the colours
                    continue
                style = {0: ":", 3: "--", 5: "--"}.get(method, "-")
                axis.plot([r["epsilon"] for r in mine], [r[quantity] for r in mine], style, label=label, linewidth=1.4)
            error = quantity == "squared_error"
            axis.set(yscale="log" if error else "linear", xlabel="local epsilon, delta 1e-4")
            axis.set_ylabel("squared error per coordinate" if error else "standard deviation of the noise")
            axis.set_title(f"d = {dimension:,}", fontsize=10)
        for cap, word in ((paper_cap(5), "8.96"), (exact_epsilon_of_five(0.0), "6.93")):
            axes[0].axvline(cap, color="0.6", linewidth=0.8, zorder=0)
            axes[0].annotate(
                word, (cap, 1), xycoords=("data", "axes fraction"), fontsize=7, ha="right", va="top", rotation=90
            )
        axes[2].legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="full", choices=PROFILES)
    parser.add_argument("--plot", action="store_true", help="the figure again, from the CSVs")
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    profile, out = PROFILES[arguments.profile], arguments.out
    if arguments.plot:
        plot(out / "curves.png", read(out / "d5.csv"), read(out / f"d{profile.size}.csv"), profile.size)
        return
    out.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    five = generator.uniform(C, 1 - C, (CLIENTS, 5))
    epsilons = [np.linspace(1, 12, count) for count in profile.epsilons]
    small = curves(five, (1 - 2 * C) * math.sqrt(5), epsilons[0], exact_epsilon_of_five, profile.repeats[0])
    # Many coordinates: every client within 1/2 (L2) of a public vector, so that neighbours are at most 1 apart.
    size = profile.size
    public = generator.uniform(0.3, 0.7, size)
    moves = generator.standard_normal((CLIENTS, size))
    many = public + 0.5 * moves / np.linalg.norm(moves, axis=1, keepdims=True)
    large = curves(many, 1.0, epsilons[1], lambda s: channel_epsilon(s, size, 1.0), profile.repeats[1])
    write(out / "d5.csv", small)
    write(out / f"d{size}.csv", large)
    plot(out / "curves.png", small, large, size)


if __name__ == "__main__":
    main()
