"""The numbers of docs/participation.md."""

from pathlib import Path

import pytest

from accounting import Plan, budget
from accounting.rounding import downwards, upwards

PAGE = (Path(__file__).parents[3] / "docs" / "participation.md").read_text()
ROWS = {
    "poisson": {},
    "balls-and-bins": {},
    "allocation": {"participations": 3},
    "min-separation": {"separation": 30},
    "cyclic": {},
}


def cells(name: str) -> list[str]:
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}`"))
    return [cell.strip(" *") for cell in line.split("|")]


@pytest.mark.parametrize("name", ROWS)
def test_the_table_is_what_budgets_print(name):
    plan = Plan(clients=6000, cohort=100, sampling=name, **ROWS[name])
    found = budget.solve(plan, noise_multiplier=1.4, rounds=180)
    assert (upwards(found.epsilon), downwards(found.lower_bound)) == (cells(name)[3], cells(name)[4])


@pytest.mark.parametrize(("rounds", "printed"), [(30, "0.2450"), (60, "0.3181"), (90, "0.4040")])
def test_beginnings_of_an_epoch(rounds, printed):
    plan = Plan(clients=6000, cohort=100, sampling="balls-and-bins")
    assert upwards(budget.epsilon(plan, noise_multiplier=1.4, rounds=rounds)) == printed
    assert printed in PAGE


@pytest.mark.parametrize(("rounds", "printed"), [(1, "0.07398"), (20, "0.2238"), (60, "0.3522"), (90, "0.4206")])
def test_beginnings_of_an_allocation(rounds, printed):
    plan = Plan(clients=6000, cohort=100, sampling="allocation", participations=3)
    assert upwards(budget.epsilon(plan, noise_multiplier=1.4, rounds=rounds)) == printed
    assert printed in PAGE


@pytest.mark.parametrize(("separation", "printed"), [(5, "0.6495"), (15, "0.6973")])
def test_rests(separation, printed):
    plan = Plan(clients=6000, cohort=100, sampling="min-separation", separation=separation)
    assert upwards(budget.epsilon(plan, noise_multiplier=1.4, rounds=180)) == printed
    assert printed in PAGE


@pytest.mark.slow_but_one_in(8)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_errors_of_lanes(epsilon, momentum):
    row = [cell.strip(" *") for cell in PAGE.split("| **lanes** |", 1)[1].split(f"\n| {epsilon:g} |")[1].split("|")]
    printed, lanes = (row[3], row[4]) if momentum == 0 else (row[6], row[7])
    plan = Plan(clients=6000, cohort=100, sampling="balls-and-bins", noise="banded", server_momentum=momentum)
    found = budget.solve(plan, epsilon=epsilon, rounds=180, with_lower_bound=False).to_dict()
    step = 0.01 if momentum == 0 else 0.1
    assert 0 <= float(printed) - found["prefix_error_in_clips"] < 1.1 * step
    assert lanes.split("\n")[0] == f"{found['lanes']} lanes"
    assert (found["bands"], found["adjacency"]) == (found["lanes"], "zero-out")


@pytest.mark.parametrize(
    ("fields", "printed"),
    [
        ({"sampling": "cyclic", "bands": 1}, "29.28"),
        ({"sampling": "cyclic", "bands": 60}, "**8.00**"),
        ({"sampling": "cyclic", "noise": "blt", "buffers": 2}, "8.27"),
        ({"bands": 6}, "5.92"),
    ],
)
def test_errors_of_correlated_noise(fields, printed):
    plan = Plan(clients=6000, cohort=100, **{"noise": "banded", **fields})
    z = budget.noise_multiplier(plan, epsilon=2.0, rounds=180)
    error = plan.mechanism.prefix_error(plan, z, 180)
    assert 0 <= float(printed.strip("*")) - error < 0.011
    assert f"| {printed} |" in PAGE
