"""Lower bounds: their coverage exactly and by repetition, and their strength."""

import math

import numpy as np
import pytest
from refusals import refused
from scipy.stats import binom, norm

from accounting import gaussian
from dpfed.audit.statistics.epsilon_bounds import (
    best_guess_cuts,
    epsilon_lower_bound,
    epsilon_of_guesses,
    epsilon_of_shift,
    gdp_lower_bound,
)
from dpfed.audit.statistics.power import scores_of_all_clients
from dpfed.audit.statistics.rejection import GuessCuts
from dpfed.errors import ConfigError

DELTA, ALPHA = 1e-5, 0.05


def cut(low, high=None):
    return GuessCuts(low=low, high=low if high is None else high)


def worlds(rng, trials, mu):
    ones = int(rng.binomial(trials, 0.5))
    return rng.standard_normal(trials - ones), rng.standard_normal(ones) + mu


def with_errors(wrong, trials):
    """Scores of as many trials, so many of them guessed wrongly at 0.5."""
    scores = np.ones(trials)
    scores[:wrong] = 0.0
    return np.zeros(1), scores


@pytest.mark.parametrize("n", [5, 30, 80])
@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_a_gaussians_shift_is_exceeded_with_probability_at_most_alpha_exactly(mu, n):
    """A trial errs with probability Phi(-mu / 2) at the middle: summed over all counts of errors."""
    shown = [gdp_lower_bound(*with_errors(k, n - 1), alpha=ALPHA, cut=0.5) for k in range(n)]
    above = np.append(np.array(shown) > mu, False)
    assert binom.pmf(np.arange(n + 1), n, norm.cdf(-mu / 2)) @ above <= ALPHA


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3, 0.05])
@pytest.mark.parametrize("trials", [40, 400])
def test_the_worst_pair_of_all_is_exceeded_with_probability_at_most_alpha_exactly(trials, delta, epsilon):
    """Randomised response that shows its world with probability delta, of which every pair is a function; the count of
    right guesses is binomial. Without delta the bound is sharp: more than a fifth of alpha."""
    q = delta + (1 - delta) / (1 + math.exp(-epsilon))
    wrong, given = np.arange(trials), {"delta": delta, "alpha": ALPHA, "cuts": cut(0.5)}
    shown = np.array([epsilon_lower_bound(*with_errors(count, trials - 1), **given) for count in wrong])
    above = binom.pmf(trials - wrong, trials, q) @ (shown > epsilon)
    assert above <= ALPHA
    assert delta or trials < 400 or above > ALPHA / 5


def test_an_uncharged_delta_is_too_much():
    """Planted fault: the same without taking off what delta shows."""
    trials, epsilon, delta = 400, 1.0, 0.05
    q = delta + (1 - delta) / (1 + math.exp(-epsilon))
    right = np.arange(trials + 1)
    shown = epsilon_of_guesses(right, trials - right, shown=0, alpha=ALPHA)
    assert binom.pmf(right, trials, q) @ (shown > epsilon) > ALPHA


@pytest.mark.parametrize(
    ("trials", "mu", "any_mechanism", "gdp"),
    [(100_000, 1.0, 2.45, 4.2), (1_000_000, 1.0, 3.1, 4.32), (100_000, 0.5, 1.2, 1.9)],
)
def test_what_trials_show_of_a_gaussian(trials, mu, any_mechanism, gdp):
    """Medians of 15 are at least these, and no bound is above the truth (seeded)."""
    rng, truth = np.random.default_rng(1), float(gaussian.smallest_epsilon(DELTA, mu=mu))
    at = np.linspace(-6, mu + 6, 121)
    cuts = best_guess_cuts(scores_of_all_clients(mu).error_rates, at, trials=trials, alpha=ALPHA, delta=DELTA)
    shown = []
    for _ in range(15):
        scores = worlds(rng, trials, mu)
        shown.append(
            (
                epsilon_lower_bound(*scores, delta=DELTA, alpha=ALPHA, cuts=cuts),
                epsilon_of_shift(gdp_lower_bound(*scores, alpha=ALPHA, cut=mu / 2), delta=DELTA),
            )
        )
    assert np.median(shown, axis=0) == pytest.approx((any_mechanism, gdp), abs=0.6)
    assert np.all(np.median(shown, axis=0) >= (any_mechanism, gdp))
    assert np.mean([one[0] for one in shown]) < truth


@pytest.mark.parametrize("mu", [1e-6, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_epsilon_of_a_shift_is_rounded_downwards(mu, delta):
    epsilon = epsilon_of_shift(mu, delta=delta)
    assert epsilon == 0 or float(gaussian.privacy_profile(epsilon, mu=mu)) >= delta
    assert epsilon <= gaussian.smallest_epsilon(delta, mu=mu)
    assert epsilon == pytest.approx(gaussian.smallest_epsilon(delta, mu=mu), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("scores", [([0.0], [1.0]), ([1.0] * 50, [1.0] * 50), ([0.0] * 50, [0.0] * 50)])
def test_nothing_seen_is_zero(scores):
    """A single trial in each world; all scores on one side."""
    assert epsilon_lower_bound(*scores, delta=DELTA, alpha=ALPHA, cuts=cut(0.5)) == 0
    assert gdp_lower_bound(*scores, alpha=ALPHA, cut=0.5) == 0


def test_abstaining_trials_are_no_guesses():
    assert cut(0.0, 1.0).count_guesses(np.array([-1.0, 0.5, 2.0]), np.array([0.5, 2.0, 2.0])) == (3, 1)


def test_infinite_scores_are_guessed():
    found = epsilon_lower_bound([-math.inf] * 40, [math.inf] * 40, delta=0.0, alpha=ALPHA, cuts=cut(0.0))
    limit = ALPHA ** (1 / 80)
    assert found == pytest.approx(math.log(limit / (1 - limit)))


def test_nan_scores_are_refused():
    refused(ConfigError, "scores0: 1 of 1 scores are NaN", gdp_lower_bound, [math.nan], [1.0], alpha=ALPHA, cut=0.0)
