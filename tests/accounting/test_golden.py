"""Numbers that were measured elsewhere, at the Fed-SMP paper's setting and a few others: n=6000, r=100, T=180."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from reference.library import in_library
from scipy.stats import binom

from accounting import budget
from accounting.budget import Plan
from accounting.compose import loss_grid, lower_bound
from accounting.compose.fed_smp import lemma_3, theorem_1
from accounting.gaussian import sampled_profiles
from accounting.mechanisms import FixedSizeSampling

CLIENTS, COHORT, ROUNDS, SIGMA = 6000, 100, 180, 1.4
DELTA = 6000**-1.1
PAPER = FixedSizeSampling(cohort=COHORT, clients=CLIENTS)


def epsilon(sampling, adjacency, accountant="best", conversion="improved", sigma=SIGMA):
    plan = Plan(clients=CLIENTS, cohort=COHORT, sampling=sampling, adjacency=adjacency)
    return budget.solve(
        plan,
        noise_multiplier=sigma,
        rounds=ROUNDS,
        accountant=accountant,
        conversion=conversion,
        with_lower_bound=False,
    )


def lower(sampling, adjacency):
    plan = Plan(clients=CLIENTS, cohort=COHORT, sampling=sampling, adjacency=adjacency)
    return lower_bound.epsilon(plan.run(SIGMA, ROUNDS), delta=DELTA)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [*((few, 1e-4) for few in (1, 12, 40, 650, 4000, 4328)), (4329, 9.99939e-5), (6000, 6.98286e-5)],
)
def test_default_delta_is_clients_to_the_minus_1_1_and_at_most_a_ten_thousandth(clients, expected):
    assert Plan(clients=clients, cohort=1).delta == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("conversion", "expected", "order"), [("classical", 1.0077, 15), ("improved", 0.7442, 14)])
def test_poisson_renyi(conversion, expected, order):
    answer = epsilon("poisson", "add-remove", "rdp", conversion)
    assert round(answer.epsilon, 4) == expected
    assert answer.order == order


@pytest.mark.parametrize(
    ("sampling", "adjacency", "expected"),
    [
        ("poisson", "add-remove", 0.6303),
        ("poisson", "zero-out", 0.6303),
        ("poisson", "replace-one", 1.0811),
        ("fixed", "replace-one", 3.4887),
        ("fixed", "zero-out", 2.4857),  # measured here; the two orders of the worlds composed apart
    ],
)
def test_tight_upper_bounds(sampling, adjacency, expected):
    assert round(epsilon(sampling, adjacency, "pld").epsilon, 4) == expected
    if sampling == "poisson":
        assert round(epsilon(sampling, adjacency, "best").epsilon, 4) == expected


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(("adjacency", "expected"), [("replace-one", 3.2426), ("zero-out", 2.4490)])
def test_adaptive_account_of_fixed_size(adjacency, expected):
    answer = epsilon("fixed", adjacency)
    assert answer.accountant == "adaptive"
    assert round(answer.epsilon, 4) == expected


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(("adjacency", "expected"), [("replace-one", 3.2400), ("zero-out", 2.4472)])
def test_fixed_size_lower_bounds(adjacency, expected):
    assert lower("fixed", adjacency) == pytest.approx(expected, abs=2e-4)
    assert lower("fixed", adjacency) < epsilon("fixed", adjacency).epsilon


@pytest.mark.parametrize(("adjacency", "expected"), [("add-remove", 0.6303), ("replace-one", 1.0811)])
def test_poisson_lower_bound_meets_the_upper_bound(adjacency, expected):
    assert lower("poisson", adjacency) == pytest.approx(expected, abs=1e-4)


def test_fixed_size_renyi_needs_twice_the_clip():
    answer = epsilon("fixed", "replace-one", "rdp")
    assert round(answer.epsilon, 4) == 5.3515
    assert answer.order == 3


@pytest.mark.parametrize(
    ("sensitivity", "conversion", "expected"),
    [(1.0, "classical", 1.8193), (1.0, "improved", 1.4718), (2.0, "classical", 6.3063), (2.0, "improved", 5.3515)],
)
def test_lemma_3(sensitivity, conversion, expected):
    reading = lemma_3(SIGMA, ROUNDS, PAPER, delta=DELTA, sensitivity_in_clips=sensitivity, conversion=conversion)
    assert round(reading.epsilon, 4) == expected


def test_theorem_1_states_an_epsilon_whose_condition_fails():
    reading = theorem_1(SIGMA, ROUNDS, PAPER, delta=DELTA, sensitivity_in_clips=1.0)
    assert round(reading.epsilon, 4) == 1.9401
    assert reading.violated == ("alpha = 10.86, allowed at most 1.81",)


def test_theorem_1_solves_its_own_equation():
    reading = theorem_1(5.0, 10, FixedSizeSampling(cohort=10, clients=10**6), delta=1e-5, sensitivity_in_clips=1.0)
    log_term = math.log(1e5)
    assert 7 * 1e-10 * 10 * (reading.epsilon + 2 * log_term) / reading.epsilon**2 == pytest.approx(25, rel=1e-9)


@pytest.mark.parametrize(("sigma", "stated"), [(1.0, 2.02), (1.4, 1.01), (2.0, 0.58), (2.5, 0.44)])
def test_the_papers_four_budgets_are_poisson_and_classical(sigma, stated):
    assert epsilon("poisson", "add-remove", "rdp", "classical", sigma).epsilon == pytest.approx(stated, abs=0.007)


@pytest.mark.parametrize(("sigma", "expected"), [(0.8, 11.5117), (1.0, 6.9862), (1.2, 4.7029), (1.4, 3.3862)])
def test_the_papers_shakespeare_row(sigma, expected):
    stated = budget.epsilon(
        Plan(clients=10**9, cohort=10),
        noise_multiplier=sigma / 10**0.5,
        rounds=1000,
        accountant="rdp",
        conversion="classical",
    )
    assert round(stated, 4) == expected


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize(
    ("clients", "cohort", "sigma", "rounds", "expected"),
    [
        (6000, 100, 1.0, 180, 9.2759),
        (6000, 100, 2.0, 180, 1.3726),
        (6000, 100, 2.5, 180, 0.8801),
        (6000, 100, 1.4, 1, 0.7539),
        (1000, 50, 2.0, 100, 2.7353),
        (100_000, 100, 1.0, 1000, 3.7927),
        (300, 30, 4.0, 60, 1.1703),
    ],
)
def test_tight_fixed_size_account(clients, cohort, sigma, rounds, expected):
    plan = Plan(clients=clients, cohort=cohort, sampling="fixed", delta=clients**-1.1)
    one_pair = budget.epsilon(plan, noise_multiplier=sigma, rounds=rounds, accountant="pld")
    assert round(one_pair, 4) == expected
    assert budget.epsilon(plan, noise_multiplier=sigma, rounds=rounds) <= one_pair


@pytest.mark.parametrize(("adjacency", "expected"), [("replace-one", 3.5105), ("zero-out", 2.4974)])
@pytest.mark.slow
def test_publishing_the_size_of_a_poisson_cohort(adjacency, expected):
    """docs/theory.md, section 6: given its size the sampler is a fixed-size one; average the profiles."""
    sizes = np.arange(40, 170)
    weights = binom.pmf(sizes, CLIENTS, COHORT / CLIENTS)
    spacing = 2e-4
    losses = np.arange(110_000) * spacing
    mean = np.full((2, losses.size), 1 - weights.sum())  # the other sizes as if they told everything
    for size, weight in zip(sizes, weights, strict=True):
        setting = {"sampling_probability": size / CLIENTS, "noise_multiplier": SIGMA}
        if adjacency == "replace-one":
            mean += weight * sampled_profiles.fixed_size_replacement_profile(losses, **setting)
        else:
            mean[0] += weight * sampled_profiles.zeroing_profile(losses, **setting)
            mean[1] += weight * sampled_profiles.restoring_profile(losses, **setting)
    orders = [in_library(loss_grid.connect_dots(spacing, *pair)) for pair in (mean, mean[::-1])]
    composed = library.PrivacyLossDistribution(*orders).self_compose(ROUNDS)
    assert round(composed.get_epsilon_for_delta(DELTA), 3) == round(expected, 3)
    assert composed.get_epsilon_for_delta(DELTA) > epsilon("fixed", adjacency).epsilon
