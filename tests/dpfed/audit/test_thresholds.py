"""Where scores are cut."""

import numpy as np
import pytest
from scipy.stats import norm

from accounting import gaussian
from dpfed.audit import thresholds
from dpfed.audit.clopper_pearson import upper_limit
from dpfed.audit.thresholds import HeldOut, Thresholds
from dpfed.errors import ConfigError


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("trials", [2000, 50_000])
@pytest.mark.parametrize("delta", [None, 1e-5])
def test_claimed_gaussian_beats_every_other_threshold_in_what_is_expected_to_be_shown(mu, trials, delta):
    def shown(t):
        fpr, fnr = (upper_limit(trials * rate, trials, alpha=0.025) for rate in (norm.sf(t), norm.cdf(t - mu)))
        if delta is None:
            return norm.isf(fpr) - norm.ppf(fnr)
        return np.log(max((1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr, 1e-9))

    (best,) = thresholds.claimed_gaussian(mu, trials=trials, alpha=0.05, delta=delta).values
    others = [float(shown(t)) for t in np.linspace(-4, mu + 4, 161)]
    assert float(shown(best)) >= np.nanmax(others) - 1e-4


def test_a_claimed_profile_gives_the_gaussian_threshold_in_units_of_the_log_ratio():
    """The log-likelihood ratio of N(mu) to N(0) at x is mu x - mu^2 / 2."""
    mu = 0.7
    (score,) = thresholds.claimed_gaussian(mu, trials=2000, alpha=0.05).values
    (loss,) = thresholds.claimed_profile(
        lambda eps: gaussian.privacy_profile(eps, mu=mu), trials=2000, alpha=0.05
    ).values
    assert loss == pytest.approx(mu * score - mu**2 / 2, abs=0.02)


def test_a_given_law_equals_the_gaussian_one():
    (by_law,) = thresholds.claimed_law(
        lambda t: norm.sf(t), lambda t: norm.cdf(t - 1), np.linspace(-6, 7, 4001), trials=500, alpha=0.05
    ).values
    assert by_law == pytest.approx(thresholds.claimed_gaussian(1.0, trials=500, alpha=0.05).values[0], abs=0.01)


def test_too_few_trials_for_the_claim_cut_where_both_errors_are_alike():
    """Nine trials cannot show mu = 0.7, but can show a mechanism with a tenth of its noise."""
    assert thresholds.claimed_gaussian(0.714, trials=9, alpha=0.05).values[0] == pytest.approx(0.357, abs=0.005)


def test_spread_covers_what_the_trials_can_see():
    spread = thresholds.spread_gaussian(1.0, trials=1000, count=5).values
    assert len(spread) == 5
    assert norm.sf(spread[-1]) == pytest.approx(0.01)
    assert norm.cdf(spread[0] - 1.0) == pytest.approx(0.01)
    assert thresholds.spread_gaussian(1.0, trials=1000, count=1).values == (pytest.approx(0.5),)


def test_held_out_trials_are_disjoint_whole_and_blind_to_the_scores():
    split = HeldOut(seed=3, fraction=0.25)
    chosen, measured = split.split(np.arange(1000.0), 0)
    assert (len(chosen), len(measured)) == (250, 750)
    assert sorted([*chosen, *measured]) == list(range(1000))
    again, _ = split.split(np.arange(1000.0)[::-1], 0)
    assert np.array_equal(again, 999 - chosen)
    assert abs(chosen.mean() - 499.5) < 60  # sorted scores are shuffled, not cut


@pytest.mark.parametrize(("size", "fraction"), [(1, 0.5), (10, 0.01), (10, 0.99)])
def test_a_split_that_leaves_nothing_is_refused(size, fraction):
    with pytest.raises(ConfigError, match=r"of world 1.*Use more trials"):
        HeldOut(seed=0, fraction=fraction).split(np.zeros(size), 1)


@pytest.mark.parametrize("bad", [{"values": (), "origin": "x"}, {"values": (1.0,), "origin": " "}])
def test_a_threshold_says_where_it_comes_from(bad):
    with pytest.raises(ConfigError, match="before the scores were drawn"):
        Thresholds(**bad)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1"])
def test_thresholds_are_finite(value):
    with pytest.raises(ValueError, match="threshold="):
        Thresholds(values=(value,), origin="claim")


def test_candidates_are_finite():
    with pytest.raises(ConfigError, match="candidates"):
        thresholds.claimed_law(norm.sf, norm.cdf, [], trials=10, alpha=0.05)
