"""Differences of whole scores: the error rate of what they bound, measured; their strength; and what breaks it."""

import numpy as np
import pytest
from scipy.stats import binom

from dpfed.audit.statistics.epsilon_bounds import epsilon_of_shift
from dpfed.audit.statistics.one_run import factor_bound

ALPHA = 0.05


def gaussian(rng, count):
    return rng.standard_normal(count)


def skellam(rng, count):
    """Variance 1: far from normal."""
    return rng.poisson(0.5, count) - rng.poisson(0.5, count) + 0.0


def left_skewed(rng, count):
    return 1 - rng.exponential(1.0, count)


@pytest.mark.parametrize("noise", [gaussian, skellam, left_skewed])
@pytest.mark.parametrize("number", [40, 200])
def test_the_error_rate_is_what_is_stated_and_a_fault_is_found(noise, number):
    rng, above, caught = np.random.default_rng(8), 0, 0
    for _ in range(600):
        absent, present = noise(rng, number), noise(rng, number) + 1.0
        above += factor_bound(absent, present, alpha=ALPHA) > 1.0
        caught += factor_bound(absent, present + 1.0, alpha=ALPHA) > 1.0
    assert above <= int(binom.ppf(0.999, 600, ALPHA))
    assert caught > 570


def test_a_hundred_thousand_canaries_show_nearly_the_epsilon_of_a_gaussian():
    rng = np.random.default_rng(5)
    shown = [factor_bound(gaussian(rng, 50_000), gaussian(rng, 50_000) + 1.0, alpha=ALPHA) for _ in range(9)]
    assert 4.25 < epsilon_of_shift(float(np.median(shown)), delta=1e-5) < 4.3772


def test_scores_that_say_nothing_show_nothing():
    rng = np.random.default_rng(1)
    assert factor_bound(gaussian(rng, 200), gaussian(rng, 200), alpha=ALPHA) < 0.2
    assert factor_bound(gaussian(rng, 200), gaussian(rng, 200) - 5.0, alpha=ALPHA) == 0.0
    assert factor_bound(np.zeros(9), np.ones(500), alpha=ALPHA) == 0.0


def test_coins_that_are_chosen_by_scores_break_the_bound():
    """Planted fault: those present are chosen by their scores."""
    scores = np.random.default_rng(2).standard_normal(200) + 1.0
    chosen = scores > np.median(scores)
    assert factor_bound(scores[~chosen], scores[chosen], alpha=ALPHA) > 1.0
