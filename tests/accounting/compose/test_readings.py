"""Trade-off functions, groups and attackers: against the closed forms of Gaussians."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from accounting.compose import readings
from accounting.compose.accountant import guarantee
from accounting.compose.profiles import profile
from accounting.mechanisms import Gaussian
from accounting.mechanisms.adjacency import Adjacency

MU = 0.8
PLAIN = Gaussian(noise_multiplier=1 / MU, adjacency=Adjacency.ADD_REMOVE)


def test_tradeoff_of_a_gaussian():
    """f(a) = Phi(Phi^-1(1 - a) - mu), never above it."""
    rates = np.array([0.0, 1e-4, 0.01, 0.2, 0.5, 0.9, 1.0])
    exact = norm.cdf(norm.isf(rates) - MU)
    found = guarantee(PLAIN, delta=1e-5).tradeoff(rates)
    assert np.all(found <= exact + 1e-12)
    np.testing.assert_allclose(found, exact, atol=2e-4)


def test_attackers_of_a_gaussian():
    claim = guarantee(PLAIN, delta=1e-5).profile()
    assert readings.advantage(claim) == pytest.approx(2 * norm.cdf(MU / 2) - 1, rel=1e-9)
    for prior in (0.5, 0.1, 0.9):
        at = math.log((1 - prior) / prior)
        cut = MU / 2 + at / MU
        exact = prior * norm.sf(cut - MU) + (1 - prior) * norm.cdf(cut)
        assert readings.success(claim, prior=prior) == pytest.approx(exact, rel=1e-9)
    assert readings.posterior(epsilon=math.log(3), prior=0.5) == pytest.approx(0.75)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_groups_are_above_the_exact_group(size):
    exact = guarantee(Gaussian(noise_multiplier=1 / (size * MU), adjacency=Adjacency.ADD_REMOVE), delta=1e-5).epsilon
    found = readings.epsilon_at(readings.of_group(profile(PLAIN), size), 1e-5)
    assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-6 if size == 1 else 1.6)
