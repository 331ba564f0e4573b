"""The ends of the domains of functions that others rest on: zero, one, nothing, too much."""

import math
from dataclasses import replace
from functools import partial

import pytest
from reference.shorthand import gaussian, poisson, times
from refusals import refused

from accounting import (
    BernoulliChannel,
    DiscreteGaussian,
    FixedSizeSampling,
    Plan,
    PoissonSampling,
    Subsampled,
    budget,
    guarantee,
)
from accounting.bernoulli import exact as bernoulli_exact
from accounting.bernoulli.exact import walk_epsilon
from accounting.budget import calibrate
from accounting.compose import accountant, loss_grid, lower_bound, pld, profiles, running
from accounting.compose.second_opinion import second_opinion
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian import noise_std, smallest_epsilon
from accounting.gaussian.attacks import attack_pairs
from accounting.integers import fixed_point
from accounting.integers.discrete_gaussian import shares_distortion
from accounting.mechanisms import BernoulliAggregate, repeated

FIXED = FixedSizeSampling(cohort=10, clients=100)
COINS = BernoulliChannel(dimension=50, floor=0.2, adjacency="zero-out", l2_clip=0.1)
COARSE = DiscreteGaussian(
    dimension=10**6, l2_bound=1.0, share_variance=0.3, shares=2, adjacency="zero-out", overflow=0.0
)


COIN_PLAN = Plan(
    mechanism="bernoulli-aggregate", clients=100, cohort=10, dimension=50, edge=0.2, sampling="fixed", clip_norm=0.1,
    delta=1e-5,
)  # fmt: skip


def summed_coins(adjacency="replace-one"):
    return COIN_PLAN.changed(adjacency=adjacency).round()


def steep_coins():
    """Likelihood ratios that no certificate holds for."""
    return BernoulliAggregate(dimension=50, floor=1e-6, adjacency="zero-out", l2_clip=0.9, cohort=10)


PLAIN = gaussian(1.0)
OF_DELTA = [
    *(partial(of, PLAIN) for of in (guarantee, accountant.epsilon, pld.epsilon, lower_bound.epsilon, second_opinion)),
    partial(smallest_epsilon, mu=1.0),
    lambda delta: noise_std(1.0, delta, l2_sensitivity=1.0),
]


@pytest.mark.parametrize("bad", [0, 1e-301, 5e-324, 1, 1.5, -0.1, math.nan, math.inf, True, "0.1", None])
def test_delta_must_be_inside_0_and_1(bad):
    for epsilon_of in OF_DELTA:
        refused(InvalidParameter, r"delta=.*must be a number strictly between 0 and 1", epsilon_of, delta=bad)


@pytest.mark.parametrize("reading", ["fed-smp-theorem", "fed-smp-lemma"])
def test_the_papers_readings_are_for_gaussian_noise(reading):
    with pytest.raises(UnsupportedMechanism, match="Gaussian noise"):
        accountant.guarantee(summed_coins(), delta=1e-5, accountant=reading)


@pytest.mark.parametrize("chosen", ["pld", "fed-smp-theorem"])
def test_a_stream_without_a_bound_is_refused(chosen):
    asked = {"delta": 1e-5, "rounds": 3, "accountant": chosen}
    refused(UnsupportedMechanism, "", lambda: next(running.epsilons(steep_coins(), **asked)))


def test_noise_too_coarse_for_a_gaussian_is_refused():
    run = times(COARSE, 100)
    refused(UnsupportedMechanism, "too far for any delta", accountant.epsilon, run, delta=1e-5, accountant="pld")
    one = replace(COARSE, dimension=1, share_variance=0.01, shares=1)
    refused(UnsupportedMechanism, r"far below.*Raise the scale", accountant.epsilon, one, delta=1e-5, accountant="pld")


