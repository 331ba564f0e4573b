"""The privacy-loss account against dp-accounting's own discretisation, closed forms and one-round profiles."""

import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.pld.privacy_loss_distribution import NeighborRel
from reference import normal
from reference.library import in_library
from reference.mixtures import hockey_stick, hockey_stick_in_many_digits
from reference.shorthand import fixed, gaussian, poisson, times
from refusals import refused

from accounting.compose import loss_grid, pld
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian import sampled_profiles
from accounting.mechanisms import Composed, PoissonSampling

pytestmark = pytest.mark.slow_but_one_in(3)

RELATIONS = {
    "add-remove": NeighborRel.ADD_OR_REMOVE_ONE,
    "zero-out": NeighborRel.REPLACE_SPECIAL,
    "replace-one": NeighborRel.REPLACE_ONE,
}


@pytest.mark.slow_but_one_in(25)
@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize(
    ("q", "sigma", "rounds", "delta"),
    [
        (1e-3, 0.7, 1000, 1e-6),
        (0.01, 1.0, 1000, 1e-5),
        (0.01, 0.5, 10, 1e-8),
        (0.1, 2.0, 100, 1e-5),
        (0.5, 1.0, 1, 1e-3),
        (0.5, 5.0, 50, 1e-9),
        (0.95, 3.0, 20, 1e-5),
    ],
)
def test_agrees_with_the_librarys_own_gaussian(adjacency, q, sigma, rounds, delta):
    theirs = library.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=2e-4, neighboring_relation=RELATIONS[adjacency]
    )
    expected = theirs.self_compose(rounds).get_epsilon_for_delta(delta)
    assert pld.epsilon(times(poisson(q, sigma, adjacency), rounds), delta=delta) == pytest.approx(expected, rel=1e-3)


def test_agrees_with_the_library_on_a_mixed_composition():
    parts = [(0.01, 1.0, 100), (0.2, 3.0, 10), (1.0, 20.0, 5)]
    mechanisms = tuple((poisson(q, sigma) if q < 1 else gaussian(sigma), count) for q, sigma, count in parts)
    theirs = None
    for q, sigma, count in parts:
        one = library.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=2e-4)
        composed = one.self_compose(count)
        theirs = composed if theirs is None else theirs.compose(composed)
    expected = theirs.get_epsilon_for_delta(1e-6)
    assert pld.epsilon(Composed(parts=mechanisms), delta=1e-6) == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("make", [lambda z, a: gaussian(z, a), lambda z, a: poisson(1.0, z, a)])
@pytest.mark.parametrize(
    ("sigma", "rounds", "delta"),
    [(0.1, 3, 1e-5), (1.0, 1, 1e-11), (1.0, 100, 1e-5), (30.0, 1000, 1e-6), (1000.0, 10, 1e-6), (100.0, 10_000, 1e-6)],
)
def test_plain_gaussians_are_bounded_from_just_above(make, adjacency, sigma, rounds, delta):
    mechanism = times(make(sigma, adjacency), rounds)
    shift = (2 if adjacency == "replace-one" else 1) / sigma * math.sqrt(rounds)
    exact = float(normal.epsilon(delta, shift))
    assert exact <= pld.epsilon(mechanism, delta=delta) <= exact * 1.0005


@pytest.mark.parametrize("sigma", [0.02, 0.01])
@pytest.mark.parametrize("q", [0.01, 0.5])
def test_losses_beyond_the_range_of_exp_stay_exact(q, sigma):
    """One round with losses in the thousands, where e^-loss is 0: the answer is that of the closed-form profile."""
    delta = 1e-5
    setting = {"sampling_probability": q, "noise_multiplier": sigma}
    low, high = 0.0, 1e5
    for _ in range(80):
        middle = (low + high) / 2
        above = float(sampled_profiles.removal_profile(middle, **setting)) > delta
        low, high = (middle, high) if above else (low, middle)
    assert high <= pld.epsilon(poisson(q, sigma), delta=delta) <= high * 1.0001


@pytest.mark.parametrize(
    ("mechanism", "rounds"), [(poisson(0.01, 0.3), 1000), (poisson(0.001, 0.3, "replace-one"), 1000)]
)
def test_rare_but_large_losses_do_not_coarsen_the_grid(mechanism, rounds):
    relation = RELATIONS[str(mechanism.adjacency)]
    theirs = library.from_gaussian_mechanism(
        0.3,
        sampling_prob=mechanism.sampling.probability,
        value_discretization_interval=1e-3,
        neighboring_relation=relation,
    )
    expected = theirs.self_compose(rounds).get_epsilon_for_delta(1e-6)
    assert pld.epsilon(times(mechanism, rounds), delta=1e-6) == pytest.approx(expected, rel=2e-3)


def test_connecting_dots_is_the_librarys_algorithm_with_less_rounding():
    spacing, sizes = 0.01, np.arange(1201) * 0.01
    setting = {"sampling_probability": 0.2, "noise_multiplier": 0.8}
    forth = sampled_profiles.removal_profile(sizes, **setting)
    back = sampled_profiles.addition_profile(sizes, **setting)
    ours = in_library(loss_grid.connect_dots(spacing, forth, back))
    both_signs = sampled_profiles.removal_profile(np.arange(-1200, 1201) * spacing, **setting)
    theirs = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(spacing, -1200, 1200, both_signs)
    for epsilon in (-2.0, -0.123, 0.0, 0.5, 1.234, 5.0):
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(theirs.get_delta_for_epsilon(epsilon), abs=1e-12)


