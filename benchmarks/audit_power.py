"""Lower bounds that audits prove for correct mechanisms, and their error rates. Prints Markdown.

    python benchmarks/audit_power.py [--seeds 9] [--errors 2000]

The first table: lower bounds of epsilon for a Gaussian of epsilon 4.377 (mu = 1, delta = 1e-5), 95% confidence, medians
over seeds. The second: lower bounds on the distance by which a client moves the release, over the claimed distance,
from whole scores of every kind of noise (truth: 1); and the rate of bounds above 1 (stated: 5%).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from accounting.arrays import Floats
from accounting.mechanisms import FixedSizeSampling, PoissonSampling
from dpfed.audit.round.bernoulli_ratios import BernoulliBias, BernoulliRatio, BernoulliScores, whole_scores_of_samples
from dpfed.audit.statistics import epsilon_bounds, one_run, score_distribution, thresholds
from dpfed.audit.statistics.score_distribution import NormalMixture
from dpfed.audit.statistics.whole_scores import WholeScores

Draw = Callable[[int, int, np.random.Generator], Floats]

DELTA, ALPHA, MU = 1e-5, 0.05, 1.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=9)
    options.add_argument("--errors", type=int, default=2000, help="audits of 100 scores a kind of noise, for its rate")
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
    print("\n| noise | 3,000 scores: moved at least, median | too far found with 90% | 100 scores: above 1 |")
    print("|---|---:|---:|---:|")
    for name, (ready, draw) in kinds().items():
        rng = np.random.default_rng(11)
        shown = [ready.factor_bound(draw(0, 1500, rng), draw(1, 1500, rng), alpha=ALPHA) for _ in range(given.seeds)]
        above = sum(
            ready.factor_bound(draw(0, 50, rng), draw(1, 50, rng), alpha=ALPHA) > 1 - 1e-4 for _ in range(given.errors)
        )
        finds = ready.smallest_excess_found(1500, 1500, alpha=ALPHA, probability=0.9)
        words = "none" if finds is None else f"{finds:.1%}"
        print(f"| {name} | {np.median(shown):.2f} | {words} | {above} of {given.errors:,} |", flush=True)


def two_worlds(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    zeros, ones = thresholds.trials_in_worlds(count, int(rng.integers(2**31)))
    return rng.standard_normal(zeros), MU + rng.standard_normal(ones)


def any_mechanism(count: int, rng: np.random.Generator) -> float:
    law = score_distribution.scores_of_all_clients(MU)
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
    factor = WholeScores.from_mixture(score_distribution.scores_of_all_clients(MU)).factor_bound(
        scores[~present], scores[present], alpha=ALPHA
    )
    return epsilon_bounds.epsilon_of_shift(factor * MU, delta=DELTA)


def kinds() -> dict[str, tuple[WholeScores, Draw]]:
    """Return, for every kind of noise, its whole scores and scores drawn from their distribution."""
    poisson = score_distribution.scores_of_drawn_cohort(
        PoissonSampling(probability=0.3), 10, MU, out=0.0, rest=-MU, expected=2.7
    )
    fixed = score_distribution.scores_of_drawn_cohort(
        FixedSizeSampling(clients=20, cohort=5), 20, 2 * MU, out=MU, rest=0.0, expected=0.0
    )
    return {
        "Gaussian, mu = 1": (
            WholeScores.from_mixture(score_distribution.scores_of_all_clients(MU)),
            from_mixture(score_distribution.scores_of_all_clients(MU)),
        ),
        "Gaussian, Poisson cohorts, 0.3 of 10, all others opposite": (
            WholeScores.from_mixture(poisson),
            from_mixture(poisson),
        ),
        "Gaussian, 5 of 20 drawn": (WholeScores.from_mixture(fixed), from_mixture(fixed)),
        "whole numbers, Skellam of variance 4, a move of 2 steps": (WholeScores.linear(MU), skellam),
        "coins: 40 entries, 4 clients, edges 0.2, a move of 0.8 from 0.5": of_coins(0.5),
        "the same from the edge": of_coins(0.2),
    }


def from_mixture(law: NormalMixture) -> Draw:
    def draw(world: int, count: int, rng: np.random.Generator) -> Floats:
        chances = law.weights[world] / law.weights[world].sum()
        return np.asarray(rng.choice(law.means[world], count, p=chances) + rng.standard_normal(count))

    return draw


def skellam(world: int, count: int, rng: np.random.Generator) -> Floats:
    return np.asarray((rng.poisson(2.0, count) - rng.poisson(2.0, count) + 2.0 * world) / 2.0)


def of_coins(start: float) -> tuple[WholeScores, Draw]:
    at = torch.full((40,), start, dtype=torch.float64)
    up, coins = at + 0.8 / 40**0.5, BernoulliBias(edge=0.2)
    law = BernoulliScores(
        coins=coins, ends=(up, at, at), origin=at, ratio=BernoulliRatio.from_probabilities(coins, up, at, at, 3)
    )
    ready = whole_scores_of_samples(law)
    assert ready is not None
    pool = [law.ratio.draw_ratios(law.ratio, world, 200_000, np.random.default_rng(world)) for world in (0, 1)]
    return ready, lambda world, count, rng: rng.choice(pool[world], count)


if __name__ == "__main__":
    main()
