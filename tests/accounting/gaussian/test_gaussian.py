"""The closed-form Gaussian against the same formula in 60 digits."""

import math

import numpy as np
import pytest
from reference import normal
from reference.shorthand import times
from refusals import refused
from scipy.special import erfinv

from accounting import Adjacency, Gaussian, gaussian, guarantee
from accounting.errors import InvalidParameter

pytestmark = pytest.mark.slow_but_one_in(3)

SHIFTS = [1e-3, 0.03, 0.5, 1.0, 3.0, 30.0, 1e3]
NEAR_ONE = [0.9, 1 - 1e-6, 1 - 1.6e-12, 1 - 1e-15, 1 - 2**-53]


@pytest.mark.parametrize("mu", SHIFTS)
@pytest.mark.parametrize("in_shifts", [-20.0, -3.0, -0.5, 0.0, 0.1, 1.0, 5.0, 30.0])
def test_profile_equals_many_digits(mu, in_shifts):
    """Rounding may move epsilon by a few units in the last place of log delta; it moves delta accordingly."""
    epsilon = mu * in_shifts + mu * mu / 2
    exact = normal.profile(epsilon, mu)
    blur = 2e-15 * (1 + abs(float(normal.mp.log(exact))) + abs(epsilon))
    low, high = normal.profile(epsilon + blur, mu), normal.profile(epsilon - blur, mu)
    value = float(gaussian.privacy_profile(epsilon, mu=mu))
    assert float(low) * (1 - 1e-12) <= value <= float(high) * (1 + 1e-12)


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("mu", SHIFTS)
@pytest.mark.parametrize("delta", [1e-300, 1e-100, 1e-12, 1e-5, 0.01, 0.3, 0.5, *NEAR_ONE])
def test_smallest_epsilon_is_just_above_the_exact_one(mu, delta):
    exact = normal.epsilon(delta, mu)
    value, below = gaussian.smallest_epsilon(delta, mu=mu), gaussian.epsilon_from_below(delta, mu=mu)
    room = exact * 3e-12 + 1e-14 * (1 - math.log(delta) - math.log1p(-delta))
    assert exact <= value <= exact + room
    assert exact - room <= below <= exact
    assert normal.profile(value, mu) <= delta


def test_epsilon_near_delta_1_does_not_cancel():
    """3,600 rounds at noise multiplier 1: delta 1 - 1.6e-12 is 1380.8185; from delta itself, 1380.8181."""
    exact = float(normal.epsilon(1 - 1.6e-12, 60.0))
    rounds = times(Gaussian(noise_multiplier=1.0, adjacency=Adjacency.ADD_REMOVE), 3600)
    stated = guarantee(rounds, delta=1 - 1.6e-12)
    assert exact == pytest.approx(1380.8185, abs=1e-4)
    assert exact <= stated.epsilon <= exact * (1 + 1e-11)
    assert exact * (1 - 1e-11) <= stated.lower_bound <= exact


@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 0.9, 1.0, 9.0, 100.0, 1e4])
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5, 0.01, 0.5, *NEAR_ONE])
def test_analytic_noise_is_enough_and_hardly_more(epsilon, delta):
    sensitivity = 2.5
    std = gaussian.noise_std(epsilon, delta, l2_sensitivity=sensitivity)
    assert normal.profile(epsilon, sensitivity / std) <= delta
    slack = 1e-9 + 4e-15 * (1 - math.log(delta)) / epsilon
    assert normal.profile(epsilon, sensitivity / (std * (1 - slack))) > delta


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 0.999])
def test_classical_noise_is_enough_below_epsilon_1(epsilon):
    std = gaussian.noise_std(epsilon, 1e-4, l2_sensitivity=1.0, calibration="classical")
    assert std == pytest.approx(math.sqrt(2 * math.log(1.25e4)) / epsilon)
    assert normal.profile(epsilon, 1 / std) <= 1e-4
    assert gaussian.noise_std(epsilon, 1e-4, l2_sensitivity=1.0) < std


