"""Rounded norms against sampled roundings, moduli against exact tails and a published table."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from reference import integer_distributions
from refusals import refused
from scipy.stats import norm

from accounting import Plan
from accounting.errors import InvalidParameter
from accounting.integers import fixed_point

RATES = {1000: (15, 18), 3000: (16, 20), 5000: (17, 21), 6000: (17, 21), 16384: (19, 22)}


@pytest.mark.parametrize("law", ["discrete-gaussian", "skellam"])
@pytest.mark.parametrize("steps", RATES)
def test_bits_of_a_hundred_uploads_of_1600000_coordinates(steps, law):
    plan = {
        "law": law,
        "uploads": 100,
        "dimension": 1_600_000,
        "scaled_clip": steps,
        "noise_variance": (1.4 * steps) ** 2,
    }
    assert (fixed_point.sum_bits(**plan, rotate=True), fixed_point.sum_bits(**plan, rotate=False)) == RATES[steps]


@pytest.mark.parametrize(
    ("steps", "longer"), [(1000, 1.184), (3000, 1.022), (5000, 1.0081), (6000, 1.0056), (16384, 1.0008)]
)
def test_how_much_rounding_lengthens(steps, longer):
    assert fixed_point.rounded_l2(steps, 1_600_000) / steps == pytest.approx(longer, abs=6e-4)


def rounded(rng, vector, count):
    low = np.floor(vector)
    return low + (rng.random((count, len(vector))) < vector - low)


@pytest.mark.parametrize("kind", ["even", "halves", "one", "random"])
@pytest.mark.parametrize(("dimension", "clip"), [(1, 0.5), (3, 2.0), (100, 3.0), (1000, 40.0)])
def test_a_rounding_is_short_enough_often_enough(kind, dimension, clip):
    """At least 1 - e^-1/2 = 39% are kept; 2,000 draws fall 6 standard deviations below with probability 1e-9."""
    rng = np.random.default_rng(1)
    vector = {
        "even": np.ones(dimension),
        "halves": np.floor(np.linspace(0, 2, dimension)) + 0.5,
        "one": np.eye(dimension)[0],
        "random": rng.normal(size=dimension),
    }[kind]
    draws = rounded(rng, vector * clip / np.linalg.norm(vector), 2000)
    squares = (draws**2).sum(axis=1)
    assert np.all(squares <= (clip + math.sqrt(dimension)) ** 2)
    kept = np.mean(squares <= fixed_point.rounded_l2_squared(clip, dimension))
    assert kept >= 1 - math.exp(-0.5) - 6 * 0.5 / math.sqrt(2000)


def test_a_bound_without_the_rounding_would_refuse_nearly_everything():
    draws = rounded(np.random.default_rng(2), np.full(1000, 40 / math.sqrt(1000)), 500)
    assert np.mean((draws**2).sum(axis=1) <= 40.0**2) < 0.01


def test_the_root_is_never_below_the_integer_it_is_the_root_of():
    for clip, dimension in itertools.product((0.1, 1.0, 7.3, 1e3, 1e7), (1, 2, 1000, 1 << 21)):
        square = fixed_point.rounded_l2_squared(clip, dimension)
        assert isinstance(square, int)
        assert square <= fixed_point.rounded_l2(clip, dimension) ** 2 < square + 1


def test_l1_of_small_integer_vectors_by_enumeration():
    vectors = np.array(list(itertools.product(range(-3, 4), repeat=3)))
    l1, l2 = np.abs(vectors).sum(axis=1), np.sqrt((vectors**2).sum(axis=1))
    for bound in np.unique(l2)[1:]:
        assert l1[l2 <= bound].max() <= fixed_point.rounded_l1(float(bound), 3) + 1e-9
    assert fixed_point.rounded_l1(1.0, 3) == 1.0  # attained: one coordinate, one step


@pytest.mark.parametrize("law", ["discrete-gaussian", "skellam"])
@pytest.mark.parametrize(("variance", "probability"), [(0.3, 1e-3), (4.0, 1e-6), (40.0, 1e-6), (400.0, 1e-3)])
def test_the_modulus_holds_one_coordinate_and_two_bits_less_would_not(law, variance, probability):
    reach = 60 + int(20 * math.sqrt(variance))
    noise = getattr(integer_distributions, law.replace("-", "_"))(variance, reach)
    uploads, clip = 3, 2.0
    bits = fixed_point.sum_bits(
        law=law, uploads=uploads, dimension=1, scaled_clip=clip, noise_variance=variance, rotate=False,
        wrap_probability=probability,
    )  # fmt: skip

    def wraps(b):
        x = np.arange(-reach, reach + 1)
        largest = uploads * clip  # what whole uploads really add up to
        return noise[(x + largest >= 2 ** (b - 1)) | (x + largest < -(2 ** (b - 1)))].sum()

    assert wraps(bits) <= probability < wraps(bits - 2)


def test_rotation_saves_bits_and_never_costs_any():
    for dimension, uploads in itertools.product((1, 2, 64, 1 << 20), (1, 10, 1000)):
        plan = {"law": "skellam", "uploads": uploads, "dimension": dimension, "scaled_clip": 500.0}
        plain, rotated = (
            fixed_point.sum_bits(**plan, noise_variance=700.0**2, rotate=rotate) for rotate in (False, True)
        )
        assert rotated <= plain
        assert rotated == plain or dimension > 2
    assert fixed_point.padded_dimension(1_600_000, rotate=True) == 1 << 21
    assert fixed_point.padded_dimension(1 << 20, rotate=True) == 1 << 20
    assert fixed_point.padded_dimension(1, rotate=True) == 1
    assert fixed_point.padded_dimension(1_600_000, rotate=False) == 1_600_000


def test_a_rotated_sum_of_equal_uploads_stays_inside():
    """200 rotations of the worst case, one direction for all: none of 200 x 256 entries wraps (allowed: 1e-6 each)."""
    rng = np.random.default_rng(3)
    size, uploads, clip = 256, 20, 300.0
    bits = fixed_point.sum_bits(
        law="skellam", uploads=uploads, dimension=size, scaled_clip=clip, noise_variance=1.0, rotate=True
    )
    hadamard = np.ones((1, 1))
    while len(hadamard) < size:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    spread = np.full(size, uploads * clip / 16)
    sums = (rng.choice([-1.0, 1.0], (200, size)) * spread) @ hadamard / 16
    assert np.abs(sums).max() + uploads < 2 ** (bits - 1)
    assert bits < fixed_point.sum_bits(
        law="skellam", uploads=uploads, dimension=size, scaled_clip=clip, noise_variance=1.0, rotate=False
    )


def test_the_least_scale_is_the_least():
    for dimension in (1, 2, 1000, 1_600_000, 1 << 21):
        scale = fixed_point.least_scale(dimension)
        assert fixed_point.rounded_l2(scale, dimension) <= 1.01 * scale
        assert fixed_point.rounded_l2(scale - 1, dimension) > 1.01 * (scale - 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fixed_point.rounded_l2(0.0, 5), "scaled_clip=0.0: must be a finite number above 0"),
        (lambda: fixed_point.rounded_l2(1e17, 5), r"scaled_clip=1e\+17: must be at most 2\^53"),
        (lambda: fixed_point.rounded_l2(1.0, 0), "dimension=0: must be a whole number from 1"),
        (
            lambda: fixed_point.sum_bits(
                law="laplace", uploads=1, dimension=1, scaled_clip=1.0, noise_variance=1.0, rotate=True
            ),
            "law='laplace': must be 'discrete-gaussian' or 'skellam'",
        ),
    ],
)
def test_bad_numbers_are_refused(call, message):
    refused(InvalidParameter, message, call)


@pytest.mark.parametrize("uploads", [250, 341, 450])
def test_equal_uploads_after_a_rotation_wrap_no_more_often_than_allowed(uploads):
    """All clients send one vector whose rotated coordinates are sums of many equal random signs: normal, nearly."""
    dimension, clip, allowed = 4096, 32.0, 1e-6
    bits = fixed_point.sum_bits(
        law="skellam", uploads=uploads, dimension=dimension, scaled_clip=clip, noise_variance=0.0, rotate=True,
        wrap_probability=allowed,
    )  # fmt: skip
    deviation = uploads * clip / math.sqrt(dimension)
    assert 2 * dimension * norm.sf(2 ** (bits - 1) / deviation) <= allowed
    assert bits <= 14


def test_the_largest_clip_is_the_last_whole_number_of_a_double():
    plan = {"law": "skellam", "uploads": 2, "dimension": 4, "noise_variance": 0.0, "rotate": False}
    assert fixed_point.sum_bits(**plan, scaled_clip=2.0**53) >= 54
    refused(InvalidParameter, r"at most 2\^53", fixed_point.sum_bits, **plan, scaled_clip=2.0**53 + 2)


def test_a_sum_promises_by_default_what_a_plan_does():
    """At a noise where a wrap-around of twice the probability would need one bit less."""
    plan = Plan(
        mechanism="discrete-gaussian",
        clients=100,
        cohort=50,
        dimension=64,
        delta=1e-5,
        sampling="fixed",
        placement="server",
        scale=20.0,
    )
    z = 5.028937868102917
    noise, seldom = plan.mechanism, replace(plan, wrap_probability=2e-6)
    assert seldom.mechanism.bits(seldom, z) < noise.bits(plan, z)
    bits = fixed_point.sum_bits(
        law="discrete-gaussian", uploads=50, dimension=64, scaled_clip=20.0, rotate=True,
        noise_variance=noise.release(plan, z).share_variance,
    )  # fmt: skip
    assert bits == noise.bits(plan, z)
