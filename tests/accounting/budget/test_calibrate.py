"""The solver: the smallest x that meets a target, whatever the shape of the falling cost."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refused

from accounting import budget
from accounting.budget import Plan, calibrate
from accounting.errors import AccountingError, CalibrationError


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
        refused(CalibrationError, "not met by any noise", calibrate.smallest, cost, target, name="noise")
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


@given(
    steps=st.lists(st.floats(0.01, 100.0), min_size=2, max_size=6, unique=True),
    target=st.floats(0.02, 50.0),
    off=st.floats(0.8, 1.25),
    ends=st.sampled_from([None, 0.0]),
)
def test_plateaus_with_a_quick_cost_nearly_equal(steps, target, off, ends):
    """A staircase, whose slope is 0, as of noise variances that are whole numbers; it may end at 0."""
    heights = [math.inf, *sorted(steps, reverse=True), *([] if ends is None else [ends])]

    def cost(x):
        return heights[min(int(x), len(heights) - 1)]

    if min(heights[-1], off * heights[-1]) > target:
        with pytest.raises(CalibrationError, match="not met by any noise"):
            calibrate.certified_smallest(cost, lambda x: off * cost(x), target, name="noise")
    elif heights[-1] <= target and off * heights[-1] <= target:
        x = calibrate.certified_smallest(cost, lambda x: off * cost(x), target, name="noise")
        first = next(i for i in range(len(heights)) if heights[i] <= target)
        assert cost(x) <= target
        assert first <= x <= first * (1 + 2 * calibrate.TOLERANCE)


@given(threshold=st.floats(1e-2, 1e4), power=st.floats(0.1, 8.0), off=st.floats(0.9, 1.1))
def test_power_laws_with_a_quick_cost_nearly_equal(threshold, power, off):
    calls = []

    def cost(x):
        calls.append(x)
        return (threshold / x) ** power

    x = calibrate.certified_smallest(cost, lambda x: off * (threshold / x) ** power, 1.0, name="noise")
    assert cost(x) <= 1.0
    assert threshold <= x * (1 + 1e-12)
    assert x <= threshold * (1 + 2 * calibrate.TOLERANCE)
    assert len(calls) <= 5  # it takes long


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("scale", [1, 2, 3])
def test_integer_noise_of_few_steps_is_calibrated(scale):
    """Its variance is a whole number, so epsilon is constant between them."""
    plan = Plan(clients=40, cohort=10, sampling="fixed", mechanism="discrete-gaussian", scale=scale, dimension=27)
    z = budget.noise_multiplier(plan, epsilon=3, rounds=2)
    assert budget.epsilon(plan, noise_multiplier=z, rounds=2) <= 3
    assert budget.epsilon(plan, noise_multiplier=z * (1 - 3e-6), rounds=2) > 3


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("epsilon", "delta"), [(1e-12, 1e-200), (1e-300, 1e-300), (50, 1 - 1e-13)])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_targets_at_the_ends_of_their_domains_have_noise_or_an_error(epsilon, delta, sampling):
    """The square of so small a shift is 0, which nothing may be divided by."""
    plan = Plan(clients=1000, cohort=10, sampling=sampling, delta=delta)
    try:
        z = budget.noise_multiplier(plan, epsilon=epsilon, rounds=3)
    except AccountingError as refusal:
        assert "target" in str(refusal) or "must be at least 1e-09" in str(refusal)
    else:
        assert budget.epsilon(plan, noise_multiplier=z, rounds=3) <= epsilon