@pytest.mark.parametrize("epsilon", [1.0, 9.0])
def test_classical_noise_is_refused_from_epsilon_1_on(epsilon):
    with pytest.raises(InvalidParameter, match=r"calibration='classical'.*epsilon < 1.*calibration='analytic'"):
        gaussian.noise_std(epsilon, 1e-4, l2_sensitivity=1.0, calibration="classical")


def test_classical_noise_fails_at_epsilon_9():
    """Why it is refused: FedPM's Figure 5 uses it up to about 9, where it delivers 1.7e-4 for a stated 1e-4."""
    std = math.sqrt(2 * math.log(1.25 / 1e-4)) / 9
    delivered = float(normal.profile(9.0, 1 / std))
    assert delivered == pytest.approx(1.7e-4, abs=5e-6)
    assert gaussian.noise_std(9.0, 1e-4, l2_sensitivity=1.0) > std


def test_profile_is_a_hockey_stick():
    """Falling and convex in gamma, 1 - gamma at least, and its own reverse: the worlds are symmetric."""
    epsilon = np.linspace(-6, 6, 241)
    h = gaussian.privacy_profile(epsilon, mu=1.3)
    gamma = np.exp(epsilon)
    slopes = np.diff(h) / np.diff(gamma)
    assert (slopes <= 0).all()
    assert (np.diff(slopes) >= -1e-12).all()
    assert (h >= np.maximum(0, 1 - gamma)).all()
    above = epsilon >= 0
    assert h[::-1][above] == pytest.approx((1 - 1 / gamma + h / gamma)[above], abs=1e-14)


@pytest.mark.parametrize("epsilon", [math.inf, 1e300, -1e300, -math.inf])
def test_profile_at_the_ends(epsilon):
    assert float(gaussian.privacy_profile(epsilon, mu=1.0)) == (0.0 if epsilon > 0 else 1.0)


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, True, "1", None])
def test_shift_epsilon_and_sensitivity_must_be_positive(bad):
    positive = "must be a finite number above 0"
    refused(InvalidParameter, f"mu=.*{positive}", gaussian.privacy_profile, 1.0, mu=bad)
    refused(InvalidParameter, f"epsilon=.*{positive}", gaussian.noise_std, bad, 1e-5, l2_sensitivity=1.0)
    refused(InvalidParameter, f"l2_sensitivity=.*{positive}", gaussian.noise_std, 1.0, 1e-5, l2_sensitivity=bad)


def test_an_unknown_calibration_and_an_epsilon_that_is_no_number_are_refused():
    asked = {"l2_sensitivity": 1.0, "calibration": "exact"}
    refused(InvalidParameter, "calibration='exact': must be 'analytic' or", gaussian.noise_std, 1.0, 1e-5, **asked)
    refused(InvalidParameter, "epsilon=nan", gaussian.privacy_profile, [1.0, math.nan], mu=1.0)


@pytest.mark.parametrize("mu", SHIFTS)
def test_the_total_variation_itself_needs_no_epsilon(mu):
    delta = float(gaussian.privacy_profile(0.0, mu=mu))
    if 0 < delta < 1:
        assert gaussian.smallest_epsilon(delta * (1 + 1e-9), mu=mu) == 0.0
        assert gaussian.smallest_epsilon(delta, mu=mu) <= 1e-13  # rounding of the profile


@pytest.mark.parametrize("delta", [1e-13, 1e-9])
@pytest.mark.parametrize("excess", [1e-7, 1e-4])
def test_epsilons_near_0_are_above_the_exact_one(delta, excess):
    """Rounding of logarithms is a large part of so small a delta."""
    mu = 2 * math.sqrt(2) * float(erfinv(delta)) * (1 + excess)
    exact = normal.epsilon(delta, mu)
    assert 0 < exact <= gaussian.smallest_epsilon(delta, mu=mu) <= 1e-12
    refused(InvalidParameter, "must be at least 1e-09", gaussian.noise_std, float(exact), delta, l2_sensitivity=1.0)
