"""Printed guarantees: on the safe side of the double, no further from it than the last digit, and as short as that."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.rounding import downwards, upwards

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(min_value=1e-12, max_value=1e9),
    st.decimals(min_value=0, max_value=1000, places=4).map(float),
    st.integers(min_value=-(10**30), max_value=10**30),
)


def last_digit(shown):
    """The worth of one unit in the last place that is written."""
    mantissa, _, power = shown.partition("e")
    return Fraction(10) ** (int(power or 0) - len(mantissa.partition(".")[2]))


@given(NUMBERS, st.integers(min_value=2, max_value=8))
def test_typed_back_it_is_on_the_safe_side(value, digits):
    high, low = upwards(value, digits=digits), downwards(value, digits=digits)
    assert float(low) <= float(value) <= float(high)


@given(NUMBERS)
def test_one_digit_less_would_be_on_the_wrong_side(value):
    exact = Fraction(value) if isinstance(value, int) else Fraction(repr(value))
    high, low = upwards(value), downwards(value)
    assert Fraction(low) <= exact <= Fraction(high)
    assert Fraction(high) - last_digit(high) < exact < Fraction(low) + last_digit(low)
    if exact:
        assert Fraction(high) - Fraction(low) <= max(abs(exact) / 1000, Fraction(0))  # four significant digits


@given(st.floats(min_value=-(2**40), max_value=2**40))
def test_the_two_are_mirror_images(value):
    assert Fraction(upwards(value)) == -Fraction(downwards(-value))


@pytest.mark.parametrize(
    ("value", "high", "low"),
    [
        (0.00794505, "0.007946", "0.007945"),
        (1.0852200457, "1.0853", "1.0852"),
        (0.630291544910428, "0.6303", "0.6302"),
        (2.9999999, "3.0000", "2.9999"),
        (0.0999999, "0.10000", "0.09999"),
        (99999.99999, "100000.0000", "99999.9999"),
        (0.99999e-4, "1.0000e-04", "9.999e-05"),
        (1e300, "1e+300", "1e+300"),
        (5e-324, "5e-324", "5e-324"),
        (1234567.8, "1.235e+06", "1.234e+06"),
        (-0.00794505, "-0.007945", "-0.007946"),
    ],
)
def test_of_known_numbers(value, high, low):
    assert (upwards(value), downwards(value)) == (high, low)


@pytest.mark.parametrize(
    ("given", "shown"),
    [(3.0, "3"), (1.4, "1.4"), (0.1, "0.1"), (1e-5, "1e-05"), (100, "100"), (0.05, "0.05"), (2.5e7, "2.5e+07"),
     (0.0, "0"), (-0.0, "0"), (0, "0"), (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"), (None, "–"),
     (np.float64(1.4), "1.4"), (np.int64(7), "7"), (10**400, "1e+400")],
)  # fmt: skip
def test_what_the_digits_hold_is_written_as_it_was_given(given, shown):
    assert upwards(given) == downwards(given) == shown


def test_more_digits_where_they_are_asked_for():
    assert upwards(2.0 / 3, digits=6) == "0.666667"
    assert downwards(2e-7 / 3, digits=6) == "6.66666e-08"


def test_rounding_to_nearest_is_found():
    """The planted fault: what was printed before."""
    rng = np.random.default_rng(1)
    values = rng.lognormal(sigma=3, size=1000)
    assert sum(float(f"{value:.4f}") < value for value in values) > 400  # half of 1000, less 6 standard deviations
    assert not any(float(upwards(value)) < value for value in values)
