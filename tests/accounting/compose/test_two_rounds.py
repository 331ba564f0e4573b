"""Composition against the exact law of two (and three) rounds, integrated over the outputs."""

import math

import numpy as np
import pytest
from reference.mixtures import hockey_stick
from reference.shorthand import fixed, gaussian, poisson, times
from reference.two_rounds import fixed_size_pair, mixture_pair, panels

from accounting.compose import adaptive, loss_grid, lower_bound, pld
from accounting.gaussian import sampled_profiles
from accounting.mechanisms import Composed


def delta_of(mechanism, epsilon):
    """The upper bound as a delta, on the grid that the package chooses."""
    return pld.distribution(mechanism, loss_grid.interval(mechanism)).delta(epsilon)


def poisson_pairs(adjacency, q, sigma):
    s = 1 / sigma
    present, absent, negated = [(1 - q, 0.0), (q, s)], [(1.0, 0.0)], [(1 - q, 0.0), (q, -s)]
    return [(present, negated)] if adjacency == "replace-one" else [(present, absent), (absent, present)]


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
@pytest.mark.parametrize(
    ("q", "sigma", "epsilon"), [(0.1, 0.7, 1.0), (0.5, 1.0, 2.0), (0.3, 2.0, 0.5), (0.02, 0.5, 3.0)]
)
def test_two_poisson_rounds(adjacency, q, sigma, epsilon):
    exact = max(mixture_pair(p, other, epsilon) for p, other in poisson_pairs(adjacency, q, sigma))
    mechanism = times(poisson(q, sigma, adjacency), 2)
    assert exact * (1 - 1e-5) <= delta_of(mechanism, epsilon) <= exact * 1.0001
    assert lower_bound.epsilon(mechanism, delta=exact) <= epsilon
    assert epsilon <= pld.epsilon(mechanism, delta=exact) * (1 + 1e-6)


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(
    ("cohort", "sigma", "epsilon"), [(10, 1.4, 1.0), (50, 2.0, 1.5), (50, 5.0, 0.2), (2, 1.0, 2.0)]
)
def test_two_fixed_size_rounds(cohort, sigma, epsilon):
    """The dominating pair's own law from above, the attack pair's from below."""
    q = cohort / 100
    mechanism = times(fixed(cohort, 100, sigma), 2)
    dominating = fixed_size_pair(q, sigma, epsilon)
    assert dominating * (1 - 1e-7) <= delta_of(mechanism, epsilon) <= dominating * 1.0001
    attacks = attack_laws(q, sigma)
    shown = max(mixture_pair(p, other, epsilon) for p, other in attacks)
    assert shown < dominating
    attained = lower_bound.epsilon(mechanism, delta=shown)
    assert epsilon * (1 - 2e-3) <= attained  # an adversary who chooses the second round's pair by the first does better
    assert attained <= adaptive.epsilon(mechanism, delta=shown) <= pld.epsilon(mechanism, delta=shown)


def attack_laws(q, sigma):
    base, loud = [(1.0, -1 / sigma)], [(1 - q, -1 / sigma), (q, 1 / sigma)]
    return [(loud, base), (base, loud)]


def test_three_fixed_size_rounds():
    exact = fixed_size_pair(0.3, 2.0, 1.0, rounds=3)
    assert delta_of(times(fixed(3, 10, 2.0), 3), 1.0) == pytest.approx(exact, rel=1e-4)


def test_one_round_of_the_integrated_pair_is_the_closed_form():
    setting = {"sampling_probability": 0.3, "noise_multiplier": 2.0}
    for epsilon in (-1.0, 0.0, 0.7):
        expected = float(sampled_profiles.fixed_size_replacement_profile(epsilon, **setting))
        assert fixed_size_pair(0.3, 2.0, epsilon, rounds=1) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("q", "sigma", "epsilon"), [(0.1, 1.4, 1.0), (0.5, 2.0, 1.5)])
def test_these_tests_notice_a_sensitivity_of_c(q, sigma, epsilon):
    """A planted fault: accounted with C where neighbours are 2C apart, the bound is below what two rounds show."""
    wrong = delta_of(times(fixed(round(100 * q), 100, 2 * sigma), 2), epsilon)
    assert wrong < 0.9 * max(mixture_pair(p, other, epsilon) for p, other in attack_laws(q, sigma))


@pytest.mark.parametrize(("order", "epsilon"), [("zeroing", 1.0), ("restoring", 1.0)])
def test_two_zero_out_rounds_exceed_what_neighbours_show(order, epsilon):
    """Each order of the worlds is bounded on its own; here against the named neighbours and mixtures of the two."""
    q, sigma = 0.3, 1.5
    s = 1 / sigma
    quiet = (1 - q, -s)
    laws = {
        "zeroing": [([quiet, (q, s)], [quiet, (q, 0.0)]), ([(1.0, -s)], [quiet, (q, 0.0)])],
        "restoring": [([quiet, (q, 0.0)], [(1.0, -s)]), ([quiet, (q, 0.0)], [quiet, (q, s)])],
    }[order]
    bound = delta_of(times(fixed(3, 10, sigma, "zero-out"), 2), epsilon)
    for p, other in laws:
        assert mixture_pair(p, other, epsilon) <= bound


def test_a_gaussian_after_a_sampled_round_is_one_more_shift():
    """Mixed composition: delta(epsilon) = E over the Gaussian's loss of the sampled round's profile."""
    q, sigma, z, epsilon = 0.2, 1.0, 2.0, 0.8
    mechanism = Composed(parts=((poisson(q, sigma), 1), (gaussian(z), 1)))
    x, weight = panels(np.linspace(-12, 12, 81))
    loss = (x + 1 / z) / z - 0.5 / z**2
    exact = 0.0
    for p, other in poisson_pairs("add-remove", q, sigma):
        inner = np.array([hockey_stick(p, other, math.exp(epsilon - at), points=801) for at in loss])
        exact = max(exact, float(weight @ (np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * inner)))
    assert exact * (1 - 1e-5) <= delta_of(mechanism, epsilon) <= exact * 1.0001
