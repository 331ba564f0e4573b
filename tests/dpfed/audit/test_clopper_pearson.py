"""The limit against the binomial law itself."""

import numpy as np
import pytest
from scipy.stats import binom

from accounting.errors import InvalidParameter
from dpfed.audit.clopper_pearson import upper_limit
from dpfed.errors import ConfigError


@pytest.mark.parametrize("alpha", [0.5, 0.05, 1e-3, 1e-9])
@pytest.mark.parametrize("trials", [1, 2, 17, 1000, 200_000])
def test_so_few_successes_have_probability_alpha_at_the_limit(trials, alpha):
    successes = np.unique(np.geomspace(1, trials, 9).astype(int) - 1)
    limits = upper_limit(successes, trials, alpha=alpha)
    assert binom.cdf(successes, trials, limits) == pytest.approx(np.full(len(successes), alpha), rel=1e-6)


def test_no_failure_seen_bounds_nothing():
    assert upper_limit([1, 7], [1, 7], alpha=0.05).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("alpha", [0.3, 0.05, 0.001])
@pytest.mark.parametrize("trials", [1, 5, 30])
def test_missed_with_probability_at_most_alpha_at_every_p(trials, alpha):
    """Exactly, by summing the binomial law over the counts whose limit lies below p."""
    k = np.arange(trials + 1)
    limits = upper_limit(k, trials, alpha=alpha)
    grid = np.concatenate([np.linspace(0, 1, 401), limits[:-1] + 1e-12])
    missed = [(binom.pmf(k, trials, p) * (limits < p)).sum() for p in grid]
    assert max(missed) <= alpha * (1 + 1e-9)
    assert max(missed) >= alpha * (1 - 1e-6)  # and not for want of trying: reached just above a limit


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (0, 0), (np.nan, 5)])
def test_impossible_counts_are_refused(k, n):
    with pytest.raises(ConfigError, match="0 <= successes <= trials"):
        upper_limit(k, n, alpha=0.05)


@pytest.mark.parametrize("alpha", [0.0, 1.0, float("nan")])
def test_alpha_is_a_probability(alpha):
    with pytest.raises(InvalidParameter, match="alpha="):
        upper_limit(1, 5, alpha=alpha)
