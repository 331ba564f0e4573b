"""Shifts of Skellam noise below a Gaussian shift: steps by mpmath, exact divergences, noise of equal variance."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import skellam

from accounting import Plan, budget
from accounting.gaussian import privacy_profile
from accounting.integers.skellam import _masses, _variance_rounded_down, largest_step, mu_of_shift


def exact_steps(variance, far):
    """y(x) - y(x - 1) for x = 1..far, to 40 digits."""
    with mp.workdps(40):
        v = mp.mpf(variance)
        masses = [mp.exp(-v) * mp.besseli(x, v) for x in range(far + 60)]
        tails = [mp.fsum(masses[x:]) for x in range(far + 1)]
        tails[0] = (1 + masses[0]) / 2
        y = [mp.sqrt(2) * mp.erfinv(1 - 2 * tail) for tail in tails]
        return [y[x] - y[x - 1] for x in range(1, far + 1)]


@pytest.mark.parametrize(("variance", "far"), [(0.5, 6), (3.0, 12), (40.0, 30)])
def test_the_largest_step_by_mpmath(variance, far):
    found, exact = largest_step(variance, far), float(max(exact_steps(variance, far)))
    assert exact <= found <= exact * (1 + 1e-9)


@pytest.mark.parametrize("variance", [1e4, 3e4])
def test_masses_by_the_expansion_are_those_of_the_bessel_function(variance):
    x = np.array([0.0, 1.0, 30.0, 5 * math.sqrt(variance), 12 * math.sqrt(variance)]).round()
    exact = [float(mp.exp(-mp.mpf(variance)) * mp.besseli(mp.mpf(k), mp.mpf(variance), maxterms=10**6)) for k in x]
    np.testing.assert_allclose(_masses(x, variance), exact, rtol=4e-13)


@pytest.mark.parametrize(("variance", "shift"), [(0.7, 1), (4.0, 1), (4.0, 3), (60.0, 2), (60.0, 20)])
def test_exact_divergences_of_shifts_stay_below_and_come_near(variance, shift):
    mu = mu_of_shift(variance, shift, 1e-15)
    x = np.arange(-400, 401)
    q = skellam.pmf(x, variance / 2, variance / 2)
    p = np.roll(q, shift)
    gammas = np.exp(np.linspace(0, 3 * mu + 2, 60))
    exact = np.array([np.maximum(p - gamma * q, 0).sum() for gamma in gammas])
    allowed = privacy_profile(np.log(gammas), mu=mu)
    assert np.all(exact <= allowed + 1e-12)
    weaker = privacy_profile(np.log(gammas), mu=mu * (1 - 1 / (3 * variance)) * 0.99)
    assert np.any(exact > weaker)  # planted: a shift a little smaller is refuted


def test_products_of_shifts_stay_below():
    """Two coordinates, shifted by 2 and 1, and the other way."""
    variance = 2.0
    mu = mu_of_shift(variance, math.sqrt(5), 1e-15)
    x = np.arange(-60, 61)
    one = skellam.pmf(x, 1.0, 1.0)
    q = np.multiply.outer(one, one).ravel()
    p = np.multiply.outer(np.roll(one, 2), np.roll(one, -1)).ravel()
    for epsilon in np.linspace(0, 6, 25):
        exact = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        assert exact <= privacy_profile(epsilon, mu=mu) + 1e-12


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "all"])
def test_no_more_than_a_discrete_gaussian_of_equal_variance(sampling):
    costs = []
    for mechanism in ("skellam", "discrete-gaussian"):
        plan = Plan(clients=6000, cohort=100, mechanism=mechanism, dimension=100_000, sampling=sampling)
        noise_multiplier = 30.0 if sampling == "all" else 1.4
        costs.append(budget.epsilon(plan, rounds=840, noise_multiplier=noise_multiplier, accountant="pld"))
    assert costs[0] == pytest.approx(costs[1], rel=1e-3)


@pytest.mark.parametrize("variance", [1e-3, 1e12])
def test_beyond_what_doubles_reach_nothing_is_said(variance):
    assert mu_of_shift(variance, 10.0, 1e-12) is None


def test_large_variances_are_rounded_down():
    for variance in (1e6, 3.7e8, 9.99e9):
        assert variance * (1 - 2**-11) < _variance_rounded_down(variance) <= variance
