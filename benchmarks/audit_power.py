"""Lower bounds that audits prove for correct mechanisms, and their error rates. Prints Markdown.

    python benchmarks/audit_power.py [--seeds 9]

Lower bounds of epsilon for a Gaussian of epsilon 4.377 (mu = 1, delta = 1e-5), 95% confidence, medians
over seeds.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from accounting.arrays import Floats
from dpfed.audit.statistics import epsilon_bounds, one_run, power, rejection
from dpfed.audit.statistics.one_run import factor_bound

DELTA, ALPHA, MU = 1e-5, 0.05, 1.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=9)
    given = options.parse_args()
    print("| of a Gaussian of epsilon 4.3772 | trials or canaries | epsilon at least, median | smallest, largest | s |")
    print("|---|---:|---:|---:|---:|")
    for name, count, bound in (
        ("any mechanism", 100_000, any_mechanism),
        ("any mechanism", 1_000_000, any_mechanism),
        ("if Gaussian", 100_000, if_gaussian),
        ("one run, any mechanism, guesses", 100_000, guessed),
        ("one run, if Gaussian, guesses", 100_000, guessed_of_gaussian),
        ("one run, known law, whole scores", 100_000, whole),
    ):
        began = time.process_time()
        found = sorted(bound(count, np.random.default_rng(seed)) for seed in range(given.seeds))
        seconds = (time.process_time() - began) / given.seeds
        print(
            f"| {name} | {count:,} | {found[given.seeds // 2]:.2f} | {found[0]:.2f}, {found[-1]:.2f} | {seconds:.1f} |",
            flush=True,
        )


def two_worlds(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    zeros, ones = rejection.trials_in_worlds(count, int(rng.integers(2**31)))
    return rng.standard_normal(zeros), MU + rng.standard_normal(ones)


def any_mechanism(count: int, rng: np.random.Generator) -> float:
    law = power.scores_of_all_clients(MU)
    at = np.linspace(-6.0, MU + 6.0, 121)
    cuts = epsilon_bounds.best_guess_cuts(law.error_rates, at, trials=count, alpha=ALPHA, delta=DELTA)
    return epsilon_bounds.epsilon_lower_bound(*two_worlds(count, rng), delta=DELTA, alpha=ALPHA, cuts=cuts)


def if_gaussian(count: int, rng: np.random.Generator) -> float:
    mu = epsilon_bounds.gdp_lower_bound(*two_worlds(count, rng), alpha=ALPHA, cut=MU / 2)
    return epsilon_bounds.epsilon_of_shift(mu, delta=DELTA)


def canaries(count: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.bool_]]:
    present = rng.random(count) < 0.5
    return rng.standard_normal(count) + MU * present, present


def guessed(count: int, rng: np.random.Generator) -> float:
    seen = one_run.guess(*canaries(count, rng), guesses=count // 20, seed=0)
    return one_run.epsilon_lower_bound(seen, delta=DELTA, alpha=ALPHA)


def guessed_of_gaussian(count: int, rng: np.random.Generator) -> float:
    seen = one_run.guess(*canaries(count, rng), guesses=count // 20, seed=0)
    return one_run.gdp_epsilon_lower_bound(seen, delta=DELTA, alpha=ALPHA)


def whole(count: int, rng: np.random.Generator) -> float:
    scores, present = canaries(count, rng)
    factor = factor_bound(scores[~present], scores[present], alpha=ALPHA)
    return epsilon_bounds.epsilon_of_shift(factor * MU, delta=DELTA)


if __name__ == "__main__":
    main()
