"""Privacy profiles: the whole claim of an account, against its epsilons and against exact laws."""

import math
from dataclasses import replace

import numpy as np
import pytest
from reference import integer_distributions, normal
from reference.shorthand import fixed, gaussian, poisson, times
from refusals import refused

from accounting import (
    Adjacency,
    BernoulliAggregate,
    BernoulliChannel,
    DiscreteGaussian,
    PoissonSampling,
    Skellam,
    Subsampled,
    guarantee,
)
from accounting.bernoulli.exact import channel_profile
from accounting.compose import profiles, rdp
from accounting.compose.profiles import delta_from_curve, profile
from accounting.compose.twins import continuous
from accounting.errors import AccountingError, InvalidParameter, UnsupportedMechanism
from accounting.gaussian import sampled_profiles

pytestmark = pytest.mark.slow_but_one_in(3)

PLAIN = gaussian(1.4)
POISSON = Subsampled(mechanism=PLAIN, sampling=PoissonSampling(probability=1 / 60))
FIXED = fixed(100, 6000, 1.4)
ZEROED = fixed(3, 10, 0.9, "zero-out")
COINS = BernoulliChannel(dimension=6, floor=0.2, adjacency=Adjacency.REPLACE_ONE, linf_clip=0.05)


@pytest.mark.parametrize("epsilon", [-3.0, -0.1, 0.0, 0.5, 4.0])
def test_plain_gaussians_are_one_gaussian_exactly(epsilon):
    value = float(profile(times(PLAIN, 9))(epsilon))
    assert value == pytest.approx(float(normal.profile(epsilon, 3 / 1.4)), rel=1e-12)


@pytest.mark.slow_but_one_in(15)
@pytest.mark.parametrize("part", [POISSON, FIXED, ZEROED, COINS])
@pytest.mark.parametrize("rounds", [1, 40])
@pytest.mark.parametrize("accountant", ["best", "pld", "rdp"])
def test_the_profile_runs_through_the_accountants_epsilons(part, rounds, accountant):
    """From above, and within the grid's tolerance; `best` at least as low as each."""
    run = times(part, rounds)
    if part is COINS and accountant != "rdp":
        accountant = "rdp"
    claim = profile(run, accountant=accountant)
    for delta in (1e-7, 1e-5, 1e-2):
        epsilon = guarantee(run, delta=delta, accountant=accountant, with_lower_bound=False).epsilon
        if epsilon > 0:
            # The adaptive account's grid and cover are laid out for one delta, the profile's for 1e-6.
            assert float(claim(epsilon)) == pytest.approx(delta, rel=5e-3 if accountant != "best" else 2e-2)


@pytest.mark.parametrize("part", [POISSON, ZEROED])
def test_best_is_the_smaller_of_both(part):
    run = times(part, 20)
    eps = np.linspace(-2, 6, 81)
    both = np.minimum(profile(run, accountant="pld")(eps), profile(run, accountant="rdp")(eps))
    best = profile(run)
    assert np.all(best(eps) <= both)
    if part is POISSON:  # under fixed-size sampling the adaptive account is smaller still
        assert best(eps) == pytest.approx(both, abs=0)
    assert {"pld", "rdp"} <= set(best.method.split("+"))


@pytest.mark.parametrize("q", [0.01, 0.3])
@pytest.mark.parametrize("z", [0.7, 2.0])
def test_one_sampled_round_is_just_above_its_exact_profiles(q, z):
    eps = np.linspace(-3, 3, 61)
    options = {"sampling_probability": q, "noise_multiplier": z}
    mechanism = poisson(q, z)
    exact = np.maximum(
        sampled_profiles.removal_profile(eps, **options), sampled_profiles.addition_profile(eps, **options)
    )
    value = profile(mechanism)(eps)
    assert np.all(value >= exact * (1 - 1e-9))
    seen = exact > 1e-6
    assert value[seen] == pytest.approx(exact[seen], rel=2e-3)


def test_one_fixed_size_round_is_just_above_its_exact_profile():
    eps = np.linspace(-2, 2, 41)
    exact = sampled_profiles.fixed_size_replacement_profile(eps, sampling_probability=1 / 60, noise_multiplier=1.4)
    value = profile(FIXED)(eps)
    assert np.all(value >= exact * (1 - 1e-9))
    assert value == pytest.approx(exact, rel=2e-3, abs=1e-9)


