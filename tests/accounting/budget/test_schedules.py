"""Plans whose clients take part by a schedule over rounds."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
from refusals import refused

from accounting import Plan, budget
from accounting.compose import lower_bound
from accounting.errors import AccountingError, CalibrationError, InvalidParameter, UnsupportedMechanism
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import Allocation, BallsAndBins, Cyclic, MinSeparation, Sampling, from_dict
from accounting.mechanisms.samplings.planned import SAMPLING_CLASSES, CohortSampling
from accounting.mechanisms.samplings.public_orders import CyclicSchedule

GOLDEN = {"clients": 6000, "cohort": 100}


def test_samplers_of_plans():
    assert Plan(**GOLDEN, sampling="balls-and-bins").sampler == BallsAndBins(bins=60)
    assert Plan(**GOLDEN, sampling="allocation", participations=3).sampler == Allocation(participations=3, rounds=180)
    assert Plan(**GOLDEN, sampling="cyclic").sampler == Cyclic(period=60)
    resting = Plan(**GOLDEN, sampling="min-separation", separation=30).sampler
    assert resting == MinSeparation(separation=30, probability=1 / 60)
    assert Plan(clients=6007, cohort=100, sampling="balls-and-bins").sampler == BallsAndBins(bins=60)


def test_a_sampler_is_one_file():
    """Two classes are planned, charged, read from a ledger line, described and drawn."""

    @dataclass(frozen=True, kw_only=True)
    class BackwardsSchedule(CyclicSchedule):
        name: ClassVar[str] = "backwards"

        def sample(self, clients, randomness, number, ids=None):
            return super().sample(clients, randomness, -1 - number, ids)

    @dataclass(frozen=True, kw_only=True)
    class Backwards(CohortSampling):
        name: ClassVar[str] = "backwards"
        words: ClassVar[str] = "backwards: in turn, the last client first"
        has_turns: ClassVar[bool] = True

        def law(self, clients, stream):
            return BackwardsSchedule(period=self.period(clients), stream=stream)

    try:
        plan = Plan(clients=60, cohort=10, sampling="backwards")
        epsilon = budget.epsilon(plan, noise_multiplier=2.0, rounds=12)
        assert epsilon == budget.epsilon(plan.changed(sampling="cyclic"), noise_multiplier=2.0, rounds=12)
        assert from_dict(plan.round(2.0).to_dict()).sampling == plan.sampler == BackwardsSchedule(period=6)
        assert plan.sampling.description(60) == "backwards sampling, 10 of 60 clients"
        assert plan.sampling.cohorts(60).sample(None, 0).tolist() == list(range(5, 60, 6))
    finally:
        del SAMPLING_CLASSES["backwards"], Sampling.kinds["backwards"]


def test_noise_and_rounds_are_solved_for():
    plan = Plan(clients=600, cohort=100, sampling="balls-and-bins")
    z = budget.noise_multiplier(plan, epsilon=1.0, rounds=18)
    assert budget.epsilon(plan, noise_multiplier=z, rounds=18) == pytest.approx(1.0, rel=1e-4)
    assert z < budget.noise_multiplier(Plan(clients=600, cohort=100), epsilon=1.0, rounds=18)
    most = budget.rounds(plan, epsilon=2.0, noise_multiplier=2.0)
    assert budget.epsilon(plan, noise_multiplier=2.0, rounds=most) <= 2.0
    assert budget.epsilon(plan, noise_multiplier=2.0, rounds=most + 1) > 2.0


def test_participations_are_the_most_that_a_client_has():
    plan = Plan(**GOLDEN, sampling="balls-and-bins", participations=2)
    assert budget.rounds(plan, epsilon=5.0, noise_multiplier=1.4) == 120
    refused(InvalidParameter, "120 rounds", budget.epsilon, plan, noise_multiplier=1.4, rounds=121)


@pytest.mark.slow
def test_a_comparison_has_the_same_cohort_by_schedules():
    rows = budget.compare(Plan(clients=600, cohort=100), noise_multiplier=1.4, rounds=12)
    found = {row.plan.sampling.name: row for row in rows}
    assert {"balls-and-bins", "cyclic", "poisson", "fixed", "all"} == set(found)
    assert found["balls-and-bins"].epsilon < rows[2].epsilon < found["cyclic"].epsilon
    assert found["balls-and-bins"].to_dict()["participations"] == 2
    own = budget.compare(
        Plan(clients=600, cohort=100, sampling="allocation", participations=2), noise_multiplier=1.4, rounds=12
    )
    assert own[0].plan.sampling.name == "allocation"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sampling": "allocation"}, "participations is missing"),
        ({"sampling": "min-separation"}, "separation is missing"),
        ({"sampling": "poisson", "participations": 3}, "participations=3"),
        ({"sampling": "cyclic", "separation": 3}, "separation=3"),
        ({"sampling": "min-separation", "separation": 61}, "cannot rest for"),
        ({"sampling": "balls-and-bins", "adjacency": "replace-one"}, "replace-one"),
        ({"sampling": "balls-and-bins", "mechanism": "distributed-gaussian", "adjacency": "zero-out"}, "cohort size"),
        ({"sampling": "balls-and-bins", "mechanism": "discrete-gaussian", "dimension": 9}, "placement"),
        ({"sampling": "balls-and-bins", "mechanism": "discrete-gaussian", "dimension": 9, "placement": "server",
          "secure": True}, "secure"),
        ({"sampling": "balls-and-bins", "mechanism": "bernoulli-aggregate", "dimension": 9, "edge": 0.1,
          "clip_norm": 0.5}, "balls-and-bins"),
    ],
)  # fmt: skip
def test_what_has_no_account_is_refused(fields, words):
    with pytest.raises((InvalidParameter, UnsupportedMechanism, CalibrationError, AccountingError), match=words):
        Plan(**GOLDEN, **fields)


def test_integer_noise_of_the_server_on_a_plain_sum():
    plan = Plan(**GOLDEN, sampling="balls-and-bins", mechanism="discrete-gaussian", dimension=1000, placement="server")
    gaussian = Plan(**GOLDEN, sampling="balls-and-bins")
    found = budget.epsilon(plan, noise_multiplier=1.4, rounds=60)
    assert found == pytest.approx(budget.epsilon(gaussian, noise_multiplier=1.4, rounds=60), rel=0.02)


PUBLIC = {"sampling": "cyclic"}
AFTER = {
    "cyclic": PUBLIC,
    "banded": PUBLIC | {"noise": "banded", "bands": 1},
    "balls-and-bins": {"sampling": "balls-and-bins", "participations": 3},
    "allocation": {"sampling": "allocation", "participations": 1},
}


@pytest.mark.parametrize("name", AFTER)
def test_a_schedule_does_not_go_on_with_that_of_an_earlier_run(name):
    """Both of 30 rounds, half a period: in each a client may take part once. Twice 1.4 is once 1.4 / sqrt(2)."""
    first = Plan(clients=6000, cohort=100, **AFTER[name])
    second = Plan(clients=6000, cohort=100, before=first.run(1.4, 30), **AFTER[name])
    stated = budget.epsilon(second, noise_multiplier=1.4, rounds=30)
    assert stated >= lower_bound.epsilon(second.run(1.4, 30), delta=first.delta)
    if "cyclic" in AFTER[name].values():
        assert stated == pytest.approx(smallest_epsilon(first.delta, mu=math.sqrt(2) / 1.4), rel=1e-6)
    else:  # what two schedules of different names show
        assert stated >= 0.34307


def test_every_run_has_a_schedule_of_its_own():
    plan = Plan(clients=6000, cohort=100, **PUBLIC)
    for runs in (1, 2, 3):
        stated = budget.epsilon(plan, noise_multiplier=1.4, rounds=30)
        assert stated == pytest.approx(smallest_epsilon(plan.delta, mu=math.sqrt(runs) / 1.4), rel=1e-9)
        plan = Plan(clients=6000, cohort=100, before=plan.run(1.4, 30), **PUBLIC)
