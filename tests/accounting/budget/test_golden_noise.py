"""Calibrated noise at the Fed-SMP paper's setting. The reference values carry a solver tolerance of about 3e-4."""

import pytest

from accounting import budget
from accounting.budget import Plan

ROUNDS = 180
TABLE = [
    ("poisson", "rdp", 2.02, 0.9016),
    ("poisson", "rdp", 1.01, 1.2004),
    ("poisson", "rdp", 0.58, 1.6148),
    ("poisson", "rdp", 0.44, 1.9509),
    ("poisson", "pld", 2.02, 0.8216),
    ("poisson", "pld", 1.01, 1.0853),
    ("poisson", "pld", 0.58, 1.4745),
    ("poisson", "pld", 0.44, 1.7739),
    ("fixed", "pld", 2.02, 1.7055),
    ("fixed", "pld", 1.01, 2.3210),
    ("fixed", "pld", 0.58, 3.2170),
    ("fixed", "pld", 0.44, 3.8746),
]


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("sampling", "accountant", "target", "expected"), TABLE)
def test_noise_multiplier_is_the_smallest_that_meets_the_target(sampling, accountant, target, expected):
    plan = Plan(clients=6000, cohort=100, sampling=sampling)

    def cost(sigma):
        return budget.epsilon(plan, noise_multiplier=sigma, rounds=ROUNDS, accountant=accountant)

    sigma = budget.noise_multiplier(plan, epsilon=target, rounds=ROUNDS, accountant=accountant)
    assert sigma == pytest.approx(expected, abs=4e-4)
    assert cost(sigma) <= target
    assert cost(sigma * (1 - 1e-5)) > target
