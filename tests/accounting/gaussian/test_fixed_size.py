"""One round on a fixed-size cohort: never above any neighbours' divergence, and attained.

Theorem 1 and 2 of docs/theory.md. Given the rest of the cohort, x0 is the vector drawn in place of the differing
client's, a and b its two values: P = (1-q) N(x0) + q N(a), Q = (1-q) N(x0) + q N(b).
"""

import itertools
import math

import numpy as np
import pytest
from reference import normal
from reference.mixtures import hockey_stick
from reference.planar import planar_hockey_stick, points_in_the_unit_disc

from accounting.gaussian import sampled_profiles

pytestmark = pytest.mark.slow_but_one_in(3)

SETTINGS = [(1 / 60, 1.4), (0.1, 0.5), (0.5, 2.0), (0.5, 0.3), (0.9, 1.0), (1e-5, 1.0), (0.2, 30.0)]
GAMMAS = [0.05, 0.5, 0.9, 1.0, 1.001, 1.3, 3.0, 50.0]
NAMES = ["replacement", "zeroing", "restoring"]

NAMED = {"replacement": "fixed_size_replacement_profile"}


def value(name, gamma, q, sigma):
    profile = getattr(sampled_profiles, NAMED.get(name, f"{name}_profile"))
    return float(profile(math.log(gamma), sampling_probability=q, noise_multiplier=sigma))


def configurations(name, points):
    """(x0, a, b) that the adjacency allows."""
    origin = 0 * points[0]
    for x0, vector in itertools.product(points, points):
        if name == "replacement":
            yield from ((x0, vector, other) for other in points)
        elif name == "zeroing":
            yield x0, vector, origin
        else:
            yield x0, origin, vector


def worlds(x0, a, b, q, sigma):
    return [(1 - q, x0 / sigma), (q, a / sigma)], [(1 - q, x0 / sigma), (q, b / sigma)]


@pytest.mark.slow_but_one_in(11)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("q", "sigma"), SETTINGS)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_is_the_supremum_over_all_neighbours_on_a_line(name, q, sigma, gamma):
    line = np.linspace(-1, 1, 5 if name == "replacement" else 9)
    tried = [hockey_stick(*worlds(*c, q, sigma), gamma, points=601) for c in configurations(name, line)]
    assert max(tried) == pytest.approx(value(name, gamma, q, sigma), rel=1e-8, abs=2e-15)


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("q", "sigma", "gamma"), [(0.1, 0.7, 1.2), (0.5, 1.0, 2.0), (0.5, 2.0, 0.8), (0.9, 1.0, 1.0)])
def test_no_neighbours_in_the_plane_do_better(name, q, sigma, gamma):
    """All vectors up to a rotation: the worst are on a line, so random ones in the disc stay below."""
    points = points_in_the_unit_disc(5, seed=11)
    tried = [planar_hockey_stick(*worlds(*c, q, sigma), gamma) for c in configurations(name, points)]
    assert max(tried) <= value(name, gamma, q, sigma) + 2e-4
    assert max(tried) == pytest.approx(value(name, gamma, q, sigma), abs=2e-4)


@pytest.mark.parametrize(
    ("name", "x0", "a", "b"), [("replacement", -1, 1, -1), ("zeroing", -1, 1, 0), ("restoring", -1, 0, -1)]
)
@pytest.mark.parametrize(("q", "sigma"), SETTINGS)
def test_the_named_neighbours_attain_it_above_1(name, x0, a, b, q, sigma):
    for gamma in (1.0, 1.01, 2.0, 20.0):
        attained = hockey_stick(*worlds(x0, a, b, q, sigma), gamma)
        assert attained == pytest.approx(value(name, gamma, q, sigma), rel=1e-8, abs=2e-15)


def test_the_wrong_sensitivity_is_caught():
    """A planted fault: with C for 2C the profile falls below what real neighbours show."""
    for q, sigma in SETTINGS:
        wrong = value("replacement", 1.01, q, 2 * sigma)
        assert hockey_stick(*worlds(-1, 1, -1, q, sigma), 1.01) > wrong * 1.1


def test_zero_out_never_costs_more_than_replacement():
    epsilon = np.linspace(-5, 5, 101)
    for q, sigma in SETTINGS:
        setting = {"sampling_probability": q, "noise_multiplier": sigma}
        replaced = sampled_profiles.fixed_size_replacement_profile(epsilon, **setting)
        for zeroed in (
            sampled_profiles.zeroing_profile(epsilon, **setting),
            sampled_profiles.restoring_profile(epsilon, **setting),
        ):
            assert (zeroed <= replaced + 1e-15).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("q", "sigma"), SETTINGS)
def test_is_convex_across_1(name, q, sigma):
    """So that it is the profile of one pair: the slopes of the two sides are in order where they meet."""
    gamma = np.linspace(0.2, 3, 561)
    h = np.array([value(name, g, q, sigma) for g in gamma])
    assert (np.diff(h, 2) >= -1e-13).all()


@pytest.mark.parametrize("name", NAMES)
def test_drawing_everybody_is_the_gaussian(name):
    shift = (2 if name == "replacement" else 1) / 1.7
    for epsilon in (-3.0, 0.0, 0.5, 4.0):
        exact = float(normal.profile(epsilon, shift))
        assert value(name, math.exp(epsilon), 1.0, 1.7) == pytest.approx(exact, rel=1e-10, abs=1e-15)


def test_zeroing_and_restoring_are_each_others_reverse():
    for gamma in GAMMAS:
        back = 1 - gamma + gamma * value("restoring", 1 / gamma, 0.3, 1.2)
        assert value("zeroing", gamma, 0.3, 1.2) == pytest.approx(back, abs=1e-13 * max(1, gamma))
