"""Power against brute force, and the rule against planted faults."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from accounting import gaussian
from dpfed.audit.statistics.power import (
    A_FIFTH,
    Power,
    RejectionRegion,
    power_of,
    scores_of_all_clients,
)
from dpfed.audit.statistics.rejection import gaussian_threshold, reject_claim

ALPHA = 0.05


def profile(epsilon):
    return gaussian.privacy_profile(epsilon, mu=1.0)


def region(trials, threshold=0.5):
    law = scores_of_all_clients(1.0)
    return RejectionRegion.of_one_threshold(profile, law, threshold=threshold, trials=(trials, trials), alpha=ALPHA)


def test_power_is_that_of_all_counts_for_few_trials():
    """Every pair of counts of 12 and 12 trials, by the rule itself on made scores; the cells lose nothing here."""
    n, threshold = 12, 0.5
    at = (threshold,)
    found = region(n)
    for fault in ({}, {"noise_short": 0.6}, {"too_far": 2.0}):
        std, mu = 1 - fault.get("noise_short", 0.0), 1 + fault.get("too_far", 0.0)
        rates = norm.sf(threshold / std), norm.cdf((threshold - mu) / std)
        exact = 0.0
        for positives in range(n + 1):
            for negatives in range(n + 1):
                scores0 = np.r_[np.full(positives, 1.0), np.zeros(n - positives)]
                scores1 = np.r_[np.zeros(negatives), np.full(n - negatives, 1.0)]
                if reject_claim(scores0, scores1, profile, alpha=ALPHA, thresholds=at).rejected:
                    exact += binom.pmf(positives, n, rates[0]) * binom.pmf(negatives, n, rates[1])
        assert found.probability(scores_of_all_clients(1.0), **fault) == pytest.approx(exact, abs=1e-12)


def test_an_honest_round_is_refuted_with_probability_at_most_alpha():
    for trials in (20, 300, 3_000):
        assert region(trials).probability(scores_of_all_clients(1.0)) <= ALPHA


@pytest.mark.slow
def test_power_is_how_often_simulated_faults_are_found():
    """1,000 audits of noise short by 30% and by 10%: as often as computed within 5 standard errors, and not below what
    cells may lose (1%). False alarm 1e-6."""
    n, generator = 400, np.random.default_rng(0)
    found, at = region(n), (0.5,)
    for short in (0.1, 0.3):
        power = found.probability(scores_of_all_clients(1.0), noise_short=short)
        caught = 0
        for _ in range(1_000):
            scores0, scores1 = (mu + (1 - short) * generator.standard_normal(n) for mu in (0.0, 1.0))
            caught += reject_claim(scores0, scores1, profile, alpha=ALPHA, thresholds=at).rejected
        spread = 5 * (power * (1 - power) / 1_000) ** 0.5
        assert power - spread <= caught / 1_000 <= power + spread + 0.02


@pytest.mark.slow
def test_more_trials_find_smaller_faults_and_five_find_none():
    found = []
    for trials in (5, 500, 2_000, 20_000):
        cut = gaussian_threshold(1.0, trials=trials, alpha=ALPHA)
        power = power_of(region(trials, cut), scores_of_all_clients(1.0))
        found.append((power.noise_short or 9.0, power.too_far or 99.0))
    assert found == sorted(found, reverse=True)
    assert found[0] == (9.0, 99.0)
    assert found[-1][0] < 0.1


def test_a_fifth_is_the_limit():
    assert Power(noise_short=A_FIFTH, too_far=None).is_sufficient
    assert not Power(noise_short=0.205, too_far=0.1).is_sufficient
    assert not Power(noise_short=None, too_far=None).is_sufficient
