"""Central moments of rounds in which hardly any client takes part: exact moments, and no epsilon that is too small."""

import decimal
import math

import mpmath
import numpy as np
import pytest
from reference.shorthand import gaussian, times
from refusals import refused

from accounting import PoissonSampling, budget, guarantee, subsample
from accounting.budget import Plan
from accounting.compose import central_moments, lower_bound, pld
from accounting.errors import UnsupportedMechanism
from accounting.gaussian import sampled_profiles


def rounds_of(q, z, count, adjacency="add-remove"):
    noise = gaussian(z, adjacency)
    return times(subsample(noise, PoissonSampling(probability=q)), count)


def central(rounds, order):
    with decimal.localcontext(prec=400, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        return float(central_moments._central_moment(central_moments._raw_moments(rounds), order))


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("order", [2, 4, 8])
@pytest.mark.parametrize(("q", "z"), [(1e-6, 1.0), (0.01, 0.7), (1e-9, 3.0)])
def test_moments_of_one_round_are_integrals(order, q, z):
    with mpmath.workdps(30):
        s = 1 / mpmath.mpf(z)

        def value(x):
            return (q * mpmath.expm1(s * x - s * s / 2)) ** order * mpmath.npdf(x)

        found = mpmath.quad(value, [-12, -4, 0, 4, 8, 14, 20, 30, 40])
    assert central([(q, z, 1)], order) == pytest.approx(float(found), rel=1e-9)


@pytest.mark.parametrize("order", [2, 4, 6])
def test_moments_of_two_rounds_of_two_kinds_are_sums_over_both(order):
    points, weights = np.polynomial.hermite_e.hermegauss(90)
    weights = weights / weights.sum()
    one, two = (q * np.expm1(points / z - z**-2 / 2) for q, z in ((1e-4, 1.0), (3e-5, 2.0)))
    ratio = one[:, None] + two + one[:, None] * two
    found = float(weights @ ratio**order @ weights)
    assert central([(1e-4, 1.0, 1), (3e-5, 2.0, 1)], order) == pytest.approx(found, rel=1e-9)


def test_one_round_is_never_below_its_exact_profiles():
    generator = np.random.default_rng(1)
    near = []
    for _ in range(30):
        q, z = 10 ** generator.uniform(-9, -2.2), 10 ** generator.uniform(-0.2, 1)
        delta = 10 ** generator.uniform(-14, math.log10(q / 4))
        try:
            found = central_moments.epsilon(rounds_of(q, z, 1), delta=delta)
        except UnsupportedMechanism:
            continue
        round_ = {"sampling_probability": q, "noise_multiplier": z}
        for profile in (sampled_profiles.removal_profile, sampled_profiles.addition_profile):
            assert float(profile(found, **round_)) <= delta * (1 + 1e-9)
            near.append(float(profile(found / 20, **round_)) > delta)
    assert len(near) > 30
    assert np.mean(near) > 0.5  # and no bound that says nothing


@pytest.mark.parametrize(
    ("q", "z", "count", "delta"),
    [
        pytest.param(1e-9, 1.0, 1000, 1e-9, marks=pytest.mark.slow),
        pytest.param(1e-7, 1.0, 10_000, 1e-9, marks=pytest.mark.slow),
        pytest.param(1e-6, 1.0, 10_000, 1e-8, marks=pytest.mark.slow),
        (1e-6, 5.0, 1000, 1e-8),
    ],
)
def test_many_rounds_are_between_the_lower_bound_and_twice_the_loss_distributions(q, z, count, delta):
    mechanism = rounds_of(q, z, count)
    found = central_moments.epsilon(mechanism, delta=delta)
    assert lower_bound.epsilon(mechanism, delta=delta) < found < 2 * pld.epsilon(mechanism, delta=delta)


@pytest.mark.slow
def test_a_library_of_others_has_no_larger_epsilon():
    """dp-accounting, where its grid is fine enough."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=1e-6)
    event = dp_event.PoissonSampledDpEvent(1e-4, dp_event.GaussianDpEvent(1.0))
    accountant.compose(event, 1000)
    theirs = accountant.get_epsilon(1e-6)
    assert theirs <= central_moments.epsilon(rounds_of(1e-4, 1.0, 1000), delta=1e-6) <= 2 * theirs


def test_a_million_rounds_with_a_chance_of_a_billionth():
    """Renyi orders give 0.4523: no loss distribution of so many rounds is precise enough at this delta."""
    plan = Plan(clients=10**9, cohort=1, delta=1.26e-10)
    found = budget.solve(plan, noise_multiplier=1.0, rounds=10**6, with_lower_bound=False)
    assert found.epsilon < 6e-6
    assert found.accountant == "central-moments"
    assert budget.epsilon(plan, noise_multiplier=1.0, rounds=10**6, accountant="rdp") > 0.45
    zeroed = central_moments.epsilon(rounds_of(1e-9, 1.0, 10**6, "zero-out"), delta=1.26e-10)
    assert zeroed == pytest.approx(found.epsilon, rel=1e-6)


@pytest.mark.parametrize(
    "mechanism", [rounds_of(0.01, 1.0, 1000), rounds_of(1e-9, 1.0, 10, "replace-one"), rounds_of(0.0, 1.0, 10)]
)
def test_other_mechanisms_are_refused(mechanism):
    refused(UnsupportedMechanism, "", central_moments.epsilon, mechanism, delta=1e-9)


@pytest.mark.slow_but_one_in(60)
@pytest.mark.parametrize("seed", range(60))
def test_the_best_account_is_never_looser_than_the_others_and_never_below_the_lower_bound(seed):
    """60 settings: a fault in 5% of them would be found with probability 0.95."""
    generator = np.random.default_rng(seed)
    q, z = 10 ** generator.uniform(-9, -1), 10 ** generator.uniform(-0.3, 0.7)
    count, delta = round(10 ** generator.uniform(0, 3)), 10 ** generator.uniform(-10, -5)
    mechanism = rounds_of(q, z, count)
    others = [guarantee(mechanism, delta=delta, accountant=name, with_lower_bound=False) for name in ("pld", "rdp")]
    best = guarantee(mechanism, delta=delta)
    assert best.epsilon <= min(one.epsilon for one in others)
    assert best.lower_bound <= best.epsilon