@pytest.mark.parametrize("up", [0, 3, 6])
def test_coins_are_above_the_exact_law_of_what_a_client_may_do(up):
    """Replace-one moves each probability by at most 0.1; here `up` of six rise from 0.2 and the others fall to it."""
    p, q = np.where(np.arange(6) < up, 0.3, 0.2), np.where(np.arange(6) < up, 0.2, 0.3)
    eps = np.linspace(-3, 3, 61)
    assert np.all(profile(COINS)(eps) >= channel_profile(eps, p=p, q=q) * (1 - 1e-12))


@pytest.mark.parametrize("part", [PLAIN, POISSON, FIXED, ZEROED, COINS])
def test_every_profile_is_one_of_an_unordered_pair(part):
    """Between max(0, 1 - e^epsilon) and 1, its own reverse, 0 (or its tail) at infinity, and falling where it is nearly
    that of a pair (a Renyi bound need not be)."""
    claim = profile(times(part, 3))
    eps = np.linspace(-9, 9, 361)
    value = claim(eps)
    assert part is COINS or np.all(np.diff(value) <= 1e-12)
    assert np.all((value >= np.maximum(0, -np.expm1(eps)) - 1e-12) & (value <= 1))
    assert value[:180] == pytest.approx(-np.expm1(eps[:180]) + np.exp(eps[:180]) * value[:180:-1], abs=1e-12)
    assert claim([-math.inf, math.inf]) == pytest.approx([1.0, 0.0], abs=1e-11)
    assert claim(np.zeros((2, 3))).shape == (2, 3)


def test_an_overflowing_cohort_keeps_its_delta():
    coins = BernoulliAggregate(
        dimension=50, floor=0.1, adjacency=Adjacency.ZERO_OUT, linf_clip=0.01, cohort=20, overflow=1e-4
    )
    run = times(Subsampled(mechanism=coins, sampling=PoissonSampling(probability=0.1)), 10)
    assert float(profile(run)(math.inf)) == pytest.approx(1e-3)
    epsilon = guarantee(run, delta=2e-3, accountant="rdp").epsilon
    assert float(profile(run)(epsilon)) == pytest.approx(2e-3, rel=1e-9)


def integer_noise(kind, variance=400.0, **options):
    return kind(dimension=100, l2_bound=30.0, share_variance=variance, adjacency=Adjacency.ZERO_OUT, **options)


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("overflow", [0.0, 1e-6])
def test_integer_noise_runs_through_its_epsilons(kind, sampled, overflow):
    noise = integer_noise(kind, overflow=overflow)
    part = Subsampled(mechanism=noise, sampling=PoissonSampling(probability=0.05)) if sampled else noise
    run = times(part, 10)
    claim = profile(run)
    for delta in (1e-4, 1e-2):
        epsilon = guarantee(run, delta=delta, with_lower_bound=False).epsilon
        assert float(claim(epsilon)) == pytest.approx(delta, rel=5e-3)
    assert float(claim(math.inf)) == pytest.approx(10 * overflow, abs=1e-11)


@pytest.mark.parametrize("delta", [1e-6, 1e-2])
def test_a_lattice_that_is_felt_costs_its_closeness(delta):
    """The law is within e^±c of a Gaussian's: e^c delta(epsilon - 2c), the same reading as the accountant's epsilon."""
    noise = DiscreteGaussian(dimension=100, l2_bound=1.0, share_variance=0.8, adjacency=Adjacency.ZERO_OUT)
    near = continuous(times(noise, 2))
    assert near.closeness > 1e-3
    epsilon = guarantee(times(noise, 2), delta=delta, accountant="pld", with_lower_bound=False).epsilon
    claim = profile(times(noise, 2), accountant="pld")
    assert float(claim(epsilon)) == pytest.approx(delta, rel=1e-3)
    assert float(claim(epsilon)) > 1.001 * float(profile(near.mechanism, accountant="pld")(epsilon))


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("variance", [0.3, 0.6, 2.0, 9.0])
@pytest.mark.parametrize("shares", [1, 2])
def test_discrete_gaussians_are_above_their_own_exact_law(variance, shares):
    """One coordinate, neighbours three steps apart, summed over the integers; also where the lattice is felt."""
    noise = DiscreteGaussian(
        dimension=1, l2_bound=3.0, share_variance=variance, shares=shares, adjacency=Adjacency.ZERO_OUT
    )
    law = integer_distributions.discrete_gaussian(variance, 80)
    p, q = integer_distributions.shifted(integer_distributions.summed(law, shares), (3,))
    eps = np.linspace(-2, 6, 33)
    exact = np.maximum(p - np.exp(eps)[:, None] * q, 0).sum(axis=1)
    for accountant in ("best", "pld", "rdp"):
        try:
            assert np.all(profile(noise, accountant=accountant)(eps) >= exact * (1 - 1e-9))
        except UnsupportedMechanism:
            assert accountant == "pld"
            assert variance * shares < 1


