"""Roots are those of scipy, to the last bit."""

import math

import numpy as np
import pytest
from refusals import refused
from scipy import optimize

from accounting.roots import brentq, crossing_bracket, smallest_passing

FUNCTIONS = (
    (lambda x: x**3 - 2 * x - 5, 1.0, 4.0),
    (lambda x: math.exp(-x) - 1e-9, 0.0, 100.0),
    (lambda x: math.log(max(math.exp(-x * x), 1e-300) / 1e-7), 0.0, 1e3),  # a plateau on the right
    (lambda x: math.copysign(1.0, x - 0.1), -3.0, 5.0),  # a jump
    (lambda x: (x - 1) ** 9, 0.0, 2.5),
    (lambda x: x, -1e-300, 1e-310),
    (lambda x: math.atan(1e8 * (x - 0.7)), 0.0, 1.0),
    (lambda x: 1e200 * (x - math.pi), 3.0, 4.0),
    (lambda x: 1 / x - 1e-5, 1e-12, 1e12),
    (lambda x: x - 2.0, 2.0, 9.0),
    (lambda x: x - 9.0, 2.0, 9.0),
)


@pytest.mark.parametrize("tolerances", [(1e-300, 1e-14), (1e-12, 1e-15), (1e-3, 1e-10)])
@pytest.mark.parametrize("case", range(len(FUNCTIONS)))
def test_roots_and_steps_are_those_of_scipy(case, tolerances):
    function, low, high = FUNCTIONS[case]
    xtol, rtol = tolerances

    def points(find, start, end):
        asked = []
        root = find(lambda x: asked.append(x) or function(x), start, end, xtol=xtol, rtol=rtol, maxiter=500)
        return [*asked, root]

    for ends in ((low, high), (high, low)):
        assert points(brentq, *ends) == points(optimize.brentq, *ends)


def test_roots_of_random_polynomials_are_those_of_scipy():
    rng = np.random.default_rng(5)
    compared = 0
    for _ in range(2000):
        polynomial = np.polynomial.Polynomial(rng.standard_normal(rng.integers(2, 9)) * 10.0 ** rng.integers(-8, 8))
        low, high = np.sort(rng.uniform(-3, 3, 2))
        if polynomial(low) * polynomial(high) < 0:
            ours = brentq(polynomial, low, high, xtol=1e-300, rtol=1e-14)
            assert ours == optimize.brentq(polynomial, low, high, xtol=1e-300, rtol=1e-14, maxiter=500)
            compared += 1
    assert compared > 400


def test_a_root_that_cannot_be_found_is_an_error():
    refused(ValueError, "no sign change", brentq, lambda x: x * x + 1, -1.0, 1.0, xtol=1e-9, rtol=1e-9)
    refused(ValueError, "nan", brentq, lambda x: x if abs(x) > 0.5 else math.nan, -1.0, 1.1, xtol=1e-9, rtol=1e-9)
    refused(RuntimeError, "after 3 steps", brentq, lambda x: x**3 - 2, 0.0, 9.0, xtol=1e-300, rtol=1e-15, maxiter=3)


@pytest.mark.parametrize("first", [1, 2, 3, 4, 5, 7, 8, 100, 1_000_003])
def test_the_first_whole_number_that_is_enough(first):
    assert smallest_passing(lambda count: count >= first) == first


@pytest.mark.parametrize("at", [1e-9, 0.3, 1.0, 77.0])
def test_a_crossing_is_between_the_two_points(at):
    below, above = crossing_bracket(lambda x: x >= at, 1e-3, rtol=1e-9, limit=1e3)
    assert below < at <= above <= below * (1 + 2e-9)


def test_a_crossing_beyond_the_limit_is_infinite():
    assert crossing_bracket(lambda x: x >= 1e4, 1.0, rtol=1e-9, limit=1e3) == (512.0, math.inf)
