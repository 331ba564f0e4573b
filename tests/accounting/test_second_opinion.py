"""Second opinions: beside ours over many settings, with the library's known errors avoided."""

import numpy as np
import pytest
from reference.shorthand import fixed, gaussian, poisson, times

from accounting.compose import accountant, lower_bound
from accounting.compose.second_opinion import SecondOpinion, second_opinion
from accounting.mechanisms import Composed, Cyclic, subsample
from accounting.mechanisms.bernoulli import BernoulliAggregate
from accounting.mechanisms.integers import DiscreteGaussian

DELTA = 6000**-1.1


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("mechanism", "accounted", "expected"),
    [
        (poisson(1 / 60, 1.4), "pld", 0.6303),
        (poisson(1 / 60, 1.4, "zero-out"), "pld", 0.6303),
        (poisson(1 / 60, 1.4, "replace-one"), "pld", 1.0811),
        (fixed(100, 6000, 1.4), "rdp", 5.3515),
        (fixed(100, 6000, 1.4, "zero-out"), "rdp", 5.3515),
    ],
)
def test_the_golden_plan(mechanism, accounted, expected):
    opinion = second_opinion(times(mechanism, 180), delta=DELTA)
    assert opinion.accountant == accounted
    assert opinion.epsilon == pytest.approx(expected, abs=2e-4)
    assert opinion.version == "0.6.0" or opinion.version > "0.6"


@pytest.mark.slow
def test_both_are_above_what_is_proven_from_below():
    """40 random plans. Theirs is an upper bound as well, so neither can lie below the lower bound."""
    rng = np.random.default_rng(7)
    for _ in range(40):
        adjacency = str(rng.choice(["add-remove", "zero-out", "replace-one"]))
        q, z = float(rng.uniform(0.005, 1.0)), float(rng.uniform(0.6, 6.0))
        mechanism = times(poisson(q, z, adjacency) if q < 0.9 else gaussian(z, adjacency), int(rng.integers(1, 60)))
        theirs, ours = second_opinion(mechanism, delta=1e-6), accountant.epsilon(mechanism, delta=1e-6)
        assert theirs.epsilon >= lower_bound.epsilon(mechanism, delta=1e-6) * (1 - 1e-4)
        assert ours <= theirs.epsilon * 1.001 + 1e-6


def test_different_rounds_are_composed():
    mechanism = Composed(parts=((poisson(0.01, 1.0), 100), (poisson(0.2, 3.0), 10), (gaussian(20.0), 5)))
    ours = accountant.epsilon(mechanism, delta=1e-6)
    assert second_opinion(mechanism, delta=1e-6).epsilon == pytest.approx(ours, rel=1e-3)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_of_a_public_order_it_is_that_of_the_client_that_takes_part_most(adjacency):
    mechanism = times(subsample(gaussian(2.0, adjacency), Cyclic(period=60)), 121)
    ours = accountant.epsilon(mechanism, delta=1e-6)
    assert second_opinion(mechanism, delta=1e-6).epsilon == pytest.approx(ours, rel=1e-3)


def test_replace_one_of_a_fixed_size_is_not_the_librarys_own_which_is_too_small():
    mechanism = times(fixed(100, 6000, 1.4), 180)
    assert second_opinion(mechanism, delta=DELTA).epsilon > lower_bound.epsilon(mechanism, delta=DELTA) > 3.2


@pytest.mark.parametrize(
    ("mechanism", "delta", "why"),
    [
        (
            DiscreteGaussian(dimension=10, l2_bound=5.0, share_variance=100.0, adjacency="zero-out"), 1e-5,
            "no account of discrete-gaussian",
        ),
        (
            BernoulliAggregate(dimension=4, floor=0.1, adjacency="zero-out", l2_clip=0.5, cohort=10), 1e-5,
            "no account of bernoulli-aggregate",
        ),
        (
            Composed(parts=((poisson(0.01, 1.0, "zero-out"), 5), (fixed(100, 6000, 1.4, "zero-out"), 5))), 1e-5,
            "fixed-size sampling together with other rounds",
        ),
        (gaussian(1.0), 1e-13, "delta is below 1e-12"),
        (Composed(parts=tuple((poisson(0.01, 1.0 + k / 100), 1) for k in range(51))), 1e-5, "51 different releases"),
    ],
)  # fmt: skip
def test_where_the_library_has_no_account_it_is_said_why(mechanism, delta, why):
    opinion = second_opinion(mechanism, delta=delta)
    assert (opinion.epsilon, opinion.accountant, opinion.delta) == (None, None, delta)
    (remark,) = opinion.remarks(epsilon=1.0, lower_bound=0.9)
    assert remark.startswith("no second opinion: ")
    assert why in remark


def test_noise_that_is_no_float_is_made_one():
    whole = gaussian(1)
    assert second_opinion(whole, delta=1e-5).epsilon == pytest.approx(accountant.epsilon(whole, delta=1e-5), rel=1e-3)


def test_huge_noise_has_none_for_fixed_sizes():
    opinion = second_opinion(fixed(1, 10**6, 1e9), delta=1e-5)
    assert opinion.epsilon is None
    assert "dp-accounting fails" in opinion.note


def test_nobody_ever_drawn_is_no_crash():
    assert second_opinion(poisson(0.0, 1.0), delta=1e-5).epsilon in (None, 0.0)


@pytest.mark.parametrize(
    ("theirs", "ours", "least", "words"),
    [
        (1.0, 1.005, 0.99, "second opinion 1 by dp-accounting 9, pld: agrees"),
        (1.5, 1.0, 0.99, ": far above 1; both are upper bounds, its account is the looser one"),
        (0.9, 1.0, 0.8, ": far below 1; both are upper bounds, and this account is the looser one"),
        (0.9, 1.0, None, ": far below 1"),
        (
            0.9,
            1.0,
            0.95,
            "wrong second opinion 0.9 by dp-accounting 9, pld: no account can state less than 0.95, which",
        ),
        (0.98, 1.0, 0.99, "wrong second opinion"),
    ],
)
def test_what_contradicts_a_bound_or_is_far_off_is_never_silent(theirs, ours, least, words):
    opinion = SecondOpinion(epsilon=theirs, delta=1e-5, accountant="pld", version="9")
    (remark,) = opinion.remarks(epsilon=ours, lower_bound=least)
    assert words in remark
