"""One-run audits against another implementation, many digits, and games whose answer is known."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import binom

from accounting import gaussian
from dpfed.audit.statistics import one_run
from dpfed.audit.statistics.one_run import Guesses

pytestmark = pytest.mark.slow_but_one_in(3)

ALPHA = 0.05


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "by_delta", "by_shift"),
    [
        (1000, 100, 90, 1e-5, 1.6261436787042223, 2.4564050672094146),
        (100, 20, 20, 1e-5, 1.819596907485671, 3.2393925462725313),
        (10_000, 500, 480, 1e-5, 2.7703874599836564, 3.790360642310316),
        (10_000, 500, 480, 1e-3, 0.0, 2.691180656061581),
        (50, 50, 40, 1e-6, 0.7740566552763906, 2.05920951038408),
        (100_000, 3000, 2900, 1e-5, 3.1154987760547264, 3.9365276577067148),
        (100, 50, 30, 1e-5, 0.0, 0.0),
    ],
)
def test_bounds_equal_jax_privacy(m, r, v, delta, by_delta, by_shift):
    """jax-privacy 2.0.0, file auditing.py: _epsilon_one_run and _epsilon_one_run_fdp(0, m, r, v, 0.05, delta), whose
    roots are good to 1e-6."""
    seen = Guesses(canaries=m, made=r, correct=v)
    assert one_run.epsilon_lower_bound(seen, delta=delta, alpha=ALPHA) == pytest.approx(by_delta, abs=2e-6)
    assert one_run.gdp_epsilon_lower_bound(seen, delta=delta, alpha=ALPHA) == pytest.approx(by_shift, abs=2e-6)


@pytest.mark.parametrize(("m", "r", "v"), [(40, 12, 12), (40, 12, 9), (40, 12, 1), (500, 60, 51)])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3])
def test_p_value_equals_many_digits(m, r, v, epsilon, delta):
    with mp.workdps(40):
        q = mp.exp(epsilon) / (1 + mp.exp(epsilon))
        pmf = [mp.binomial(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
        beta = mp.fsum(pmf[v:])
        steps = [mp.fsum(pmf[v - i : v]) / i for i in range(1, v + 1)]
        exact = min(mp.mpf(1), beta + 2 * m * mp.mpf(delta) * max(steps))
    value = one_run.p_value(Guesses(canaries=m, made=r, correct=v), epsilon=epsilon, delta=delta)
    assert value == pytest.approx(float(exact), rel=1e-9, abs=0)


def test_without_delta_the_test_is_the_exact_binomial_one():
    """Randomised response on every canary: right with probability e^epsilon / (1 + e^epsilon), independently."""
    m, epsilon = 50, 1.0
    q = math.e / (1 + math.e)
    bounds = np.array(
        [
            one_run.epsilon_lower_bound(Guesses(canaries=m, made=m, correct=v), delta=0.0, alpha=ALPHA)
            for v in range(m + 1)
        ]
    )
    above = binom.pmf(np.arange(m + 1), m, q) @ (bounds > epsilon)
    assert 0.01 < above <= ALPHA
    assert np.all(np.diff(bounds) >= 0)


def test_all_or_none_correct():
    assert one_run.epsilon_lower_bound(Guesses(canaries=9, made=9, correct=0), delta=0.0, alpha=ALPHA) == 0
    assert one_run.gdp_lower_bound(Guesses(canaries=9, made=9, correct=0), alpha=ALPHA) == 0
    assert one_run.p_value(Guesses(canaries=9, made=9, correct=0), epsilon=1.0, delta=1e-5) == 1
    one = Guesses(canaries=1, made=1, correct=1)
    assert one_run.epsilon_lower_bound(one, delta=0.0, alpha=ALPHA) == 0  # one coin may be guessed
    perfect = one_run.epsilon_lower_bound(Guesses(canaries=9, made=9, correct=9), delta=0.0, alpha=ALPHA)
    assert (math.exp(perfect) / (1 + math.exp(perfect))) ** 9 == pytest.approx(ALPHA)


def test_a_claimed_profile_is_rejected_like_its_shift():
    """The profile of mu-GDP, through its inverse blow-up on a grid, meets the closed form from the safe side."""
    seen = Guesses(canaries=1000, made=100, correct=90)
    shift = one_run.gdp_lower_bound(seen, alpha=ALPHA)

    def rejected(mu):
        return one_run.rejects_profile(seen, lambda eps: gaussian.privacy_profile(eps, mu=mu), alpha=ALPHA)

    assert rejected(0.999 * shift)
    assert not rejected(1.000001 * shift)


def test_equal_scores_do_not_leak_the_order_of_the_canaries():
    """Planted: canaries sorted by inclusion, scores that say nothing. A stable sort would guess all of them."""
    included = np.arange(1000) < 500
    seen = one_run.guess(np.zeros(1000), included, guesses=400, seed=1)
    assert 140 < seen.correct < 260


def test_guesses_are_the_highest_in_and_the_lowest_out():
    scores, included = np.array([5.0, 1.0, 4.0, 2.0, 3.0]), np.array([True, False, False, True, True])
    assert one_run.guess(scores, included, guesses=2, seed=0) == Guesses(canaries=5, made=2, correct=2)
    assert one_run.guess(scores, included, guesses=3, seed=0).correct == 2
    assert one_run.guess(scores, included, guesses=5, seed=0).correct == 3
    assert one_run.guess(scores, included, guesses=1, seed=0) == Guesses(canaries=5, made=1, correct=1)
