"""Composed loss laws against enumeration, the library and the closed form of plain Gaussians."""

import math

import numpy as np
import pytest
from reference import library
from reference.shorthand import fixed, poisson, times
from scipy.stats import binom

from accounting import gaussian as normal
from accounting.compose import loss_distribution, loss_grid, pld
from accounting.compose.loss_distribution import LossDistribution


def delta_at(law, epsilon):
    losses = law.spacing * (law.lowest + np.arange(len(law.masses)))
    return law.infinite + float(np.maximum(-np.expm1(epsilon - losses), 0) @ law.masses)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_repeated_is_the_convolution(count):
    law = LossDistribution(spacing=0.5, lowest=-2, masses=np.array([0.1, 0.2, 0.3, 0.15, 0.2]), infinite=0.05)
    by_hand = np.ones(1)
    for _ in range(count):
        by_hand = np.convolve(by_hand, law.masses)
    composed = law.repeated(count)
    padded = np.zeros(len(by_hand))
    padded[composed.lowest + 2 * count :][: len(composed.masses)] = composed.masses
    assert padded == pytest.approx(by_hand, abs=1e-14)
    assert composed.infinite == pytest.approx(1 - 0.95**count, abs=2e-15)


@pytest.mark.parametrize("delta", [0.06, 0.1, 0.3, 0.5, 0.64, 0.9])
def test_smallest_epsilon_inverts_delta(delta):
    law = LossDistribution(spacing=0.5, lowest=-2, masses=np.array([0.1, 0.2, 0.3, 0.15, 0.2]), infinite=0.05)
    epsilon = law.smallest_epsilon(delta)
    assert delta_at(law, epsilon) <= delta * (1 + 1e-12)
    assert epsilon == 0 or delta_at(law, epsilon) == pytest.approx(delta)


def test_an_infinite_loss_of_more_than_delta_has_no_epsilon():
    law = LossDistribution(spacing=0.1, lowest=0, masses=np.array([0.5, 0.4]), infinite=0.1)
    assert law.smallest_epsilon(0.09) == math.inf


def test_losses_that_no_exponential_can_hold():
    law = LossDistribution(
        spacing=1.0, lowest=-3, masses=np.bincount([0, 3, 2003, 5003], weights=[0.5, 0.3, 0.1, 0.1]), infinite=0
    )
    assert law.smallest_epsilon(0.05) == pytest.approx(5000 + math.log(0.5), rel=1e-12)
    assert law.smallest_epsilon(0.15) == pytest.approx(2000 + math.log(0.5), rel=1e-12)
    assert 0 <= law.smallest_epsilon(0.25) <= 2000 - 599  # an upper bound far below


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize(
    "mechanism",
    [
        times(poisson(0.01, 1.0), 1000),
        times(poisson(0.3, 0.5, "replace-one"), 40),
        times(poisson(0.022990661718626328, 0.09222129757116898), 514),
        times(fixed(5, 100, 1.0), 100),
        times(fixed(60, 100, 8.0, "zero-out"), 2000),
        times(poisson(1e-4, 20.0), 100_000),
    ],
)
@pytest.mark.parametrize("delta", [1e-8, 1e-3])
def test_equals_the_librarys_composition_on_the_same_grid(mechanism, delta):
    ((one, count),) = mechanism.parts
    theirs = library.distribution(pld.distribution(one, loss_grid.interval(mechanism))).self_compose(count)
    target = delta - pld.composition_slack(count)
    found = pld.epsilon(mechanism, delta=delta)
    for factor, holds in ((1 + 2e-6, True), *([(1 - 2e-6, False)] if found else [])):  # 0 is the least epsilon
        assert (theirs.get_delta_for_epsilon(found * factor + (1e-10 if holds else -1e-10)) <= target) == holds


@pytest.mark.parametrize("count", [100, 10_000])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_cut_leaves_1e15_and_keeps_little_more(count, p):
    """A sum of coins is binomial: what is cut off has a probability of at most 1e-15, charged besides."""
    law = LossDistribution(spacing=1.0, lowest=0, masses=np.array([1 - p, p]), infinite=0.0).repeated(count)
    last = law.lowest + len(law.masses) - 1
    assert binom.cdf(law.lowest - 1, count, p) + binom.sf(last, count, p) <= 1e-15 <= law.infinite
    assert len(law.masses) <= 2 * 8.6 * math.sqrt(count * p * (1 - p)) + 20


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("lowest", [-7, -1, 0, 1, 2, 5])
@pytest.mark.parametrize("infinite", [0.0, 0.02])
def test_smallest_epsilon_of_random_laws(lowest, infinite):
    """delta(epsilon) as the sum it is, at the answer and just below: also where the answer lies below all losses."""
    rng = np.random.default_rng(lowest + 10)
    below_all = 0
    for _ in range(60):
        law = LossDistribution(
            spacing=float(10 ** rng.uniform(-2, 0.5)),
            lowest=lowest,
            masses=(1 - infinite) * rng.dirichlet(np.ones(rng.integers(1, 8))),
            infinite=infinite,
        )
        for delta in rng.uniform(0.021, 0.99, 10):
            epsilon = law.smallest_epsilon(delta)
            assert delta_at(law, epsilon) <= delta * (1 + 1e-12)
            least = law.spacing * lowest  # a law that always loses two steps or more may be left there
            assert epsilon == 0 or delta_at(law, epsilon * (1 - 1e-6)) > delta or (epsilon == least and lowest > 1)
            below_all += 0 < epsilon < least
    assert (below_all > 10) == (lowest == 1)


def shifts(mu, spacing=1e-3):
    """The loss law of a plain Gaussian shift, from above."""
    profile = normal.privacy_profile(spacing * np.arange(int((mu * mu / 2 + 20 * mu) / spacing)), mu=mu)
    return loss_grid.connect_dots(spacing, profile, profile)


@pytest.mark.parametrize("delta", [1e-9, 1e-12, 1e-20, 1e-40])
def test_a_tilted_composition_keeps_its_digits_in_the_tail(delta):
    """A thousand shifts by 0.05 are one of 0.05 sqrt(1000), whose epsilon is known in closed form."""
    exact = normal.smallest_epsilon(delta, mu=0.05 * math.sqrt(1000))
    found = loss_distribution.composed(loss_distribution.tilted_for([(shifts(0.05), 1000)], delta)).charged_epsilon(
        delta, pld.composition_slack(1000)
    )
    assert exact <= found < exact * 1.002


def test_one_after_the_other_keeps_them_too():
    exact = normal.smallest_epsilon(1e-12, mu=0.05 * math.sqrt(100))
    ((one, _),) = loss_distribution.tilted_for([(shifts(0.05), 100)], 1e-12)
    total = one
    for _ in range(99):
        total = total.plus(one)
    assert exact <= total.charged_epsilon(1e-12, 2 * pld.composition_slack(100)) < exact * 1.002


def test_what_is_misplaced_is_charged():
    """A tilt that leaves too little of the masses where delta is asked for gives no answer, not a wrong one."""
    law = loss_distribution.composed([(shifts(0.05).tilted(0.01), 1000)])
    assert law.charged_epsilon(1e-16, pld.composition_slack(1000)) == math.inf
    exact = normal.smallest_epsilon(1e-16, mu=0.05 * math.sqrt(1000))
    assert abs(law.smallest_epsilon(1e-16) / exact - 1) > 0.002  # planted: read without the charge
