"""Prices in units against an independent computation, and their rounding against exact sums."""

import math
from fractions import Fraction

import numpy as np
import pytest
from reference.shorthand import poisson, times

from accounting import Composed, Gaussian, PoissonSampling
from accounting.compose import pld
from accounting.compose.loss_distribution import LossDistribution
from accounting.compose.twins import continuous
from accounting.compose.unit_currency import _largest_excess, _profile_on_grid, currency, is_quieter
from accounting.mechanisms import (
    BallsAndBins,
    BernoulliAggregate,
    DiscreteGaussian,
    FixedSizeSampling,
    Skellam,
    subsample,
)

DELTA = 6000**-1.1
RESERVE = 0.01 * DELTA


def bins(z):
    return subsample(Gaussian(noise_multiplier=z, adjacency="add-remove"), BallsAndBins(bins=60, stream="s"))


@pytest.fixture(scope="module")
def golden():
    unit = times(poisson(1 / 60, 1.4), 1)
    return currency(unit, None, epsilon=1.01, delta=DELTA, reserve=RESERVE)


# Of other code: own pairs on an own grid, own comparison (s a tenth of a hundredth of delta).
PRICES = [
    ((poisson(1 / 60, 2.5), 20), {200: 7, 400: 6}),
    ((poisson(1.0, 40.0), 1), {200: 5, 400: 4}),
    ((poisson(1 / 60, 2.0), 60), {200: 30, 400: 29}),
    ((poisson(1 / 30, 2.0), 100), {200: 180, 400: 178}),
    ((poisson(1 / 60, 1.2), 90), {200: 192, 400: 159}),
    ((bins(1.4), 180), {200: None, 400: 212}),
    ((poisson(1 / 60, 1.0), 60), {200: None, 400: None}),
]


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("part", "prices"), PRICES)
def test_prices_are_those_of_independent_code(golden, part, prices):
    plan = Composed(parts=(part,))
    for left, price in prices.items():
        found = golden.price(plan, remaining_units=left, reserve=RESERVE)
        assert (None if found is None else found.units) == price
        if found is not None:
            assert golden.suffices(plan, price, remaining_units=left, reserve=RESERVE) == found
            assert golden.suffices(plan, price - 1, remaining_units=left, reserve=RESERVE) is None
            assert 0 < found.reserve <= 0.11 * RESERVE


def test_a_price_holds_at_random_gamma_in_both_orders(golden):
    """h of the plan and what is left, less h of all units, by the account of deltas, which sums otherwise."""
    rng, plan = np.random.default_rng(1), poisson(1 / 60, 1.2)
    price = golden.price(times(plan, 30), remaining_units=200, reserve=RESERVE)
    unit, spacing = poisson(1 / 60, 1.4), golden.interval
    at = rng.uniform(-3, 3, 400)
    after = pld.distribution(Composed(parts=((plan, 30), (unit, 200 - price.units))), spacing)
    before = pld.distribution(times(unit, 200), spacing)
    less = pld.distribution(Composed(parts=((plan, 30), (unit, 200 - price.units + 1))), spacing)
    for one, two in zip(after.orders, before.orders, strict=True):
        assert (one.delta(at) - two.delta(at)).max() <= price.reserve
    assert (
        max((one.delta(at) - two.delta(at)).max() for one, two in zip(less.orders, before.orders, strict=True))
        > price.reserve
    )


def test_profiles_are_exact_sums():
    law = LossDistribution(spacing=0.25, lowest=-2, masses=np.array([0.125, 0.25, 0.0, 0.5, 0.0625]), infinite=0.0625)
    found = _profile_on_grid(law, -4, 4)
    for place, value in zip(range(-4, 5), found, strict=True):
        terms = [
            Fraction(mass) * (1 - Fraction(math.exp(0.25 * (place - step))))
            for step, mass in zip(range(-2, 3), law.masses, strict=True)
            if step > place
        ]
        assert value == pytest.approx(float(sum(terms) + Fraction(0.0625)), abs=4e-16)
    assert _largest_excess(law, law) == 0.0


