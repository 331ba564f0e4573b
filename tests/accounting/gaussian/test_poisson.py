"""One Poisson-sampled round, against exact mixtures and against every other choice of the clients' vectors."""

import math

import mpmath as mp
import numpy as np
import pytest
from reference import normal
from reference.mixtures import hockey_stick, hockey_stick_in_many_digits
from reference.planar import planar_hockey_stick, points_in_the_unit_disc

from accounting.gaussian import sampled_profiles

pytestmark = pytest.mark.slow_but_one_in(3)

EPSILONS = [-30.0, -2.0, -0.3, -1e-3, 0.0, 1e-6, 0.05, 0.7, 3.0, 12.0]
SETTINGS = [(1e-6, 0.5), (0.01, 0.4), (0.1, 1.4), (0.5, 3.0), (0.5, 0.2), (0.9, 1.0), (1 - 1e-9, 2.0), (0.3, 50.0)]

NAMED = {"replacement": "poisson_replacement_profile"}


def laws(q, sigma):
    """With the client, without it, and with the client's vector negated."""
    s = 1 / sigma
    return [(1 - q, 0.0), (q, s)], [(1.0, 0.0)], [(1 - q, 0.0), (q, -s)]


def pair_of(name, q, sigma):
    present, absent, negated = laws(q, sigma)
    return {"removal": (present, absent), "addition": (absent, present), "replacement": (present, negated)}[name]


def value(name, epsilon, q, sigma):
    profile = getattr(sampled_profiles, NAMED.get(name, f"{name}_profile"))
    return float(profile(epsilon, sampling_probability=q, noise_multiplier=sigma))


@pytest.mark.slow_but_one_in(11)
@pytest.mark.parametrize("name", ["removal", "addition", "replacement"])
@pytest.mark.parametrize(("q", "sigma"), SETTINGS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_equals_the_mixtures_hockey_stick(name, q, sigma, epsilon):
    p, other = pair_of(name, q, sigma)
    assert value(name, epsilon, q, sigma) == pytest.approx(
        hockey_stick(p, other, math.exp(epsilon)), rel=1e-8, abs=2e-15
    )


@pytest.mark.parametrize("name", ["removal", "replacement"])
@pytest.mark.parametrize(
    ("q", "sigma", "epsilon"),
    [
        (1e-6, 0.5, 5.0),
        (0.01, 1.0, 6.0),
        (0.5, 10.0, 0.7),
        (1 - 1e-9, 0.2, 60.0),
        (1e-4, 1000.0, 1e-7),
        (0.3, 0.01, 5500.0),
    ],
)
def test_far_tails_equal_many_digits(name, q, sigma, epsilon):
    p, other = pair_of(name, q, sigma)
    exact = hockey_stick_in_many_digits(p, other, mp.exp(mp.mpf(epsilon)))
    assert value(name, epsilon, q, sigma) == pytest.approx(float(exact), rel=1e-7, abs=0)


@pytest.mark.parametrize("sigma", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("epsilon", [0.0, 10.0, 33.0, 36.0, 60.0])
def test_addition_does_not_cancel_when_nearly_everybody_is_drawn(sigma, epsilon):
    """Near q = 1 the rare world without the client matters; 1 - gamma (1-q) must not be taken from rounded terms."""
    exact = float(normal.profile(epsilon, 1 / sigma))
    assert value("addition", epsilon, 1.0, sigma) == pytest.approx(exact, rel=1e-9, abs=1e-300)
    assert value("addition", epsilon, 1 - 2**-53, sigma) == pytest.approx(
        exact * max(0.0, 1 - math.exp(epsilon) * 2**-53), rel=0.2, abs=1e-12
    )


@pytest.mark.parametrize("name", ["removal", "addition", "replacement"])
def test_certain_sampling_is_the_gaussian(name):
    shift = (2 if name == "replacement" else 1) / 1.7
    for epsilon in EPSILONS:
        assert value(name, epsilon, 1.0, 1.7) == pytest.approx(
            float(normal.profile(epsilon, shift)), rel=1e-10, abs=1e-15
        )


@pytest.mark.parametrize(
    "name", ["removal", "addition", "poisson_replacement", "fixed_size_replacement", "zeroing", "restoring"]
)
@pytest.mark.parametrize("sigma", [0.01, 1.0, 1000.0])
@pytest.mark.parametrize("q", [1e-300, 1e-15, 1e-6, 0.5, 1 - 1e-16, 1.0])
def test_is_a_hockey_stick_at_every_extreme(name, sigma, q):
    epsilon = np.concatenate([-np.geomspace(800, 1e-9, 300), [0.0], np.geomspace(1e-9, 800, 300)])
    h = getattr(sampled_profiles, f"{name}_profile")(epsilon, sampling_probability=q, noise_multiplier=sigma)
    assert np.isfinite(h).all()
    assert (np.diff(h) <= 1e-15).all()
    gamma = np.exp(np.minimum(epsilon, 0.0))  # above 1 the bounds are 0 and q
    assert (h >= 1 - gamma - 1e-15).all()
    assert (h <= 1 - gamma + gamma * q + 1e-15).all()


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize(("q", "sigma"), [(0.1, 0.5), (0.4, 1.0), (0.8, 2.0)])
@pytest.mark.parametrize("gamma", [0.7, 1.0, 1.2, 2.5])
def test_no_other_vectors_do_better(q, sigma, gamma):
    """Random vectors in the unit disc, and the ends: nothing exceeds the profiles, and the ends attain them."""
    vectors = points_in_the_unit_disc(20, seed=7)
    origin = np.zeros(2)
    epsilon = math.log(gamma)
    tolerance = 2e-4
    best_replaced, best_removed, best_added = 0.0, 0.0, 0.0
    for a in vectors:
        present = [(1 - q, origin), (q, a / sigma)]
        best_removed = max(best_removed, planar_hockey_stick(present, [(1.0, origin)], gamma))
        best_added = max(best_added, planar_hockey_stick([(1.0, origin)], present, gamma))
        for b in vectors[:10]:
            other = [(1 - q, origin), (q, b / sigma)]
            best_replaced = max(best_replaced, planar_hockey_stick(present, other, gamma))
    for name, best in (("replacement", best_replaced), ("removal", best_removed), ("addition", best_added)):
        assert best <= value(name, epsilon, q, sigma) + tolerance
        assert best == pytest.approx(value(name, epsilon, q, sigma), abs=tolerance)
