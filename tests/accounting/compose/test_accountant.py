"""A stated guarantee names everything, and its progress stream agrees with it."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from mpmath import mp
from reference import normal
from reference.shorthand import fixed, gaussian, poisson, times
from refusals import refused

from accounting import budget
from accounting.bernoulli.accounts import COIN_ORDERS, SAMPLED_COIN_ORDERS
from accounting.budget import Plan
from accounting.compose import accountant, adaptive, lower_bound, rdp, running
from accounting.compose.accountant import guarantee
from accounting.compose.fed_smp import lemma_3, theorem_1
from accounting.compose.twins import continuous
from accounting.errors import ContradictoryBounds, UnsupportedMechanism
from accounting.mechanisms import (
    BernoulliAggregate,
    Composed,
    FixedSizeSampling,
    PoissonSampling,
    Subsampled,
    subsample,
)
from accounting.mechanisms.integers import DiscreteGaussian


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("mechanism", "sampling", "adjacency", "method"),
    [
        (gaussian(2.0), "all", "add-remove", "analytic-gaussian"),
        (times(poisson(0.1, 2.0), 10), "poisson", "add-remove", "pld"),
        (times(fixed(1, 10, 2.0), 10), "fixed", "replace-one", "adaptive"),
        (
            Composed(parts=((poisson(0.1, 2.0, "zero-out"), 2), (gaussian(3.0, "zero-out"), 1))),
            "all+poisson",
            "zero-out",
            "pld",
        ),
    ],
)
def test_names_everything(mechanism, sampling, adjacency, method):
    stated = guarantee(mechanism, delta=1e-5, unit="client")
    assert (stated.sampling, stated.adjacency, stated.method) == (sampling, adjacency, method)
    assert (stated.delta, stated.unit, stated.valid) == (1e-5, "client", True)
    assert stated.notes == ((adaptive.HYPOTHESIS,) if sampling == "fixed" else ())
    assert 0 < stated.lower_bound <= stated.epsilon


def test_the_lower_bound_is_its_own_computation():
    """Fixed size leaves a gap between the two; where there is none, rounding does not let them cross."""
    stated = guarantee(times(fixed(10, 100, 1.0), 2), delta=1e-5)
    assert 0.99 * stated.epsilon < stated.lower_bound < stated.epsilon
    shift = 0.2 * math.sqrt(7)
    stated = guarantee(times(gaussian(5.0), 7), delta=1e-5)
    assert normal.epsilon(1e-5, shift) * (1 - 1e-9) <= stated.lower_bound <= normal.epsilon(1e-5, shift)


@pytest.mark.parametrize("bad", [None, 3, "gaussian"])
def test_what_is_no_mechanism_is_refused(bad):
    refused(UnsupportedMechanism, "", guarantee, bad, delta=1e-5)


def test_best_says_why_nothing_applies():
    with pytest.raises(UnsupportedMechanism, match=r"no accountant has a bound.*at least 1e-12.*no Renyi bound"):
        guarantee(times(poisson(0.1, 2.0, "replace-one"), 3), delta=1e-13)


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize(
    "mechanism",
    [
        *(gaussian(5.0), poisson(0.1, 2.0), poisson(0.1, 2.0, "replace-one")),
        *(fixed(1, 10, 3.0), fixed(10, 100, 4.0), fixed(10, 100, 4.0, "zero-out")),
    ],
)
@pytest.mark.parametrize("name", ["best", "pld"])
def test_progress_follows_the_guarantee_of_each_prefix(mechanism, name):
    stream = running.epsilons(mechanism, delta=1e-5, rounds=6, accountant=name)
    for count in range(1, 9):  # beyond the plan too
        expected = accountant.guarantee(times(mechanism, count), delta=1e-5, accountant=name)
        value = next(stream)
        assert value == pytest.approx(expected.epsilon, rel=2e-3)
        assert value >= expected.lower_bound


def test_progress_at_a_tiny_delta_falls_back_on_renyi():
    stream = running.epsilons(poisson(0.1, 2.0), delta=1e-14, rounds=3)
    assert next(stream) == accountant.epsilon(poisson(0.1, 2.0), delta=1e-14, accountant="rdp")


class TestFedSmp:
    """The paper's side conditions: sigma^2 >= 0.7, epsilon < 2 log(1/delta), alpha within its range."""

    LARGE = FixedSizeSampling(cohort=10, clients=10**9)

    def test_a_setting_that_meets_all_conditions(self):
        reading = theorem_1(5.0, 10, self.LARGE, delta=1e-2, sensitivity_in_clips=1.0)
        assert isinstance(reading.violated, tuple)
        allowed = 2 / 3 * 25 * math.log(1 / (1e-8 * reading.order * 26)) + 1
        assert (reading.violated == ()) == (reading.order <= allowed)

    def test_too_little_noise(self):
        reading = theorem_1(0.8, 10, self.LARGE, delta=1e-5, sensitivity_in_clips=1.0)
        assert "sigma^2 = 0.6400, needed at least 0.7" in reading.violated

    def test_too_large_an_epsilon(self):
        reading = theorem_1(1.0, 10**6, FixedSizeSampling(cohort=1, clients=2), delta=1e-5, sensitivity_in_clips=1.0)
        assert any(condition.startswith("epsilon = ") for condition in reading.violated)

    @pytest.mark.slow
    def test_where_the_theorem_holds_it_is_above_the_tight_account(self):
        """A condition met: its epsilon, with the true sensitivity, must be a bound."""
        sampling, found = FixedSizeSampling(cohort=1, clients=2000), 0
        for rounds in (10**5, 10**6):
            for sigma in (4.0, 8.0):
                reading = theorem_1(sigma, rounds, sampling, delta=0.01, sensitivity_in_clips=2.0)
                if not reading.violated:
                    found += 1
                    assert reading.epsilon >= accountant.epsilon(times(fixed(1, 2000, sigma), rounds), delta=0.01)
        assert found

    @pytest.mark.slow
    def test_lemma_3_with_the_true_sensitivity_is_above_the_tight_account(self):
        for sigma, rounds in ((1.4, 180), (4.0, 1000), (0.8, 5)):
            sampling = FixedSizeSampling(cohort=100, clients=6000)
            reading = lemma_3(sigma, rounds, sampling, delta=1e-5, sensitivity_in_clips=2.0)
            assert reading.epsilon >= accountant.epsilon(times(fixed(100, 6000, sigma), rounds), delta=1e-5)

    def test_readings_refuse_what_repeats_nothing(self):
        mixed = Composed(parts=((fixed(1, 10, 2.0), 1), (fixed(1, 10, 3.0), 1)))
        with pytest.raises(UnsupportedMechanism, match=r"accountant='fed-smp-lemma'"):
            guarantee(mixed, delta=1e-5, accountant="fed-smp-lemma")


