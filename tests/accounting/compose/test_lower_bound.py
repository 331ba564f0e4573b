"""Lower bounds never exceed the truth, and come close to it where the truth is known."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import normal
from reference.mixtures import hockey_stick
from reference.shorthand import fixed, gaussian, poisson, times

from accounting.compose import accountant, lower_bound, pld, quantised
from accounting.compose.loss_distribution import LossDistribution
from accounting.gaussian import sampled_profiles as poisson_profiles
from accounting.gaussian import smallest_epsilon
from accounting.gaussian.attacks import AttackPair, attack_pairs
from accounting.mechanisms import Composed

pytestmark = pytest.mark.slow_but_one_in(3)

ALL_KINDS = [
    poisson(0.1, 1.0),
    poisson(0.1, 1.0, "zero-out"),
    poisson(0.1, 1.0, "replace-one"),
    fixed(10, 100, 1.0),
    fixed(10, 100, 1.0, "zero-out"),
]


@pytest.mark.slow_but_one_in(16)
@pytest.mark.parametrize("mechanism", ALL_KINDS)
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_one_round_is_what_the_named_neighbours_show(mechanism, epsilon):
    shown = max(hockey_stick(list(pair.p), list(pair.q), math.exp(epsilon)) for pair in attack_pairs(mechanism))
    found = lower_bound.epsilon(mechanism, delta=shown)
    assert epsilon * (1 - 2e-3) <= found <= epsilon


@pytest.mark.slow_but_one_in(16)
@pytest.mark.parametrize("mechanism", ALL_KINDS)
@pytest.mark.parametrize(("rounds", "delta"), [(1, 1e-3), (20, 1e-5), (500, 1e-9)])
def test_stays_below_the_upper_bound_on_every_kind(mechanism, rounds, delta):
    composed = times(mechanism, rounds)
    assert lower_bound.epsilon(composed, delta=delta) <= pld.epsilon(composed, delta=delta)


@settings(max_examples=15)
@given(
    q=st.floats(1e-6, 1.0),
    sigma=st.floats(0.1, 50.0),
    rounds=st.integers(1, 100),
    delta=st.floats(1e-11, 0.5),
    adjacency=st.sampled_from(["add-remove", "replace-one"]),
)
@pytest.mark.slow
def test_meets_the_upper_bound_for_poisson_sampling(q, sigma, rounds, delta, adjacency):
    composed = times(poisson(q, sigma, adjacency), rounds)
    low, high = lower_bound.epsilon(composed, delta=delta), pld.epsilon(composed, delta=delta)
    assert low <= high
    assert high - low <= 0.1 * high + 1e-3


@pytest.mark.parametrize("mu", [1e-3, 0.1, 2.0, 50.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-9, 0.01])
def test_plain_gaussians_are_exact(mu, delta):
    exact = float(normal.epsilon(delta, mu))
    found = lower_bound.epsilon(gaussian(1 / mu), delta=delta)
    assert found <= exact
    assert found == pytest.approx(exact, rel=1e-9, abs=1e-13 * (1 - math.log(delta)))


@pytest.mark.parametrize("delta", [2e-15, 1e-14, 1e-9])
@pytest.mark.slow
def test_many_parts_do_not_add_up_their_cut_tails(delta):
    """Every part's self-composition books 1e-15 as an infinite loss; thirty of them must not raise the bound."""
    parts = tuple((poisson(0.01, 2.0 + 0.01 * i), 1) for i in range(30))
    found = lower_bound.epsilon(Composed(parts=parts), delta=delta)
    noisiest = accountant.epsilon(times(poisson(0.01, 2.0), 30), delta=delta)
    assert found <= noisiest
    assert found >= 0.5 * noisiest or delta < 1e-12


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("sigma", [0.02, 0.01])
@pytest.mark.parametrize("q", [0.5, 0.01])
def test_losses_beyond_the_range_of_exp_are_not_overstated(q, sigma):
    """Inverting the composed law through e^-loss would say 1 more than the truth here."""
    found = lower_bound.epsilon(poisson(q, sigma), delta=1e-11)
    setting = {"sampling_probability": q, "noise_multiplier": sigma}
    assert float(poisson_profiles.removal_profile(found, **setting)) >= 1e-11
    assert float(poisson_profiles.removal_profile(found * 1.0001, **setting)) < 1e-11