@pytest.mark.parametrize(("variance", "shares"), [(0.01, 2), (0.001, 600), (0.03, 5), (0.05, 100), (0.001, 20_000)])
@pytest.mark.parametrize("chosen", ["best", "rdp", "pld"])
def test_noise_far_below_one_step_is_refused(chosen, variance, shares):
    noise = replace(COARSE, dimension=1000, share_variance=variance, shares=shares)
    assert shares_distortion(variance, shares) == math.inf
    with pytest.raises(UnsupportedMechanism, match=r"far below one integer step.*Raise the scale"):
        accountant.epsilon(repeated(noise, 100), delta=1e-5, accountant=chosen)


def test_profiles_that_there_are_none_of():
    plain = gaussian(5.0, "replace-one")
    refused(UnsupportedMechanism, "", lambda: profiles.profile(steep_coins(), accountant="pld"))
    sampled = Subsampled(mechanism=plain, sampling=PoissonSampling(probability=0.2))
    refused(InvalidParameter, "rounds=", lambda: profiles.profile(repeated(sampled, 10**9), accountant="pld"))


def test_attacks_and_distributions_are_of_gaussian_noise():
    refused(UnsupportedMechanism, "no attack pair", lambda: attack_pairs(summed_coins()))
    refused(UnsupportedMechanism, "no privacy loss distribution", pld.distribution, COINS, 1e-3)


def test_exact_deltas_want_numbers():
    refused(InvalidParameter, "epsilon=nan", bernoulli_exact.channel_profile, [0.5, float("nan")], p=[0.2], q=[0.3])


def test_a_walk_that_tells_nothing_costs_nothing():
    assert walk_epsilon(5, 0.2, 0.2, 1e-5) == 0.0
    assert walk_epsilon(1, 0.3, 0.2, 0.2) == walk_epsilon(3, 0.51, 0.49, 0.1) == 0.0  # total variations 0.1, 0.03
    assert walk_epsilon(3, 0.3, 0.1, 1e-300) == pytest.approx(3 * math.log(3))  # pure
    assert walk_epsilon(1, 0.3, 0.1, 0.05) == pytest.approx(math.log((0.3 - 0.05) / 0.1), rel=1e-9)


def test_a_shift_that_never_happens_has_no_loss():
    assert loss_grid.largest_shift_loss(0.0, 3.0) == 0.0
    nobody = poisson(0.0, 1.0)
    assert pld.epsilon(repeated(nobody, 5), delta=1e-5) == 0.0


@pytest.mark.parametrize("law", ["discrete-gaussian", "skellam"])
def test_a_sum_without_noise_wraps_only_where_it_can(law):
    assert fixed_point._log_tail(law, 0.0, 1.0, 1.0) == 0.0
    assert fixed_point._log_tail(law, 1.0, 0.0, 0.0) == -math.inf
    assert fixed_point._log_tail(law, 3.0, 2.0, 0.0) == -9 / 4


def test_a_root_that_rounding_puts_above_the_target_is_moved_below():
    def stairs(x):
        return math.ceil(1e7 / x) / 1e7

    x = calibrate.smallest(stairs, 0.5, name="x")
    assert stairs(x) <= 0.5
    assert x == pytest.approx(2.0, rel=1e-5)


def test_a_budget_of_coins_says_what_its_plan_is():
    record = budget.solve(COIN_PLAN, rounds=2).to_dict()
    assert record["mechanism"] == "bernoulli-aggregate"
    assert (record["dimension"], record["edge"], record["clip_norm"], record["noise_std"]) == (50, 0.2, 0.1, 0.0)
    assert budget.SAMPLINGS == ("poisson", "fixed", "all")


@pytest.mark.parametrize("sigma", [70.0, 1e3, 1e5])
@pytest.mark.parametrize("rounds", [1, 100])
def test_the_grid_of_a_plain_gaussian_is_a_sixtieth_of_its_spread(sigma, rounds):
    """Rounds of it are one release with mu sqrt(T), the standard deviation of its loss; at most 1e-3."""
    spread = math.sqrt(rounds) / sigma
    assert loss_grid.interval(_plain(sigma, rounds)) == pytest.approx(min(spread / 60, 1e-3), rel=1e-9)


def _plain(sigma, rounds):
    return times(gaussian(sigma), rounds)
