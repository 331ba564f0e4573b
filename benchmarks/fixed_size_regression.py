"""Fixed-size accounts of random settings: the default account against the one-pair account and the lower bound.

    python benchmarks/fixed_size_regression.py [SETTINGS]

Prints a line for each setting in which epsilon exceeds the one-pair account by 1e-4 relative or is below its lower
bound, and a summary; progress is on standard error. Seconds are those of the account and its lower bound.
"""

import sys
import time

import numpy as np

from accounting import Plan
from accounting.compose import accountant, pld
from accounting.rounding import downwards, upwards


def main(count: int) -> None:
    rng = np.random.default_rng(19)
    ratios, gaps, seconds, wrong = [], [], [], 0
    for done in range(count):
        if done % 25 == 0:
            print(f"{done} of {count}", file=sys.stderr, flush=True)
        clients = int(10 ** rng.uniform(1.5, 5))
        cohort = max(1, int(clients * 10 ** rng.uniform(-3, -0.4)))
        sigma, rounds = float(rng.uniform(0.5, 5)), int(10 ** rng.uniform(0, 2.5))
        adjacency = ("replace-one", "zero-out")[int(rng.integers(2))]
        plan = Plan(clients=clients, cohort=cohort, sampling="fixed", adjacency=adjacency)
        start = time.process_time()
        stated = accountant.guarantee(plan.run(sigma, rounds), delta=plan.delta)
        seconds.append(time.process_time() - start)
        old, least = pld.epsilon(plan.run(sigma, rounds), delta=plan.delta), stated.lower_bound
        if stated.epsilon > old * (1 + 1e-4) or least > stated.epsilon:
            wrong += 1
            print(clients, cohort, sigma, rounds, adjacency, upwards(stated.epsilon), upwards(old), downwards(least))
        if old > 0:
            ratios.append(stated.epsilon / old)
        if least > 0.01:
            gaps.append(stated.epsilon / least - 1)
    print(
        f"{count} settings, {wrong} wrong; epsilon over that of one pair: median {np.median(ratios):.3f}, least "
        f"{min(ratios):.3f}; above the lower bound: median {np.median(gaps):.2%}, 95% {np.quantile(gaps, 0.95):.2%}, "
        f"most {max(gaps):.2%}; seconds: median {np.median(seconds):.2f}, most {max(seconds):.2f}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
