"""The best half-line, against brute force and in many digits."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from accounting.gaussian import sampled_profiles

SIGMAS = [0.01, 0.1, 0.5, 1.0, 10.0, 1000.0]


def supremum(near, middle, far, shift):
    with np.errstate(divide="ignore"):
        logs = [np.log(np.array([weight])) for weight in (near, middle, far)]
    return float(sampled_profiles.half_line_supremum(*logs, shift)[0])


def gain(t, near, middle, far, shift):
    return far * ndtr(t + shift) - middle * ndtr(t) - near * ndtr(t - shift)


@given(near=st.floats(1e-12, 1e6), middle=st.floats(0, 1e6), far=st.floats(1e-12, 1), sigma=st.floats(0.02, 1000))
def test_no_half_line_does_better(near, middle, far, sigma):
    shift = 1 / sigma
    value = supremum(near, middle, far, shift)
    best_at = (
        math.log(far / near) / (2 * shift) if middle == 0 else (math.log(far) - math.log(middle)) / shift - shift / 2
    )
    grid = np.concatenate([np.linspace(-40, 40, 4001), np.linspace(best_at - 10, best_at + 10, 2001)])
    assert value >= np.max(gain(grid, near, middle, far, shift)) - 1e-14 * (near + middle + far)
    assert 0 <= value <= far * (1 + 1e-15)


@pytest.mark.slow_but_one_in(11)
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("q", [1e-9, 1e-3, 0.5, 1 - 1e-12, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0, 20.0])
def test_equals_many_digits(sigma, q, epsilon):
    """Poisson replace-one's weights; the root is found by bisection on the derivative in 50 digits."""
    with mp.workdps(50):
        s, prob, gamma = 1 / mp.mpf(sigma), mp.mpf(q), mp.exp(mp.mpf(epsilon))
        near, middle, far = gamma * prob, (1 - prob) * (gamma - 1), prob

        def falls(t):
            return far * mp.npdf(t + s) - middle * mp.npdf(t) - near * mp.npdf(t - s) < 0

        low, high = mp.mpf(-10) * (s + epsilon * sigma + 1), mp.mpf(10) * (s + 1)
        for _ in range(180):
            t = (low + high) / 2
            low, high = (low, t) if falls(t) else (t, high)
        exact = far * mp.ncdf(t + s) - middle * mp.ncdf(t) - near * mp.ncdf(t - s)
    value = supremum(float(near), float(middle), float(far), float(s))
    assert value == pytest.approx(float(exact), rel=1e-9, abs=4e-16 * q * math.exp(epsilon))


def test_without_weights_on_the_losing_side_nothing_is_lost():
    assert supremum(1e-300, 0.0, 0.25, 1.0) == pytest.approx(0.25)


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-12, 1.0, 40.0, 1e4])
def test_log_expm1(size):
    exact = -mp.inf if size == 0 else mp.log(mp.expm1(mp.mpf(size)))
    assert float(sampled_profiles.log_expm1(np.array(size))) == pytest.approx(float(exact), rel=1e-14)


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 0.0), (1.0, -math.inf), (1e-18, -1e-18)])
def test_log_complement(probability, expected):
    assert sampled_profiles.log_complement(probability) == expected