FELT = [(1, 0.3), (40, 0.3), (400, 0.5), (3000, 0.6)]  # coordinates, variance in squared steps


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize(("dimension", "variance"), FELT)
@pytest.mark.parametrize("account", [profiles._analytic_curve, profiles._pld_curve], ids=["analytic", "pld"])
def test_below_twice_the_closeness_the_claim_is_that_of_negative_epsilons(dimension, variance, account):
    """e^c delta(epsilon - 2c) with epsilon - 2c < 0, against 40 digits, and above the exact law of the integers."""
    noise = DiscreteGaussian(
        dimension=dimension, l2_bound=1.0, share_variance=variance, shares=1, adjacency=Adjacency.ZERO_OUT
    )
    near = continuous(times(noise, 3))
    mu, c = math.sqrt(3) * near.mechanism.parts[0][0].mu, near.closeness
    eps = np.linspace(0, 2 * c, 41)[:-1]
    claim = np.minimum(account(times(noise, 3))(eps), 1.0)
    proved = np.array([min(1.0, math.exp(c) * normal.profile(one - 2 * c, mu)) for one in eps])
    assert np.all(claim >= proved * (1 - 1e-9))
    assert np.all(claim <= proved * (1 + 1e-3) + 1e-9)
    moved = integer_distributions.shifted(integer_distributions.discrete_gaussian(variance, 40), (1, 1, 1))
    exact = np.array([integer_distributions.hockey_stick(moved, one) for one in eps]) * (1 - 1e-9)
    assert np.all(claim >= exact)
    assert np.all(profile(times(noise, 3))(eps) >= exact)


@pytest.mark.slow
def test_a_chord_beyond_its_knots_would_be_below_the_curve():
    """The planted fault, and that it cannot come back: the first chord goes on to the left, below the convex curve."""
    mu, knots = 0.8, np.linspace(0.0, 5.0, 4001)
    values = np.array([normal.profile(one, mu) for one in knots])
    for epsilon in (-0.01, -0.3, -2.0):
        slope = (values[1] - values[0]) / math.expm1(knots[1])
        assert values[0] + slope * math.expm1(epsilon) < normal.profile(epsilon, mu) * (1 - 1e-6)
        refused(AssertionError, "", profiles._interpolated_by_chords, np.array([epsilon]), knots, values)
    whole = profiles.Profile(above_zero=lambda eps: profiles._interpolated_by_chords(eps, knots, values), method="test")
    assert np.all(whole(-knots) >= [normal.profile(-one, mu) * (1 - 1e-12) for one in knots])


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_delta_from_a_curve_inverts_epsilon_from_it(delta):
    orders = np.arange(2.0, 65)
    curve = 0.1 * orders
    epsilon = rdp.epsilon_from_curve(orders, curve, delta=delta).epsilon
    assert float(delta_from_curve(epsilon, orders, curve)) == pytest.approx(delta, rel=1e-9, abs=0)


def test_delta_from_a_curve_is_above_the_gaussian_it_is_the_curve_of():
    eps, mu = np.linspace(-2, 8, 101), 0.8
    orders = np.linspace(1.01, 80, 400)
    value = delta_from_curve(eps, orders, orders * mu * mu / 2)
    assert np.all(value >= profile(gaussian(1 / mu))(eps))


@pytest.mark.parametrize(
    ("orders", "rho"),
    [
        *(([1.0], [0.1]), ([2.0, 3.0], [0.1]), ([2.0], [-0.1]), ([], [])),
        *(([2.0, 1.0], [0.1, 0.1]), ([0.5, 3.0], [0.1, 0.1]), ([2, 3], [0.1, -0.1])),
    ],
)
def test_what_is_no_curve_is_refused(orders, rho):
    refused(InvalidParameter, "orders of shape", delta_from_curve, 1.0, orders, rho)


def test_wrong_input_is_refused():
    refused(InvalidParameter, "epsilon=nan", lambda: profile(PLAIN)([0.0, math.nan]))
    refused(InvalidParameter, "accountant='exact'", profile, PLAIN, accountant="exact")
    refused(UnsupportedMechanism, "no privacy loss distribution", profile, replace(COINS, floor=1e-6), accountant="pld")
    with pytest.raises(AccountingError):
        profile(poisson(0.1, 1.0, "replace-one"), accountant="rdp")
