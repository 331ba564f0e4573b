"""Scores cut at thresholds: where, and how many errors are counted there."""

import math

import numpy as np
import pytest
from refusals import refused
from scipy.stats import beta, norm

from dpfed.audit.statistics import rejection
from dpfed.audit.statistics.epsilon_bounds import best_guess_cuts
from dpfed.audit.statistics.power import scores_of_all_clients
from dpfed.audit.statistics.rejection import (
    ErrorCounts,
    checked_scores,
    most_revealed_trials,
    trials_in_worlds,
    upper_limit,
)
from dpfed.errors import ConfigError


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("trials", [2000, 50_000])
def test_claimed_gaussian_beats_every_other_threshold_in_what_is_expected_to_be_shown(mu, trials):
    def shown(t):
        fpr, fnr = (upper_limit(trials * rate, trials, alpha=0.025) for rate in (norm.sf(t), norm.cdf(t - mu)))
        return norm.isf(fpr) - norm.ppf(fnr)

    best = rejection.gaussian_threshold(mu, trials=trials, alpha=0.05)
    others = [float(shown(t)) for t in np.linspace(-4, mu + 4, 161)]
    assert float(shown(best)) >= np.nanmax(others) - 1e-4


def test_too_few_trials_for_the_claim_cut_where_both_errors_are_alike():
    """Nine trials cannot show mu = 0.7, but can show a mechanism with a tenth of its noise."""
    assert rejection.gaussian_threshold(0.714, trials=9, alpha=0.05) == pytest.approx(0.357, abs=0.005)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("trials", "mu"), [(2_000, 1.0), (100_000, 1.0), (100_000, 0.5)])
def test_guesses_are_made_where_they_are_expected_to_show_the_most(trials, mu):
    """Against 60 x 60 other pairs of cuts; the expected bound by scipy's binomial tail."""

    def shown(low, high):
        right = trials / 2 * (norm.sf(high - mu) + norm.cdf(low))
        wrong = trials / 2 * (norm.sf(high) + norm.cdf(low - mu))
        out = most_revealed_trials(trials, 1e-5, 0.05)
        q = beta.ppf(0.95 * 0.05, right - out, wrong + 1) if right > out else 0.5
        return np.log(q / (1 - q))

    found = best_guess_cuts(
        scores_of_all_clients(mu).error_rates, np.linspace(-5, 6, 111), trials=trials, alpha=0.05, delta=1e-5
    )
    ends = np.linspace(-5, 6, 60)
    others = [shown(low, high) for low in ends for high in ends if low <= high]
    assert shown(found.low, found.high) >= np.nanmax(others) - 0.02


def test_coins_leave_no_world_empty_and_are_fair():
    assert trials_in_worlds(2, 0) == (1, 1)
    ones = np.array([trials_in_worlds(100, seed)[1] for seed in range(400)])
    assert abs(ones.mean() - 50) < 6 * 5 / 20
    assert 4 < ones.std() < 6
    refused(ConfigError, "at least 2", trials_in_worlds, 1, 0)


def test_counts_equal_counting_one_by_one_with_ties_and_infinities():
    rng = np.random.default_rng(0)
    scores0 = np.append(rng.integers(-3, 4, 50).astype(float), [math.inf, -math.inf])
    scores1 = np.append(rng.integers(-1, 6, 70).astype(float), [math.inf, -math.inf, -math.inf])
    thresholds = np.array([-10.0, -3.0, 0.0, 0.5, 1.0, 6.0])
    counts = ErrorCounts.from_scores(scores0, scores1, thresholds)
    assert counts.false_positives.tolist() == [sum(s >= t for s in scores0) for t in thresholds]
    assert counts.false_negatives.tolist() == [sum(s < t for s in scores1) for t in thresholds]
    assert (counts.trials0, counts.trials1) == (52, 73)


def test_limits_share_alpha_between_thresholds_and_worlds():
    one = ErrorCounts.from_scores(np.zeros(20), np.ones(20), [0.5])
    many = ErrorCounts.from_scores(np.zeros(20), np.ones(20), [0.5, 0.5, 0.5, 0.5])
    assert many.upper_limits(alpha=0.2)[0][0] == one.upper_limits(alpha=0.05)[0][0]
    assert one.upper_limits(alpha=0.05)[0][0] == pytest.approx(1 - 0.025 ** (1 / 20), rel=1e-12)


@pytest.mark.parametrize("scores", [[], [[1.0, 2.0]], 3.0, ["x"]])
def test_what_is_no_list_of_scores_is_refused(scores):
    refused(ConfigError, r"scores0.*list of (at least one number|numbers)", checked_scores, scores, "scores0")


def test_nan_is_refused_and_counted():
    refused(ConfigError, "2 of 3 scores are NaN", checked_scores, [math.nan, 1.0, math.nan], "scores1")
