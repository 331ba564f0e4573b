"""Plans whose noise is correlated over rounds, against the theorem's table."""

import math

import pytest

from accounting import Plan, budget
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.factorisation import sensitivity, square_root
from accounting.gaussian import smallest_epsilon

GOLDEN = {"clients": 6000, "cohort": 100, "noise": "banded"}
DELTA = 6000**-1.1


@pytest.mark.parametrize("bands", [1, 10, 60, 180])
def test_a_public_order_is_one_gaussian_of_the_sensitivity(bands):
    plan = Plan(**GOLDEN, sampling="cyclic", bands=bands)
    sens = sensitivity(square_root(bands), rounds=180, separation=60)
    found = budget.epsilon(plan, noise_multiplier=5.0, rounds=180)
    assert found == pytest.approx(smallest_epsilon(DELTA, mu=sens / 5.0), rel=1e-4)
    assert found >= smallest_epsilon(DELTA, mu=sens / 5.0)


def test_one_band_is_independent_noise():
    own, independent = Plan(**GOLDEN, sampling="cyclic", bands=1), Plan(clients=6000, cohort=100, sampling="cyclic")
    of = {"noise_multiplier": 3.0, "rounds": 180}
    assert budget.epsilon(own, **of) == pytest.approx(budget.epsilon(independent, **of))
    poisson = Plan(**GOLDEN, bands=1)
    assert budget.epsilon(poisson, **of) == pytest.approx(budget.epsilon(Plan(clients=6000, cohort=100), **of))


def test_the_same_epsilon_at_a_quarter_of_the_error():
    plan = Plan(**GOLDEN, sampling="cyclic", bands=60)
    z = budget.noise_multiplier(plan, epsilon=2.0, rounds=180)
    alone = budget.noise_multiplier(Plan(**GOLDEN, sampling="cyclic", bands=1), epsilon=2.0, rounds=180)
    assert alone * math.sqrt(181 / 2) / plan.correlated.prefix_error(z, 180) == pytest.approx(3.653, abs=2e-3)


@pytest.mark.parametrize(("epsilon", "bands", "z", "error"), [(2.02, 6, 1.352, 6.27), (4.0, 15, 1.213, 4.14)])
def test_sampled_groups_are_the_table_of_the_theorem(epsilon, bands, z, error):
    """Its z is of noise over the norm of the coefficients."""
    plan = Plan(**GOLDEN, bands=bands)
    found = budget.solve(plan, epsilon=epsilon, rounds=180)
    norm = math.sqrt(sum(c * c for c in square_root(bands)))
    assert found.noise_multiplier / norm == pytest.approx(z, abs=4e-3)
    assert found.to_dict()["prefix_error_in_clips"] == pytest.approx(error, abs=0.02)
    assert any("a plan only" in note for note in found.notes)


def test_fewer_participations_need_less():
    whole, twice = (Plan(**GOLDEN, sampling="cyclic", bands=60, participations=k) for k in (None, 2))
    of = {"noise_multiplier": 5.0, "rounds": 180}
    assert budget.epsilon(twice, **of) < budget.epsilon(whole, **of)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sampling": "cyclic"}, "bands is missing"),
        ({"sampling": "balls-and-bins", "bands": 3}, "balls-and-bins"),
        ({"sampling": "fixed", "bands": 3}, "fixed"),
        ({"bands": 61}, "at most 60 bands"),
        ({"bands": 0}, "bands=0"),
        ({"noise": "independent", "bands": 3}, "independent"),
        ({"noise": "blt", "bands": 3}, "noise='blt'"),
        ({"bands": 3, "mechanism": "skellam", "dimension": 3}, "skellam"),
    ],
)
def test_what_has_no_account_is_refused(fields, words):
    with pytest.raises((InvalidParameter, UnsupportedMechanism), match=words):
        Plan(**{**GOLDEN, **fields})