def test_connected_dots_lie_on_the_profile_and_above_it_between():
    setting = {"sampling_probability": 0.2, "noise_multiplier": 0.8}
    sizes = np.arange(400) * 0.05
    forth = sampled_profiles.removal_profile(sizes, **setting)
    law = in_library(loss_grid.connect_dots(0.05, forth, sampled_profiles.addition_profile(sizes, **setting)))
    for k in (-40, -7, -1, 0, 1, 13, 60):
        exact = float(sampled_profiles.removal_profile(k * 0.05, **setting))
        assert law.get_delta_for_epsilon(k * 0.05) == pytest.approx(exact, abs=1e-13)
    for epsilon in np.linspace(-2, 3, 97):
        assert law.get_delta_for_epsilon(epsilon) >= float(sampled_profiles.removal_profile(epsilon, **setting)) - 1e-14


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
def test_both_orders_of_the_worlds_are_counted(adjacency):
    """Above 0 the larger profile is that of removal, below 0 that of addition."""
    laws = pld.distribution(poisson(0.2, 0.8, adjacency), 0.01)
    drawn, not_drawn = [(0.8, 0.0), (0.2, 1.25)], [(1.0, 0.0)]
    for epsilon in (-1.0, -0.5, 0.5, 1.0):
        removal, addition = (hockey_stick(p, q, math.exp(epsilon)) for p, q in ((drawn, not_drawn), (not_drawn, drawn)))
        assert (removal > addition) == (epsilon > 0)
        assert laws.delta(epsilon) == pytest.approx(max(removal, addition), abs=1e-12)


@pytest.mark.parametrize(("q", "sigma"), [(0.3, 1.0), (0.9, 2.0), (0.9, 0.5), (0.5, 0.3), (0.9, 0.2), (0.9, 0.1)])
def test_a_single_round_is_never_below_its_profile(q, sigma):
    """On the grid connected dots lie on the profile: only the rounding upwards is left there."""
    mechanism = poisson(q, sigma)
    spacing = loss_grid.interval(mechanism)
    for steps in (5, 200):
        epsilon = steps * spacing
        exact = hockey_stick_in_many_digits([(1 - q, 0.0), (q, 1 / sigma)], [(1.0, 0.0)], math.exp(epsilon))
        found = pld.epsilon(mechanism, delta=float(exact))
        assert epsilon <= found
        shown = hockey_stick_in_many_digits([(1 - q, 0.0), (q, 1 / sigma)], [(1.0, 0.0)], math.exp(found))
        assert exact - shown <= 1e-12


@pytest.mark.parametrize("q", [0.01, 0.5])
@pytest.mark.parametrize("sigma", [0.5, 3.0])
def test_hardly_anything_lies_beyond_the_largest_loss(q, sigma):
    setting = {"sampling_probability": q, "noise_multiplier": sigma}
    cohort = round(100 * q)
    for mechanism, profile in (
        (poisson(q, sigma), sampled_profiles.removal_profile),
        (poisson(q, sigma, "replace-one"), sampled_profiles.poisson_replacement_profile),
        (fixed(cohort, 100, sigma), sampled_profiles.fixed_size_replacement_profile),
        (fixed(cohort, 100, sigma, "zero-out"), sampled_profiles.zeroing_profile),
    ):
        assert 0 < float(profile(loss_grid.largest_loss(mechanism), **setting)) <= 1e-19
        for spacing in (0.01, 2.0):
            assert all(law.infinite <= 1e-19 for law in pld._distributions_of_orders(mechanism, spacing))


@pytest.mark.parametrize("spacing", [0.002, 0.02, 0.2, 1.0])
def test_every_grid_gives_an_upper_bound(spacing):
    mechanism = times(poisson(0.05, 1.0), 30)
    fine = pld.epsilon(mechanism, delta=1e-6)
    coarse = pld.distribution(mechanism, spacing).smallest_epsilon(1e-6)
    assert coarse >= fine * (1 - 1e-4)


@pytest.mark.parametrize(("sigma", "rounds"), [(0.02, 1000), (0.02, 10), (0.1, 10_000), (0.5, 10)])
def test_a_million_losses_hold_the_sum_of_plain_gaussians(sigma, rounds):
    """Their summed loss is normal: mean T mu^2 / 2, variance T mu^2. Up to 20 deviations above must fit into memory."""
    far = rounds / sigma**2 / 2 + 20 * math.sqrt(rounds) / sigma
    assert far / loss_grid.interval(times(gaussian(sigma), rounds)) <= 1_000_001


def test_grid_without_any_release_is_finite():
    assert loss_grid.interval(times(poisson(0.0, 1.0), 10)) > 0


@pytest.mark.parametrize("bad", [None, 3, "gaussian", PoissonSampling(probability=0.1)])
def test_what_is_no_mechanism_is_refused(bad):
    refused(UnsupportedMechanism, "no privacy loss distribution is implemented", pld.epsilon, bad, delta=1e-5)


def test_more_rounds_than_a_grid_can_hold_are_refused():
    with pytest.raises(InvalidParameter, match="must be at most 100000000, because grids"):
        pld.epsilon(times(poisson(0.1, 1.0), 10**8 + 1), delta=1e-5)


def test_the_smallest_delta_is_allowed_and_nothing_below_it():
    assert 0 < pld.epsilon(poisson(0.1, 1.0), delta=1e-12) < math.inf
    words = r"delta=.* must be at least 1e-12.*accountant='rdp'"
    refused(InvalidParameter, words, lambda: pld.epsilon(poisson(0.1, 1.0), delta=0.999e-12))