INTEGERS = {
    "discrete Gaussian": DiscreteGaussian(
        dimension=50, l2_bound=8.0, share_variance=40, shares=6, adjacency="zero-out", overflow=1e-9
    ),
    "Skellam": Skellam(dimension=50, l2_bound=8.0, share_variance=40, shares=6, adjacency="zero-out", overflow=1e-9),
}


@pytest.mark.parametrize("noise", INTEGERS.values(), ids=INTEGERS)
def test_the_closeness_of_integer_noise_multiplies_what_was_spent(noise):
    """h_(u^N)(e^(epsilon - 2 N k)) + reserve <= e^(-N k) (delta - N o) for N units, and not for one more."""
    unit = subsample(noise, PoissonSampling(probability=0.1))
    delta, reserve, rounds = 1e-4, 1e-6, 1000
    found = currency(times(unit, 1), None, epsilon=2.0, delta=delta, reserve=reserve)
    near = continuous(times(unit, rounds), lost=1e-10)
    ((gaussian, _),) = near.mechanism.parts

    def within(count):
        closeness, lost = count * near.closeness / rounds, count * (near.lost / rounds + 1e-9)
        target = math.exp(-closeness) * (delta - lost) - reserve
        many = times(gaussian, count)
        return pld.epsilon(many, delta=target) + 2 * closeness <= 2.0

    assert found.units > 5
    assert within(found.units)
    assert not within(found.units + 1)


def test_rounds_of_another_sampler_are_compared_at_all_gamma():
    unit = Gaussian(noise_multiplier=5.0, adjacency="zero-out")
    found = currency(times(unit, 1), None, epsilon=2.0, delta=1e-4, reserve=1e-6)
    half = subsample(unit, PoissonSampling(probability=0.5))
    assert 0 < found.covers(half) < 1e-12
    assert found.covers(subsample(Gaussian(noise_multiplier=2.0, adjacency="zero-out"), half.sampling)) is None
    assert found.covers(unit) is not None


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(("floor", "epsilon"), [(0.2, 1.0), (0.01, 20.0)], ids=["loose Gaussian", "no Gaussian"])
def test_coins_below_no_close_gaussian_are_counted_by_the_best_account(floor, epsilon):
    coins = BernoulliAggregate(dimension=50, floor=floor, adjacency="zero-out", l2_clip=0.3, cohort=20)
    unit = times(subsample(coins, PoissonSampling(probability=0.1)), 1)
    found = currency(unit, None, epsilon=epsilon, delta=1e-4, reserve=1e-6)
    assert found.units > 0
    assert not found.has_prices
    assert found.price(unit, remaining_units=found.units, reserve=1e-6) is None


def test_fixed_size_rounds_are_counted_by_their_adaptive_account():
    sampling = FixedSizeSampling(cohort=100, clients=6000)
    unit = subsample(Gaussian(noise_multiplier=1.4, adjacency="zero-out"), sampling)
    found = currency(times(unit, 1), None, epsilon=4.0, delta=DELTA, reserve=RESERVE)
    assert found.units == 691  # one pair: 646; without a reserve: 692
    price = found.price(times(poisson(1.0, 20.0, "zero-out"), 1), remaining_units=591, reserve=RESERVE)
    assert price.units == 8


def test_quieter_is_said_of_three_samplings_alone():
    unit = poisson(1 / 60, 1.4)
    assert is_quieter(unit, unit)
    assert is_quieter(bins(1.4), bins(1.4))
    assert is_quieter(poisson(1 / 61, 1.4), unit)
    assert not is_quieter(poisson(1 / 59, 2.0), unit)
    assert not is_quieter(poisson(1 / 61, 2.0, "zero-out"), unit)
    assert not is_quieter(bins(1.5), bins(1.4))
    assert not is_quieter(subsample(INTEGERS["Skellam"], PoissonSampling(probability=0.1)), unit)