@pytest.mark.parametrize("conversion", ["improved", "classical"])
def test_a_guarantee_names_how_it_was_found(conversion):
    stated = guarantee(gaussian(2.0, "zero-out"), delta=1e-5, accountant="rdp", conversion=conversion)
    assert (stated.method, stated.conversion) == ("rdp", conversion)
    assert (stated.adjacency, stated.sampling) == ("zero-out", "all")
    assert stated.order > 1
    assert (stated.unit, stated.valid, stated.delta) == ("client", True, 1e-5)


def test_an_account_of_sampled_coins_looks_at_every_whole_order():
    coins = BernoulliAggregate(dimension=4, cohort=2, floor=0.25, adjacency="zero-out", l2_clip=0.2)
    run = times(Subsampled(mechanism=coins, sampling=PoissonSampling(probability=0.3)), 5)
    orders = np.arange(2.0, 65.0)
    each = rdp.curve(run, orders) + np.log1p(-1 / orders) - (math.log(1e-5) + np.log(orders)) / (orders - 1)
    stated = guarantee(run, delta=1e-5, accountant="rdp")
    assert stated.order == 11  # which has no search of its own
    assert stated.epsilon == pytest.approx(each.min(), rel=1e-12)


def test_progress_pays_for_a_lattice_that_is_felt_round_by_round():
    """A run within e^±c of one with Gaussians has their epsilon at e^-c delta, and 2 c more; a part of it its part."""
    noise = DiscreteGaussian(dimension=100, l2_bound=1.0, share_variance=0.8, adjacency="zero-out")
    near = continuous(times(noise, 4))
    [(twin, _)], each = near.mechanism.parts, near.closeness / 4
    assert each > 0.01
    for rounds, found in zip(
        range(1, 5), running.epsilons(noise, delta=1e-5, rounds=4, accountant="pld"), strict=False
    ):
        smooth = float(normal.epsilon(1e-5 * math.exp(-rounds * each), twin.mu * math.sqrt(rounds)))
        assert smooth <= found - 2 * rounds * each <= smooth + 0.5 * each


