"""Exact profiles of few coins: brute force, and the binomial case."""

import math

import mpmath as mp
import numpy as np
import pytest
from reference import product_law
from refusals import refused
from scipy.stats import binom

from accounting.bernoulli import channel_rdp
from accounting.bernoulli.exact import channel_epsilon, channel_profile
from accounting.compose.rdp import epsilon_from_curve
from accounting.errors import InvalidParameter


@pytest.mark.parametrize("d", [1, 3, 8])
def test_against_all_outcomes(d):
    rng = np.random.default_rng(d)
    for _ in range(20):
        p, q = rng.choice([0.1, 0.35, 0.5, 0.8, 0.95], (2, d))
        laws = product_law.law(p), product_law.law(q)
        for epsilon in (-0.5, 0.0, 0.3, 1.0, 4.0):
            exact = product_law.hockey_stick(epsilon, *laws)
            assert channel_profile(epsilon, p=p, q=q) == pytest.approx(exact, rel=1e-10, abs=1e-15)
        for delta in (0.0, 1e-6, 0.05, 0.4):
            found = channel_epsilon(delta, p=p, q=q)
            assert product_law.hockey_stick(found, *laws) <= delta + 1e-13
            if found > 0:
                assert product_law.hockey_stick(found - 1e-6, *laws) > delta


def test_equal_coins_are_binomial():
    n, epsilon = 1000, 3.0
    k = np.arange(n + 1)
    exact = np.maximum(binom.pmf(k, n, 0.51) - np.exp(epsilon) * binom.pmf(k, n, 0.49), 0).sum()
    p, q = np.full(n, 0.51), np.full(n, 0.49)
    assert channel_profile(epsilon, p=p, q=q) == pytest.approx(exact, rel=1e-9)
    assert channel_epsilon(1e-5, p=p, q=q) == pytest.approx(5.749, abs=1e-3)


@pytest.mark.parametrize("left", [0.3, 1e-4, 1e-9, 3e-13])
def test_near_delta_1_nothing_cancels(left):
    """Eighty coins of 0.9 against 0.1, in 50 digits: 1 - delta(epsilon) = sum of min(P, e^epsilon Q)."""
    n, delta = 80, 1 - left
    found = channel_epsilon(delta, p=np.full(n, 0.9), q=np.full(n, 0.1))

    def kept(epsilon):
        p, q = mp.mpf(0.9), mp.mpf(0.1)
        masses = [(p**k * (1 - p) ** (n - k), q**k * (1 - q) ** (n - k), mp.binomial(n, k)) for k in range(n + 1)]
        return sum(ways * min(one, mp.exp(epsilon) * other) for one, other, ways in masses)

    with mp.workdps(50):
        if found == 0:
            assert kept(0) > 1 - mp.mpf(delta)
        else:
            assert kept(found) == pytest.approx(1 - mp.mpf(delta), rel=1e-11, abs=0)


@pytest.mark.parametrize("delta", [1e-8, 1e-4, 1e-2])
def test_below_the_renyi_bound(delta):
    c, t, d = 0.2, 0.1, 40
    orders = np.concatenate([np.linspace(1.1, 10, 40), np.geomspace(11, 500, 30)])
    rdp = channel_rdp(orders, dimension=d, c=c, noise_std=0, linf_sensitivity=t)
    from_renyi = epsilon_from_curve(orders, rdp, delta=delta).epsilon
    exact = channel_epsilon(delta, p=np.full(d, c), q=np.full(d, c + t))
    assert exact <= from_renyi <= 1.4 * exact + 0.1


def test_edges():
    assert channel_epsilon(0.0, p=[0.3], q=[0.3]) == 0
    assert channel_epsilon(0.1, p=[0.0], q=[0.5]) == math.inf
    assert channel_epsilon(0.11, p=[0.0], q=[0.1]) == 0
    assert channel_epsilon(1.0, p=[0.0], q=[1.0]) == 0
    assert channel_profile([0, 1, math.inf, -math.inf], p=[0.3, 0.1], q=[0.3, 0.0]) == pytest.approx([0.1, 0.1, 0.1, 1])


@pytest.mark.parametrize(
    ("p", "q"), [([0.1, 0.2], [0.1]), ([[0.1]], [[0.1]]), ([1.1], [0.1]), (np.linspace(0.1, 0.4, 30), np.full(30, 0.5))]
)
def test_refuses(p, q):
    refused(InvalidParameter, "", channel_profile, 1.0, p=p, q=q)
