"""Plans of private records: what a client's own steps cost, in rounds."""

import pytest
from reference.shorthand import times
from refusals import refused

from accounting import Plan, budget
from accounting.compose import accountant
from accounting.errors import InvalidParameter
from accounting.integers.fixed_point import least_scale, rounded_l2
from accounting.mechanisms import DiscreteGaussian, Gaussian, PoissonSampling, subsample
from accounting.mechanisms.samplings.records import RecordBatches

HOSPITALS = {"clients": 10, "unit": "record", "records": 143, "batch_size": 32, "local_steps": 23}
EXACT = {"mechanism": "discrete-gaussian", "dimension": 2410}


def test_epsilon_is_that_of_all_steps_of_all_rounds():
    plan = Plan(**HOSPITALS)
    step = subsample(Gaussian(noise_multiplier=1.1, adjacency="add-remove"), PoissonSampling(probability=32 / 143))
    assert plan.run(1.1, 3) == times(step, 69)
    stated = budget.epsilon(plan, noise_multiplier=1.1, rounds=3)
    assert stated == accountant.epsilon(plan.run(1.1, 3), delta=1e-5)
    assert plan.delta == min(1430**-1.1, 1e-5)


def test_the_least_number_of_records_has_the_largest_epsilon_for_equal_steps_only():
    def epsilon(records, **steps):
        plan = Plan(clients=10, unit="record", records=records, batch_size=32, delta=1e-5, **steps)
        return budget.epsilon(plan, noise_multiplier=2.0, rounds=20)

    assert epsilon(32, local_steps=2) > epsilon(33, local_steps=2) > epsilon(65, local_steps=2)
    assert epsilon(33) > 1.5 * epsilon(32)  # two steps, each with nearly all records
    assert epsilon(65) > epsilon(64)


def test_integer_noise_is_that_of_one_sum_that_is_not_rotated():
    plan = Plan(**HOSPITALS, **EXACT)
    ((step, count),) = plan.run(1.0, 2).parts
    scale = least_scale(2410)
    assert count == 46
    assert step.mechanism == DiscreteGaussian(
        dimension=2410, l2_bound=rounded_l2(scale, 2410), share_variance=scale**2, adjacency="add-remove"
    )
    gaussian = budget.epsilon(Plan(**HOSPITALS), noise_multiplier=1.0, rounds=2)
    assert gaussian < budget.epsilon(plan, noise_multiplier=1.0, rounds=2) < 1.03 * gaussian


@pytest.mark.parametrize("kind", [{}, EXACT], ids=["gaussian", "integers"])
def test_noise_and_rounds_are_solved_for(kind):
    plan = Plan(**HOSPITALS, **kind)
    z = budget.noise_multiplier(plan, epsilon=4.0, rounds=3)
    assert 3.999 < budget.epsilon(plan, noise_multiplier=z, rounds=3) <= 4.0
    rounds = budget.rounds(plan, epsilon=4.0, noise_multiplier=1.9)
    assert budget.epsilon(plan, noise_multiplier=1.9, rounds=rounds) <= 4.0
    assert budget.epsilon(plan, noise_multiplier=1.9, rounds=rounds + 1) > 4.0


def test_the_json_of_a_budget_names_its_unit():
    asked = {"noise_multiplier": 1.0, "rounds": 3, "with_lower_bound": False}
    record = budget.solve(Plan(**HOSPITALS), **asked).to_dict()
    assert record["unit"] == "record"
    assert (record["records"], record["batch_size"], record["local_steps"]) == (143, 32, 23)
    assert record["sampling_probability"] == 32 / 143
    assert budget.solve(Plan(clients=60, cohort=6), **asked).to_dict()["unit"] == "client"


def test_a_plan_is_its_options_again():
    for plan in (Plan(**HOSPITALS), Plan(**HOSPITALS, **EXACT)):
        assert Plan(**plan.options) == plan
        assert Plan.from_options(plan.options) == plan


@pytest.mark.parametrize(("records", "batch", "steps"), [(143, 32, 5), (32, 32, 1), (10, 32, 1)])
def test_one_pass_is_the_default(records, batch, steps):
    found = RecordBatches(records=records, batch_size=batch)
    assert found.steps == steps
    assert found.cohorts(1, "").law.probability == min(batch / records, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cohort": 3}, "cohort=3 with unit='record'"),
        ({"sampling": "fixed"}, "sampling='fixed' with unit='record'"),
        ({"adjacency": "replace-one"}, "adjacency='replace-one' with unit='record'"),
        ({"adjacency": "zero-out"}, "adjacency='zero-out' with unit='record'"),
        ({"mechanism": "skellam", "dimension": 9}, "mechanism='skellam'"),
        ({"noise_schedule": (1.0, 0.5)}, "equal noise in all rounds"),
        ({"records": None}, "records is missing"),
        ({"unit": "user"}, "unit='user': must be one of client, record"),
        ({"unit": "client", "cohort": 3}, "records=143 with sampling='poisson': is for unit 'record'"),
    ],
)
def test_what_has_no_meaning_for_records_is_refused(options, words):
    refused(InvalidParameter, words, Plan, **HOSPITALS | options)
