"""The limit against the binomial law itself."""

from itertools import accumulate

import numpy as np
import pytest
from mpmath import mp
from scipy.stats import binom

from dpfed.audit.statistics.rejection import upper_limit


@pytest.mark.parametrize("alpha", [0.5, 0.05, 1e-3, 1e-9])
@pytest.mark.parametrize("trials", [1, 2, 17, 1000, 200_000])
def test_so_few_successes_have_probability_alpha_at_the_limit(trials, alpha):
    successes = np.unique(np.geomspace(1, trials, 9).astype(int) - 1)
    limits = upper_limit(successes, trials, alpha=alpha)
    ends = limits - 4 * np.spacing(limits), np.minimum(limits + 4 * np.spacing(limits), 1)  # 1 - limit may be tiny
    most, least = (binom.cdf(successes, trials, end) for end in ends)
    assert (least <= alpha * (1 + 1e-9)).all()
    assert (most >= alpha * (1 - 1e-9)).all()


@pytest.mark.parametrize("trials", [10**6, 10**8])
@pytest.mark.parametrize("alpha", [0.05, 1e-9])
@pytest.mark.parametrize("successes", [998, 999, 1000])
def test_a_thousand_of_very_many_too(successes, alpha, trials):
    (limit,) = upper_limit([successes], trials, alpha=alpha)
    with mp.workdps(40):
        p = mp.mpf(float(limit))
        terms = accumulate(
            range(successes), lambda term, k: term * (trials - k) / (k + 1) * p / (1 - p), initial=(1 - p) ** trials
        )
        tail = float(mp.fsum(terms) / alpha)
    assert 1 - 1e-9 < tail <= 1


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
