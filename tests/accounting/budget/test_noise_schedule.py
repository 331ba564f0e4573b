"""Rounds whose noise differs by a plan: each is charged as it is."""

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from refusals import refused

from accounting import Plan, budget
from accounting.budget import NoiseSchedule
from accounting.compose import accountant
from accounting.errors import InvalidParameter
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import gaussian_of, in_order

DELTA = 6000**-1.1
FACTORS = (1.3, 1.0, 0.7)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 7, 10, 61])
def test_every_round_is_in_one_part(rounds):
    for parts in range(1, min(rounds, 8) + 1):
        schedule = NoiseSchedule(factors=tuple(float(part + 1) for part in range(parts)), rounds=rounds)
        one_by_one = [schedule.factor(number) for number in range(rounds)]
        together = [factor for factor, count in schedule.parts for _ in range(count)]
        assert one_by_one == together
        assert set(one_by_one) == set(schedule.factors)
        counts = [count for _, count in schedule.parts]
        assert max(counts) - min(counts) <= 1
    assert schedule.factor(rounds) == schedule.factor(-1) == schedule.smallest_factor


def test_all_clients_in_every_round_is_the_closed_form():
    """The shifts of Gaussians add in squares."""
    plan = Plan(clients=100, cohort=100, sampling="all", noise_schedule=FACTORS, delta=1e-5)
    shift = math.sqrt(sum(10 / (20.0 * factor) ** 2 for factor in FACTORS))
    found = budget.epsilon(plan, noise_multiplier=20.0, rounds=30)
    assert found == pytest.approx(smallest_epsilon(1e-5, mu=shift), rel=1e-9)


def test_sampled_rounds_are_what_dp_accounting_composes():
    plan = Plan(clients=6000, cohort=100, noise_schedule=FACTORS)
    found = budget.solve(plan, noise_multiplier=1.2, rounds=60)
    account = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for factor in FACTORS:
        noise = dp_accounting.GaussianDpEvent(1.2 * factor)
        account.compose(dp_accounting.PoissonSampledDpEvent(100 / 6000, noise), 20)
    assert found.epsilon == pytest.approx(account.get_epsilon(DELTA), rel=1e-4)
    assert found.lower_bound <= min(found.epsilon, account.get_epsilon(DELTA))


def test_the_last_round_costs_what_its_noise_says():
    """Not the average: a schedule that is quiet at the end only costs more than equal noise of the same mean square."""
    quiet_end = Plan(clients=6000, cohort=100, noise_schedule=(1.1,) * 9 + (0.3,))
    mean_square = math.sqrt((9 * 1.1**2 + 0.3**2) / 10)
    of = {"rounds": 60}
    assert budget.epsilon(quiet_end, noise_multiplier=1.0, **of) > 2 * budget.epsilon(
        Plan(clients=6000, cohort=100), noise_multiplier=mean_square, **of
    )


def test_noise_for_an_epsilon():
    plan = Plan(clients=6000, cohort=100, noise_schedule=FACTORS)
    z = budget.noise_multiplier(plan, epsilon=1.01, rounds=180)
    assert 1.009 < budget.epsilon(plan, noise_multiplier=z, rounds=180) <= 1.01


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "all"])
def test_the_first_rounds_of_a_run(sampling):
    plan = Plan(clients=60, cohort=10, sampling=sampling, noise_schedule=FACTORS)
    whole, part = plan.run(4.0, 9), plan.first_rounds(4.0, 5, of=9)
    assert [count for _, count in in_order(whole)] == [3, 3, 3]
    assert [(gaussian_of(one).noise_multiplier, count) for one, count in in_order(part)] == [(5.2, 3), (4.0, 2)]
    one, other = (accountant.epsilon(run, delta=1e-3) for run in (part, whole))
    assert one < other


def test_rounds_beyond_the_run_are_charged_with_the_least_noise():
    """They were left out: 9 rounds of a run of 3 cost what 3 do."""
    plan = Plan(clients=100, cohort=100, sampling="all", noise_schedule=(2.0, 1.0, 3.0), delta=1e-5)
    found = accountant.epsilon(plan.first_rounds(5.0, 9, of=3), delta=1e-5)
    shift = math.sqrt(1 / 10**2 + 1 / 15**2 + 7 / 5**2)
    assert found == pytest.approx(smallest_epsilon(1e-5, mu=shift), rel=1e-9)


def test_a_plan_of_equal_noise_has_no_first_rounds():
    with pytest.raises(InvalidParameter, match=r"noise_schedule is missing.*Use run"):
        Plan(clients=60, cohort=10).first_rounds(1.0, 3, of=9)


def test_what_was_released_before_comes_first():
    before = Plan(clients=60, cohort=10).run(3.0, 4)
    plan = Plan(clients=60, cohort=10, noise_schedule=(1.0, 2.0), before=before)
    assert [count for _, count in in_order(plan.run(3.0, 6))] == [4 + 3, 3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_schedule": ()}, "must be a list of 1 to 1,000"),
        ({"noise_schedule": "1.0"}, "must be a list of 1 to 1,000"),
        ({"noise_schedule": (1.0, 0.0)}, "finite number above 0"),
        ({"noise_schedule": (1.0, math.nan)}, "finite number above 0"),
        ({"noise_schedule": (1e12, 1.0)}, r"noise_schedule.*1e-06 to 1e\+06"),
        ({"noise_schedule": (1.0, 1e-7)}, r"noise_schedule.*1e-06 to 1e\+06"),
        ({"sampling": "balls-and-bins", "participations": 3}, "equal noise"),
        ({"sampling": "cyclic"}, "equal noise"),
        ({"noise": "banded", "bands": 3, "sampling": "cyclic"}, "is for independent"),
        ({"mechanism": "skellam", "dimension": 10}, "is for gaussian"),
        ({"mechanism": "bernoulli-aggregate", "dimension": 10, "edge": 0.1, "clip_norm": 1.0}, "is for gaussian"),
    ],
)
def test_what_has_no_account_is_refused(change, words):
    refused(InvalidParameter, words, Plan, **{"clients": 60, "cohort": 10, "noise_schedule": FACTORS, **change})


def test_what_needs_a_number_of_rounds_is_refused():
    plan = Plan(clients=60, cohort=10, noise_schedule=FACTORS)
    refused(InvalidParameter, "Give rounds", budget.rounds, plan, epsilon=1.0, noise_multiplier=3.0)
    refused(InvalidParameter, "each part must have a round", budget.epsilon, plan, noise_multiplier=3.0, rounds=2)
    refused(InvalidParameter, "rounds=0", budget.epsilon, plan, noise_multiplier=3.0, rounds=0)
    refused(InvalidParameter, "equal noise", budget.compare, plan, noise_multiplier=3.0, rounds=9)