def test_coins_have_orders_of_their_own():
    coins = BernoulliAggregate(dimension=4, cohort=2, floor=0.25, adjacency="zero-out", l2_clip=0.2)
    sampled = Subsampled(mechanism=coins, sampling=PoissonSampling(probability=0.1))
    assert rdp.orders(times(coins, 3)) is COIN_ORDERS
    assert rdp.orders(times(sampled, 3)) is SAMPLED_COIN_ORDERS
    assert rdp.orders(Composed(parts=((sampled, 1), (coins, 1)))) is COIN_ORDERS
    assert rdp.orders(gaussian(1.0)) is rdp.FAR_ORDERS
    assert rdp.orders(poisson(0.1, 1.0)) is rdp.ORDERS


def test_a_lower_bound_above_epsilon_is_an_error_and_not_cut(monkeypatch):
    """By more than rounding: one of the two is wrong. Planted in the lower bound."""
    mechanism = times(poisson(0.1, 2.0), 20)
    epsilon = accountant.epsilon(mechanism, delta=1e-5)
    monkeypatch.setattr(lower_bound, "epsilon", lambda *_, **__: epsilon * (1 + 2e-6))
    refused(ContradictoryBounds, r"one of the two is wrong, and no epsilon is stated", guarantee, mechanism, delta=1e-5)
    assert guarantee(mechanism, delta=1e-5, with_lower_bound=False).epsilon == epsilon
    plan = Plan(clients=100, cohort=10, delta=1e-5)
    with pytest.raises(ContradictoryBounds):  # where a budget is computed
        budget.solve(plan, noise_multiplier=2.0, rounds=20)
    monkeypatch.setattr(lower_bound, "epsilon", lambda *_, **__: epsilon * (1 + 5e-7))
    assert guarantee(mechanism, delta=1e-5).lower_bound == epsilon


def exact_profile(epsilon, q, z):
    """Hockey-stick divergences of one Poisson-sampled Gaussian, both orders, by their definition, with 250 digits."""
    mp.dps = 250
    gamma, s, q = mp.exp(mp.mpf(epsilon)), 1 / mp.mpf(z), mp.mpf(q)
    cross = (mp.log((gamma - 1 + q) / q) + s * s / 2) / s  # (1-q) n(x) + q n(x-s) = gamma n(x)
    forth = (1 - q - gamma) * mp.ncdf(-cross) + q * mp.ncdf(s - cross)
    inverse = (1 / gamma - 1 + q) / q
    if inverse <= 0:
        return forth, mp.mpf(0)
    cross = (mp.log(inverse) + s * s / 2) / s
    back = (1 - gamma * (1 - q)) * mp.ncdf(cross) - gamma * q * mp.ncdf(cross - s)
    return forth, back


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("delta", [9e-13, 1e-15, 1e-30, 1e-200])
@pytest.mark.parametrize(("q", "z"), [(1e-3, 1.0), (1e-9, 0.7), (0.5, 3.0), (0.999, 0.3)])
def test_one_round_at_a_tiny_delta_is_its_closed_form(q, z, delta):
    release = subsample(gaussian(z), PoissonSampling(probability=q))
    stated = accountant.guarantee(release, delta=delta, with_lower_bound=False)
    assert stated.method == "analytic-gaussian"
    assert max(exact_profile(stated.epsilon, q, z)) <= delta
    assert max(exact_profile(stated.epsilon * (1 - 1e-9) - 1e-11, q, z)) > delta
    assert stated.epsilon <= accountant.epsilon(release, delta=delta, accountant="rdp")


def test_other_accounts_are_as_they_were_beside_the_closed_form_of_one_round():
    release = subsample(gaussian(1.0), PoissonSampling(probability=0.01))
    assert accountant.guarantee(release, delta=1e-12, with_lower_bound=False).method == "pld"
    assert accountant.guarantee(times(release, 2), delta=1e-13, with_lower_bound=False).method == "rdp"


@pytest.mark.parametrize("delta", [Decimal("1e-5"), Fraction(1, 10**5), np.float32(1e-5)])
def test_a_delta_of_any_type_of_number_is_a_float(delta):
    """Differences of delta in single precision would lose parts of it that are charged."""
    stated, release = guarantee(gaussian(2.0), delta=delta), poisson(0.1, 2.0)
    assert type(stated.delta) is float
    assert stated == guarantee(gaussian(2.0), delta=float(delta))
    assert accountant.epsilon(release, delta=delta) == accountant.epsilon(release, delta=float(delta))
    followed = running.Running(delta=delta, typical=release, rounds=2)
    followed.add(release)
    assert followed.epsilon() == next(running.epsilons(release, delta=delta, rounds=2))
