"""Canaries: laws of scores, coverage of the bound, and how far the published estimate is off."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm

from accounting import gaussian
from dpfed.audit import canaries
from dpfed.errors import ConfigError

DELTA, ALPHA = 1e-5, 0.05
TRUTH = 4.3772  # epsilon of a shift of 1


def test_canaries_are_unit_vectors_repeatable_and_each_its_own():
    one, two = (canaries.unit_canary(4000, seed=3, index=i) for i in (0, 1))
    assert np.linalg.norm(one) == pytest.approx(1.0)
    assert np.array_equal(one, canaries.unit_canary(4000, seed=3, index=0))
    assert abs(one @ two) < 5 / math.sqrt(4000)
    assert abs(one @ canaries.unit_canary(4000, seed=4, index=0)) < 5 / math.sqrt(4000)


def test_the_null_is_that_of_an_independent_direction():
    """400 directions against one fixed, spiky vector: the standard deviation of the dots is |g| / sqrt(d)."""
    d = 1500
    g = np.where(np.arange(d) % 10 == 0, 3.0, 0.01)
    dots = np.array([canaries.unit_canary(d, seed=1, index=i) @ g for i in range(400)])
    std = float(canaries.null_std(np.linalg.norm(g), dimension=d))
    assert dots.std() == pytest.approx(std, rel=0.12)  # 3.4 of its own standard deviations
    assert abs(dots.mean()) < 3.5 * std / 20


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize(("mean", "std"), [(1.0, 1.0), (1.0, 1.3), (0.5, 0.6), (3.0, 0.97), (0.0, 1.4), (-2.0, 1.1)])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_divergence_of_two_gaussians_equals_its_integral(mean, std, epsilon):
    def gain(first, second):
        def integrand(x):
            return max(norm.pdf(x, *first) - math.exp(epsilon) * norm.pdf(x, *second), 0.0)

        return quad(integrand, -25, 25, limit=2000, points=np.linspace(-8, 8, 33))[0]

    exact = max(gain((mean, std), (0, 1)), gain((0, 1), (mean, std)))
    assert canaries.gaussian_pair_delta(epsilon, mean=mean, std=std) == pytest.approx(exact, abs=2e-7)


@pytest.mark.parametrize("epsilon", [0.0, 4.3772, 20.0])
@pytest.mark.parametrize("wiggle", [0.0, 1e-14, 1e-9])
def test_equal_variances_are_the_gaussian_mechanism_also_nearly_so(epsilon, wiggle):
    value = canaries.gaussian_pair_delta(epsilon, mean=1.0, std=1.0 + wiggle)
    assert value == pytest.approx(float(gaussian.privacy_profile(epsilon, mu=1.0)), rel=1e-5)


@pytest.mark.parametrize(("k", "median"), [(50, 3.20), (200, 3.79), (500, 4.01)])
def test_the_bound_is_above_the_truth_in_one_of_twenty(k, median):
    """600 audits; more than 46 above has probability 0.001, fewer than 16 too."""
    rng = np.random.default_rng(k)
    shown = [
        canaries.shift_lower_bound(1 + rng.standard_normal(k), null_std=1.0, delta=DELTA, alpha=ALPHA)
        for _ in range(600)
    ]
    above = sum(bound.mu > 1 for bound in shown)
    assert int(binom.ppf(0.001, 600, ALPHA)) <= above <= int(binom.ppf(0.999, 600, ALPHA))
    assert np.median([bound.epsilon for bound in shown]) == pytest.approx(median, abs=0.06)


def test_the_published_estimate_is_above_the_truth_more_often_than_not():
    """200 canaries of a mechanism with epsilon 4.38: about 5.3 on average, with a spread of nearly 1."""
    rng = np.random.default_rng(6)
    d, k = 10_000, 200
    estimates = [
        canaries.published_estimate((1 + rng.standard_normal(k)) / math.sqrt(d), dimension=d, delta=DELTA)
        for _ in range(200)
    ]
    assert 4.9 < np.mean(estimates) < 5.8
    assert 0.6 < np.std(estimates) < 1.2
    assert np.mean(np.array(estimates) > TRUTH) > 0.75


def test_published_estimate_of_the_true_law_is_the_truth():
    """Scores at the quantiles of N(1, 1), scaled to their exact moments: the fit is right, so is the epsilon."""
    scores = norm.ppf((np.arange(5000) + 0.5) / 5000)
    scores = 1 + scores / scores.std(ddof=1)
    estimate = canaries.published_estimate(scores / math.sqrt(2500), dimension=2500, delta=DELTA)
    assert estimate == pytest.approx(TRUTH, abs=1e-3)


@pytest.mark.parametrize("noise", [1.0, 0.5])
def test_rounds_of_their_own_show_what_a_round_costs(noise):
    """Simulated: 200 rounds of d = 1000, one canary each, other clients of norm 10, noise on the sum; 40 times.

    The clients and the canary widen the null to sqrt(noise^2 + 101 / d), so the bound is that much below the truth.
    """
    rng = np.random.default_rng(9)
    d, k = 1000, 200
    sent = np.array([canaries.unit_canary(d, seed=2, index=i) for i in range(k)])
    bounds = []
    for _ in range(40):
        clients = rng.standard_normal(d)
        published = 10 * clients / np.linalg.norm(clients) + sent + noise * rng.standard_normal((k, d))
        std = canaries.null_std(np.linalg.norm(published, axis=1), dimension=d)
        dots = np.einsum("ij,ij->i", sent, published)
        bounds.append(canaries.shift_lower_bound(dots, null_std=std, delta=DELTA, alpha=ALPHA))
    assert np.mean([bound.mean for bound in bounds]) == pytest.approx((noise**2 + 0.101) ** -0.5, rel=0.04)
    assert sum(bound.mu > 1 / noise for bound in bounds) <= int(binom.ppf(0.999, 40, ALPHA))
    assert np.median([bound.mu for bound in bounds]) > 0.75 / noise


def test_canaries_that_are_not_seen_bound_nothing():
    bound = canaries.shift_lower_bound([-1.0, -1.1, -0.9], null_std=1.0, delta=DELTA, alpha=ALPHA)
    assert (bound.mu, bound.epsilon, bound.canaries) == (0.0, 0.0, 3)


def test_wrong_input_is_refused():
    with pytest.raises(ConfigError, match="at least 1000"):
        canaries.null_std(1.0, dimension=999)
    with pytest.raises(ConfigError, match="published_norm"):
        canaries.null_std([1.0, 0.0], dimension=2000)
    with pytest.raises(ConfigError, match="at least two canaries"):
        canaries.shift_lower_bound([1.0], null_std=1.0, delta=DELTA, alpha=ALPHA)
    with pytest.raises(ConfigError, match="null_std of shape"):
        canaries.shift_lower_bound([1.0, 2.0], null_std=[1.0, 1.0, 1.0], delta=DELTA, alpha=ALPHA)
    with pytest.raises(ConfigError, match="must be finite"):
        canaries.shift_lower_bound([1.0, math.inf], null_std=1.0, delta=DELTA, alpha=ALPHA)
    with pytest.raises(ConfigError, match="NaN"):
        canaries.shift_lower_bound([1.0, math.nan], null_std=1.0, delta=DELTA, alpha=ALPHA)
    with pytest.raises(ConfigError, match=r"\[-1, 1\]"):
        canaries.published_estimate([0.5, 1.5], dimension=2000, delta=DELTA)
    with pytest.raises(ConfigError, match="all alike"):
        canaries.published_estimate([0.5, 0.5], dimension=2000, delta=DELTA)
