"""Bias of clipped, noised probabilities and its correction: quadrature, inverses, simulation."""

import mpmath as mp
import numpy as np
import pytest
from reference import clipped_normal
from refusals import refused

from accounting.bernoulli.debias import clipped_mean, clipped_mean_slope, invert, reachable
from accounting.errors import InvalidParameter

SIGMAS = [1e-3, 0.1, 0.5, 2.0, 1e3, 1e9]


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("c", [1e-6, 0.2, 0.49])
def test_mean_by_quadrature(c, sigma):
    for theta in (c, c + 1e-3, 0.3 if c < 0.3 else 0.495, 0.5, 1 - c):
        assert float(clipped_mean(theta, c=c, noise_std=sigma)) == pytest.approx(
            float(clipped_normal.mean(theta, c, sigma)), abs=1e-15
        )


@pytest.mark.parametrize(
    ("c", "theta", "sigma", "exact", "paper"),
    [(0.2, 0.3, 0.5, 0.411790, 0.444922), (0.1, 0.9, 2.0, 0.562993, 0.018814), (0.2, 0.5, 1.0, 0.5, 0.625736)],
)
def test_the_papers_last_line_fails(c, theta, sigma, exact, paper):
    assert float(clipped_mean(theta, c=c, noise_std=sigma)) == pytest.approx(exact, abs=5e-7)
    assert float(clipped_normal.mean(theta, c, sigma)) == pytest.approx(exact, abs=5e-7)
    assert float(clipped_normal.paper_mean(theta, c, sigma)) == pytest.approx(paper, abs=5e-7)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_slope(sigma):
    c, theta = 0.1, 0.27
    with mp.workdps(40):
        exact = mp.ncdf((0.9 - mp.mpf(theta)) / sigma) - mp.ncdf((0.1 - mp.mpf(theta)) / sigma)
    assert float(clipped_mean_slope(theta, c=c, noise_std=sigma)) == pytest.approx(float(exact), rel=1e-12)
    if sigma < 10:
        h = 1e-6
        numeric = np.diff(clipped_mean([theta - h, theta + h], c=c, noise_std=sigma))[0] / (2 * h)
        assert float(clipped_mean_slope(theta, c=c, noise_std=sigma)) == pytest.approx(numeric, abs=1e-8)


@pytest.mark.parametrize("sigma", [0.0, 1e-12, 1e-3, 0.3, 3.0])
def test_inverse(sigma):
    theta = np.linspace(0.15, 0.85, 41)
    there = clipped_mean(theta, c=0.15, noise_std=sigma)
    assert np.all(np.diff(there) > 0)
    assert invert(there, c=0.15, noise_std=sigma) == pytest.approx(theta, abs=1e-13 * (1 + 10 * sigma))


def test_means_out_of_reach_are_clamped():
    low, high = reachable(c=0.2, noise_std=0.5)
    assert (low, high) == pytest.approx((0.371, 0.629), abs=5e-4)
    assert invert([0.0, low - 1e-3, high + 1e-3, 1.0], c=0.2, noise_std=0.5) == pytest.approx([0.2, 0.2, 0.8, 0.8])
    assert np.ndim(invert(0.4, c=0.2, noise_std=0.5)) == 0


def test_inverting_a_mean():
    """0 when all agree. When they differ, its sign by 4e6 simulated coins (seeded; false alarm below 1e-6: the effect
    is 10 standard errors)."""
    alike = float(clipped_mean(0.3, c=0.2, noise_std=0.5))
    assert float(invert(alike, c=0.2, noise_std=0.5)) == pytest.approx(0.3, abs=1e-12)
    thetas = np.array([0.05, 0.5])
    mean = float(np.mean(clipped_mean(thetas, c=0.05, noise_std=0.5)))
    stated = float(invert(mean, c=0.05, noise_std=0.5)) - thetas.mean()
    rng, n = np.random.default_rng(1), 4_000_000
    noised = np.clip(rng.choice(thetas, n) + rng.normal(0, 0.5, n), 0.05, 0.95)
    seen = float(invert(np.mean(rng.random(n) < noised), c=0.05, noise_std=0.5)) - thetas.mean()
    slope = float(clipped_mean_slope(thetas.mean(), c=0.05, noise_std=0.5))
    error = 0.5 / np.sqrt(n) / slope
    assert abs(stated) > 10 * error
    assert abs(seen - stated) < 5 * error


def test_variance_of_the_inverse():
    """20,000 simulated means of 2,000 coins: the sample variance's standard error is 1%; 5 of them plus 1% for the
    delta method; false alarm below 1e-6 (seeded)."""
    theta, c, sigma, clients = 0.4, 0.1, 0.4, 2000
    g = float(clipped_mean(theta, c=c, noise_std=sigma))
    means = np.random.default_rng(2).binomial(clients, g, 20_000) / clients
    seen = np.var(invert(means, c=c, noise_std=sigma))
    slope = float(clipped_mean_slope(theta, c=c, noise_std=sigma))
    stated = g * (1 - g) / (clients * slope**2)
    assert seen == pytest.approx(stated, rel=0.06)
    assert stated > g * (1 - g) / clients


@pytest.mark.parametrize(
    ("theta", "c", "sigma"), [(0.1, 0.2, 0.1), (0.3, 0.5, 0.1), (0.3, 0.2, -1), (np.nan, 0.2, 0.1)]
)
def test_refuses(theta, c, sigma):
    refused(InvalidParameter, "", clipped_mean, theta, c=c, noise_std=sigma)
    refused(InvalidParameter, "NaN", invert, [0.3, np.nan], c=0.2, noise_std=0.1)
