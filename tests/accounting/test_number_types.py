"""Arrays of few digits, or of unsigned numbers, are what they say: all computing is in double precision."""

from functools import partial

import numpy as np
import pytest

from accounting import Plan, gaussian
from accounting.bernoulli import debias
from accounting.bernoulli.divergence import divergence
from accounting.bernoulli.exact import channel_profile
from accounting.compose.profiles import delta_from_curve
from accounting.errors import InvalidParameter
from accounting.gaussian import sampled_profiles, subsampling
from accounting.gaussian.sampled_renyi import poisson_renyi
from accounting.integers.discrete_gaussian import lattice_distortion

ROUND = {"sampling_probability": 0.1, "noise_multiplier": 0.7}
COIN = {"c": 0.1, "noise_std": 0.3}

EPSILONS = {
    "gaussian": partial(gaussian.privacy_profile, mu=0.7),
    "replacement, fixed size": partial(sampled_profiles.fixed_size_replacement_profile, **ROUND),
    "zeroing": partial(sampled_profiles.zeroing_profile, **ROUND),
    "restoring": partial(sampled_profiles.restoring_profile, **ROUND),
    "removal": partial(sampled_profiles.removal_profile, **ROUND),
    "addition": partial(sampled_profiles.addition_profile, **ROUND),
    "replacement, poisson": partial(sampled_profiles.poisson_replacement_profile, **ROUND),
    "coins": partial(channel_profile, p=[0.3, 0.8], q=[0.2, 0.9]),
    "curve": partial(delta_from_curve, orders=[2.0, 5.0], rho=[0.1, 0.3]),
    "lattice": lattice_distortion,
}
FRACTIONS = {
    "mean": partial(debias.clipped_mean, **COIN),
    "slope": partial(debias.clipped_mean_slope, **COIN),
    "inverse": partial(debias.invert, **COIN),
    "divergence": partial(divergence, 2.0, q=0.25),
    "renyi": lambda q: poisson_renyi(2.5, sampling_probability=q, noise_multiplier=1.0),
}


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.uint8])
@pytest.mark.parametrize("name", EPSILONS)
def test_epsilons(name, kind):
    given = np.array([0.1, 1.0, 2.7, 3.0]).astype(kind)
    assert np.array_equal(EPSILONS[name](given), EPSILONS[name](given.astype(float)))


@pytest.mark.parametrize("amplified", [subsampling.poisson, subsampling.fixed_size])
def test_orders(amplified):
    given = np.array([2, 3, 30])
    expected = amplified(given.astype(float), lambda a: a / 9, sampling_probability=0.1)
    for kind in (np.uint8, np.int16, np.float32):
        assert np.array_equal(amplified(given.astype(kind), lambda a: a / 9, sampling_probability=0.1), expected)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("name", FRACTIONS)
def test_fractions(name, kind):
    given = np.array([0.2, 0.3, 0.45, 0.6]).astype(kind)
    assert np.array_equal(FRACTIONS[name](given), FRACTIONS[name](given.astype(float)))


@pytest.mark.parametrize("name", ["cohort", "cohort_cap", "rounds"])
def test_an_array_in_place_of_a_number_is_one_error(name):
    with pytest.raises(InvalidParameter, match=rf"{name}=array\(\[1, 2\]\): must be a whole number"):
        Plan(**{"clients": 100, "cohort": 10, name: np.array([1, 2])})
