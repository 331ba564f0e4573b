"""The solver: the smallest x that meets a target, whatever the shape of the falling cost."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accounting.budget import calibrate
from accounting.errors import CalibrationError


@given(
    threshold=st.floats(1e-4, 1e6), power=st.floats(0.1, 8.0), target=st.floats(1e-6, 1e6), start=st.floats(1e-3, 1e6)
)
def test_power_laws(threshold, power, target, start):
    def cost(x):
        return target * (threshold / x) ** power

    x = calibrate.smallest(cost, target, name="noise", start=start)
    assert cost(x) <= target
    assert threshold <= x * (1 + 1e-12)
    assert x <= threshold * (1 + 2 * calibrate.TOLERANCE)


@given(threshold=st.floats(1e-3, 1e3), start=st.floats(1e-3, 1e3))
def test_infinite_until_the_threshold(threshold, start):
    def cost(x):
        return math.inf if x < threshold else 1.0

    x = calibrate.smallest(cost, 1.0, name="noise", start=start)
    assert threshold <= x <= threshold * (1 + 2 * calibrate.TOLERANCE)


@given(threshold=st.floats(1e-3, 1e3), start=st.floats(1e-3, 1e3))
def test_zero_from_the_threshold_on(threshold, start):
    """The cost may reach 0, whose logarithm is not finite."""
    x = calibrate.smallest(lambda x: 5.0 if x < threshold else 0.0, 1.0, name="noise", start=start)
    assert threshold <= x <= threshold * (1 + 2 * calibrate.TOLERANCE)


@given(levels=st.lists(st.floats(0.01, 100.0), min_size=2, max_size=6, unique=True), target=st.floats(0.02, 50.0))
def test_plateaus(levels, target):
    """A staircase: its steps at 1, 2, 3, ...; the answer is the first step that is low enough."""
    steps = sorted(levels, reverse=True)

    def cost(x):
        return steps[min(int(x), len(steps) - 1)] if x >= 1 else 200.0

    if steps[-1] > target:
        with pytest.raises(CalibrationError, match="not met by any noise"):
            calibrate.smallest(cost, target, name="noise")
        return
    first = next(i for i in range(1, len(steps)) if steps[i] <= target)
    x = calibrate.smallest(cost, target, name="noise")
    assert first <= x <= first * (1 + 2 * calibrate.TOLERANCE)


def test_a_wobbling_cost_still_ends_below_the_target():
    """Grids make a cost uneven by a little; the result holds as evaluated."""

    def cost(x):
        return (1 + 1e-5 * math.sin(1e5 * x)) / x

    x = calibrate.smallest(cost, 0.5, name="noise")
    assert cost(x) <= 0.5
    assert x == pytest.approx(2, rel=1e-4)


@pytest.mark.parametrize("cost", [math.inf, 2.0])
def test_a_target_that_nothing_meets_is_an_error(cost):
    with pytest.raises(CalibrationError, match=r"target 1.0 is not met by any noise.*Raise the target"):
        calibrate.smallest(lambda x: cost, 1.0, name="noise")


@pytest.mark.parametrize("cost", [0.0, 0.5])
def test_a_target_that_everything_meets_is_an_error(cost):
    with pytest.raises(CalibrationError, match=r"target 1.0 is met by every noise.*Lower the target"):
        calibrate.smallest(lambda x: cost, 1.0, name="noise")


@given(threshold=st.integers(0, 10**7))
@example(threshold=0)
@example(threshold=1)
@example(threshold=2)
def test_largest_count(threshold):
    calls = []

    def cost(n):
        calls.append(n)
        return 1.0 if n <= threshold else 1.0 + n

    assert calibrate.largest_count(cost, 1.0, name="rounds") == threshold
    assert len(calls) <= 2 * math.log2(threshold + 2) + 3
    assert min(calls) >= 1


def test_largest_count_with_infinite_costs():
    assert calibrate.largest_count(lambda n: 0.5 if n < 1000 else math.inf, 1.0, name="rounds") == 999


def test_a_count_without_end_is_an_error():
    with pytest.raises(CalibrationError, match=r"not reached by 1024 rounds: .*unlimited"):
        calibrate.largest_count(lambda n: 0.0, 1.0, name="rounds", limit=1024)
