"""Heat maps: the cells are the accountants', the axes are what was asked, mistakes are refused."""

import json
import math
from dataclasses import replace

import pytest

from accounting.budget import Plan
from accounting.compose import accountant
from dpfed.cli import status

BUDGET = ["budget", "--clients", "600", "--cohort", "30", "--delta", "1e-4"]


def map_of(capsys, *arguments):
    assert status([*BUDGET, *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("accounted", ["best", "rdp"])
def test_cells_are_the_accountants(capsys, accounted):
    found = map_of(capsys, "--over", "noise-multiplier=.8:3", "--over", "rounds=5:7", "--accountant", accounted)
    noise, rounds = found["axes"]["noise-multiplier"], found["axes"]["rounds"]
    assert rounds == [5, 6, 7]
    assert (noise[0], noise[-1]) == pytest.approx((0.8, 3))
    assert (len(found["epsilon"]), len(found["epsilon"][0])) == (3, len(noise))
    for row, column in ((0, 0), (2, 5), (1, -1)):
        run = Plan(clients=600, cohort=30, delta=1e-4).run(noise[column], rounds[row])
        exact = accountant.epsilon(run, delta=1e-4, accountant=accounted)
        assert found["epsilon"][row][column] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("mechanism", [[], ["--mechanism", "distributed-gaussian", "--dropout", "0.2"]])
def test_renyi_cells_of_fixed_sizes_are_the_accountants(capsys, mechanism):
    over = ["--over", "noise-multiplier=.8:3", "--over", "cohort=10:12", "--rounds", "5", "--sampling", "fixed"]
    found = map_of(capsys, *over, "--accountant", "rdp", *mechanism)
    noise, cohorts = found["axes"]["noise-multiplier"], found["axes"]["cohort"]
    assert len(noise) == 81
    shares = {"mechanism": "distributed-gaussian", "dropout": 0.2} if mechanism else {}
    for row, column in ((0, 0), (2, 40), (1, -1)):
        plan = Plan(clients=600, cohort=cohorts[row], delta=1e-4, sampling="fixed", **shares)
        exact = accountant.epsilon(plan.run(noise[column], 5), delta=1e-4, accountant="rdp")
        assert found["epsilon"][row][column] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_what_was_released_before_is_counted(sampling):
    from dpfed.report.figures.budget import MapAxis, budget_map

    plan = Plan(clients=600, cohort=30, delta=1e-4, sampling=sampling)
    after = replace(plan, before=plan.run(1.0, 50))
    axes = (MapAxis(name="noise-multiplier", low=2, high=3), MapAxis(name="rounds", low=1, high=2))
    found = budget_map(after, axes, fixed={}, accountant="rdp")
    exact = accountant.epsilon(after.run(2.0, 1), delta=1e-4, accountant="rdp")
    assert found.epsilon[0, 0] == pytest.approx(exact, rel=1e-9)
    assert exact > 1.5 * accountant.epsilon(plan.run(2.0, 1), delta=1e-4, accountant="rdp")


def test_a_cap_of_the_cohort_is_counted(capsys):
    """Planted once: the account of Poisson sampling without the cap, on the fine grid of Renyi accounts."""
    over = ["--over", "noise-multiplier=2:3", "--over", "rounds=5:6", "--accountant", "rdp"]
    capped, plain = (map_of(capsys, *over, *cap)["epsilon"][0][0] for cap in (["--cohort-cap", "45"], []))
    plan = Plan(clients=600, cohort=30, delta=1e-4, cohort_cap=45)
    assert capped == pytest.approx(accountant.epsilon(plan.run(2.0, 5), delta=1e-4, accountant="rdp"), rel=1e-9)
    assert capped > 1.001 * plain


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_cohorts_are_an_axis(capsys, sampling):
    over = ["--over", "rounds=1:2", "--over", "cohort=10:12", "--noise-multiplier", "2", "--sampling", sampling]
    found = map_of(capsys, *over)
    plan = Plan(clients=600, cohort=12, sampling=sampling, delta=1e-4)
    assert found["axes"] == {"rounds": [1, 2], "cohort": [10, 11, 12]}
    assert found["noise-multiplier"] == 2
    assert found["epsilon"][2][1] == pytest.approx(accountant.epsilon(plan.run(2.0, 2), delta=1e-4), rel=1e-12)


def test_conditions_stand_below_the_map(capsys, tmp_path):
    over = ["--over", "noise-multiplier=1:2", "--over", "rounds=1:2", "--accountant", "rdp", "--sampling", "fixed"]
    over += ["--mechanism", "distributed-gaussian", "--dropout", "0.3"]
    plan = Plan(clients=600, cohort=30, sampling="fixed", mechanism="distributed-gaussian", dropout=0.3)
    conditions = [*accountant.hypothesis_notes(plan.run(1.0, 1)), *plan.notes(1.0, 1)]
    assert len(conditions) == 2
    assert map_of(capsys, *over)["notes"] == conditions
    assert status([*BUDGET, *over, "--plot", str(tmp_path / "map.png")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(f"note: {one}" in printed for one in conditions)


def test_a_bound_of_a_paper_outside_its_conditions_is_no_cell(capsys):
    over = ["--over", "noise-multiplier=.1:9", "--over", "rounds=1:2", "--sampling", "fixed"]
    found = map_of(capsys, *over, "--accountant", "fed-smp-theorem")
    plan = Plan(clients=600, cohort=30, delta=1e-4, sampling="fixed")
    assert not accountant.guarantee(plan.run(0.1, 1), delta=1e-4, accountant="fed-smp-theorem").valid
    assert found["epsilon"][0][0] is None


@pytest.mark.drawn
def test_the_figure_is_a_png(tmp_path, capsys):
    path = tmp_path / "map.png"
    over = ["--over", "noise-multiplier=.5:4", "--over", "rounds=1:3"]
    assert status([*BUDGET, *over, "--accountant", "rdp", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--over", "rounds=1:9"], "exactly twice"),
        (["--over", "rounds=1:9", "--over", "rounds=2:5"], "two different axes"),
        (["--over", "rounds=9:1", "--over", "noise-multiplier=1:2"], "LOW < HIGH"),
        (["--over", "rounds=1.5:9", "--over", "noise-multiplier=1:2"], "must be integers"),
        (["--over", "q=.1:.2", "--over", "noise-multiplier=1:2"], "NAME one of"),
        (["--over", "rounds=1:nan", "--over", "noise-multiplier=1:2"], "LOW < HIGH"),
        (["--over", "rounds=1:9", "--over", "noise-multiplier=1:2", "--rounds", "3"], "is an axis. Remove it"),
        (["--over", "rounds=1:9", "--over", "cohort=1:20"], "--over cohort, rounds: noise-multiplier is no axis"),
        (["--over", "cohort=1:601", "--over", "noise-multiplier=1:2", "--rounds", "3"], "at most 600"),
        (["--over", "rounds=1:9", "--over", "noise-multiplier=1:2", "--epsilon", "1"], "--epsilon with --over"),
        (["--over", "rounds=1:9", "--over", "noise-multiplier=1:2", "--table"], "--table with --over"),
        (["--over", "rounds=1:9", "--over", "noise-multiplier=1:2", "--precision"], "--precision with --over"),
    ],
)
def test_mistakes_are_refused(capsys, arguments, message):
    assert status([*BUDGET, *arguments, "--json"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_map_goes_somewhere(capsys):
    assert status([*BUDGET, "--over", "rounds=1:9", "--over", "noise-multiplier=1:2"]) == 2
    assert "--over needs --plot" in capsys.readouterr().err


def test_infinities_are_null():
    import numpy as np

    from dpfed.report.figures.budget import BudgetMap, MapAxis

    axis = MapAxis(name="rounds", low=1, high=2)
    found = BudgetMap(
        plan=Plan(clients=60, cohort=3), x_axis=axis, y_axis=axis, x=np.array([1.0]), y=np.array([1.0]),
        epsilon=np.array([[math.inf]]), fixed={}, accountant="rdp",
    )  # fmt: skip
    assert found.to_dict()["epsilon"] == [[None]]