@pytest.mark.slow
def test_a_mixed_composition_shows_at_least_its_sampled_part_and_its_plain_part():
    sampled, plain = times(fixed(10, 100, 2.0), 50), times(gaussian(3.0, "replace-one"), 2)
    both = Composed(parts=(*sampled.parts, *plain.parts))
    found = lower_bound.epsilon(both, delta=1e-5)
    assert found >= lower_bound.epsilon(sampled, delta=1e-5)
    assert found >= lower_bound.epsilon(plain, delta=1e-5)
    assert found <= pld.epsilon(both, delta=1e-5)


@pytest.mark.slow
def test_mixed_samplers_show_neighbours_in_the_same_order():
    """Poisson and fixed-size rounds under zero-out: the client present first, or zeroed first, in all of them."""
    both = Composed(parts=((fixed(30, 100, 2.0, "zero-out"), 20), (poisson(0.3, 2.0, "zero-out"), 20)))
    assert lower_bound.epsilon(both, delta=1e-5) <= pld.epsilon(both, delta=1e-5)
    assert lower_bound.epsilon(both, delta=1e-5) >= lower_bound.epsilon(times(both.parts[1][0], 20), delta=1e-5)


def test_nobody_ever_drawn_shows_nothing():
    assert lower_bound.epsilon(times(poisson(0.0, 0.1), 100), delta=1e-9) == 0.0


@pytest.mark.slow
def test_what_a_transform_rounds_upwards_is_no_loss():
    """At small delta the positive half of the rounding, over a million losses, would by itself be a delta of 1e-11."""
    composed = times(poisson(0.03125, 0.125, "add-remove"), 8)
    low, high = lower_bound.epsilon(composed, delta=1e-11), pld.epsilon(composed, delta=1e-11)
    assert high * (1 - 1e-3) <= low <= high


def test_a_law_above_delta_at_every_loss_shows_its_largest_one():
    law = LossDistribution(spacing=0.5, lowest=-2, masses=np.array([0.1, 0.2, 0.3, 0.2, 0.1]), infinite=0.1)
    assert lower_bound._epsilon_of_distribution(law, 0.05) == 1.0
    assert 0 < lower_bound._epsilon_of_distribution(law, 0.15) < 1.0
    law = LossDistribution(spacing=0.5, lowest=1, masses=np.array([0.5, 0.4]), infinite=0.0)
    assert lower_bound._epsilon_of_distribution(law, 0.95) == 0.0  # a delta above all mass


def test_all_kinds_of_rounds_of_a_composition_count():
    """Poisson rounds of two noises: near the upper bound, which neither kind alone is."""
    parts = (poisson(0.1, 1.0), 10), (poisson(0.1, 1.3), 15)
    high = pld.epsilon(Composed(parts=parts), delta=1e-5)
    assert 0.97 * high <= lower_bound.epsilon(Composed(parts=parts), delta=1e-5) <= high
    assert all(pld.epsilon(Composed(parts=(part,)), delta=1e-5) < 0.95 * high for part in parts)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("interval", [0.02, 0.1])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 1.5])
def test_rounding_down_costs_little_even_of_a_coarse_grid(adjacency, interval, epsilon):
    """Cells are cut at the grid, so a grid shifted by half a step loses next to nothing. The shift is given back."""
    pair = attack_pairs(poisson(0.3, 1.0, adjacency))[0]
    delta = hockey_stick(list(pair.p), list(pair.q), math.exp(epsilon))
    found = lower_bound._composed_epsilon([quantised.quantised(pair, interval, 1)], interval, delta)
    assert epsilon - 0.2 * interval <= found <= epsilon


@pytest.mark.parametrize("centre", [0.05, 0.3, 0.48, 0.7])
def test_the_offset_that_loses_least(centre):
    """Beside a dense grid of offsets, tried one by one."""
    rng = np.random.default_rng(4)
    steps, mass = rng.integers(-9, 10, 3000) + rng.normal(centre, 0.02, 3000), rng.dirichlet(np.ones(3000))

    def lost(offset):
        return float(mass @ (steps - offset - np.floor(steps - offset)))

    assert lost(quantised._best_offset(steps, mass)) <= min(map(lost, np.linspace(0.01, 0.5, 200))) + 0.05


def of_shifts(mu, count, interval, delta):
    """Epsilon of `count` plain shifts by mu through merged cells; in truth it is that of one of mu sqrt(count)."""
    pair = AttackPair(p=((1.0, mu),), q=((1.0, 0.0),))
    return lower_bound._composed_epsilon([quantised.quantised(pair, interval, count)], interval, delta)


@pytest.mark.parametrize(("mu", "count", "interval"), [(0.05, 3000, 2e-3), (1e-3, 10**6, 1e-5), (3e-4, 10**7, 1e-5)])
def test_many_releases_in_groups_are_a_gaussian_from_below(mu, count, interval):
    exact = smallest_epsilon(1e-5, mu=mu * math.sqrt(count))
    assert 0.995 * exact < of_shifts(mu, count, interval, 1e-5) < exact


def test_groups_that_round_upwards_are_noticed(monkeypatch):
    def upwards(law, offset, interval):
        rounded, place = merged(law, offset, interval)
        return rounded, place + 0.5

    merged = quantised._with_merged_cells
    monkeypatch.setattr(quantised, "_with_merged_cells", upwards)
    assert of_shifts(0.05, 3000, 2e-3, 1e-5) > smallest_epsilon(1e-5, mu=0.05 * math.sqrt(3000))


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(("sigma", "rounds"), [(20.0, 10**5), (20.0, 10**6), (20.0, 10**7), (100.0, 10**7)])
def test_does_not_collapse_after_many_rounds(sigma, rounds):
    many = times(poisson(0.01, sigma), rounds)
    stated = pld.epsilon(many, delta=1e-5)
    assert 0.995 * stated < lower_bound.epsilon(many, delta=1e-5) < stated


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "delta"), [(1000, 1e-12), (1000, 1e-11), (200, 1e-12)])
def test_both_bounds_meet_at_the_smallest_delta(rounds, delta):
    """Rounding of transforms is charged, where it is not small against delta by tilted laws."""
    many = times(poisson(0.01, 1.0), rounds)
    stated = pld.epsilon(many, delta=delta)
    assert 0.9999 * stated < lower_bound.epsilon(many, delta=delta) < stated


@pytest.mark.parametrize(("z", "left"), [(0.0369, 4.74e-9), (0.0138, 4.28e-12)])
def test_near_delta_1_both_bounds_hold(z, left):
    """One Poisson-sampled round in 60 digits; rounding of masses is as large as 1 - delta here."""
    q, delta = 1 - 1e-13, 1 - left
    mechanism = poisson(q, z)

    def kept(epsilon):
        gamma, chance = mp.exp(epsilon), mp.mpf(q)
        rest = 1 - gamma * (1 - chance)
        removed = chance * normal.profile(mp.log((gamma - 1 + chance) / chance), 1 / mp.mpf(z))
        added = rest * normal.profile(mp.log(gamma * chance / rest), 1 / mp.mpf(z)) if rest > 0 else 0
        return 1 - max(removed, added)

    with mp.workdps(60):
        low, high = mp.mpf(0), mp.mpf(1e4)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if kept(middle) < 1 - mp.mpf(delta) else (low, middle)
        assert lower_bound.epsilon(mechanism, delta=delta) <= high
        assert low <= pld.epsilon(mechanism, delta=delta)


@pytest.mark.parametrize("z", [1e-9, 1e-7, 1e-3])
def test_next_to_no_noise_shows_the_rounds_that_a_client_is_drawn_in(z):
    """Of three rounds a client is drawn in two with probability 0.104 and in all with 0.008, which is below delta."""
    mechanism, delta = times(poisson(0.2, z), 3), 0.011
    two_rounds = 2 / (2 * z * z)
    shown = lower_bound.epsilon(mechanism, delta=delta)
    assert two_rounds * (1 - 1e-3) <= shown <= pld.epsilon(mechanism, delta=delta) <= two_rounds * (1 + 1e-2)


def test_losses_beyond_the_grid_take_no_memory():
    """Planted once: 10^15 clients of which one is drawn, for whose losses a grid of 15 GB was made."""
    p, q = np.log([0.5, 0.4999, 1e-4]), np.log([0.5, 0.4, 0.1])
    found, offset = quantised.rounded_down(p, q, 0.0, 1e-14)
    assert len(found.masses) <= 2 * quantised._MOST_STEPS
    assert found.masses.sum() == pytest.approx(0.9999)
    assert found.spacing * (found.lowest + len(found.masses) + offset) < math.log(0.4999 / 0.4)
