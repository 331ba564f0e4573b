"""What `dpfed budget` prints is true of the printed numbers: typed back in, they keep the epsilon asked for."""

import json
import math
import re

import numpy as np
import pytest

from accounting import Plan, budget
from dpfed.cli import status

pytestmark = pytest.mark.slow_but_one_in(3)


def printed(capsys, *arguments):
    assert status(["budget", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def number_after(words, text):
    found = re.search(rf"{words} (\d[\d.]*(?:e[+-]?\d+)?)", text)
    assert found, (words, text)
    return float(found[1])


def random_plans(seed, count):
    """Closed form, Renyi and privacy loss distribution, by turns; seeded."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        clients = int(rng.integers(50, 10_000))
        cohort = max(1, int(clients * rng.uniform(0.01, 0.2)))
        sampling, accountant = (("all", "best"), ("poisson", "rdp"), ("fixed", "rdp"), ("poisson", "pld"))[i % 4]
        rounds = int(rng.integers(1, 200 if accountant != "pld" else 20))
        yield clients, cohort, sampling, accountant, rounds, float(np.exp(rng.uniform(math.log(0.3), math.log(15))))


@pytest.mark.slow_but_one_in(13)
@pytest.mark.parametrize("plan", list(random_plans(1, 24)), ids=str)
def test_a_printed_noise_multiplier_keeps_the_epsilon(capsys, plan):
    clients, cohort, sampling, accountant, rounds, target = plan
    out = printed(
        capsys, "--clients", clients, "--cohort", cohort, "--sampling", sampling, "--accountant", accountant,
        "--rounds", rounds, "--epsilon", repr(target),
    )  # fmt: skip
    z = number_after("noise multiplier", out)
    described = Plan(clients=clients, cohort=cohort, sampling=sampling)
    again = budget.epsilon(described, noise_multiplier=z, rounds=rounds, accountant=accountant)
    assert again <= target
    assert again >= 0.99 * target  # no digits to spare
    assert number_after("delta", out) >= described.delta


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("target", [0.37, 1.01, 6.5])
@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "skellam"])
def test_a_printed_noise_multiplier_of_integers_keeps_the_epsilon(capsys, mechanism, target):
    out = printed(
        capsys, "--clients", 600, "--cohort", 60, "--sampling", "fixed", "--mechanism", mechanism, "--dimension", 1000,
        "--rounds", 1, "--epsilon", target,
    )  # fmt: skip
    plan = Plan(clients=600, cohort=60, sampling="fixed", mechanism=mechanism, dimension=1000)
    z = number_after("noise multiplier", out)
    assert budget.epsilon(plan, noise_multiplier=z, rounds=1) <= target


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "all"])
@pytest.mark.parametrize("z", [0.7, 1.4, 3.3, 51.0, 800.0])
def test_a_printed_epsilon_is_an_upper_bound_and_what_no_account_can_state_less_than_a_lower_one(capsys, sampling, z):
    arguments = ("--clients", 6000, "--cohort", 100, "--sampling", sampling, "--rounds", 3, "--noise-multiplier", z)
    out = printed(capsys, *arguments)
    exact = json.loads(printed(capsys, *arguments, "--json"))
    high, low = number_after("epsilon", out), number_after("no account of the same run can state less than", out)
    assert low <= exact["lower_bound"] <= exact["epsilon"] <= high
    assert high - low <= exact["epsilon"] - exact["lower_bound"] + max(2e-4, 2e-3 * high)
    if exact["epsilon"]:
        assert high <= 1.001 * exact["epsilon"] + 1e-4  # small epsilons keep their digits
        assert high <= 1.0011 * exact["epsilon"] or high > 0.1


def test_the_readmes_noise_multiplier_costs_no_more_than_was_asked_for(capsys):
    out = printed(capsys, "--clients", 6000, "--cohort", 100, "--rounds", 180, "--epsilon", 1.01)
    assert "noise multiplier 1.0853 " in out
    plan = Plan(clients=6000, cohort=100)
    assert budget.epsilon(plan, noise_multiplier=1.0852, rounds=180) > 1.01  # what was printed before
    assert budget.epsilon(plan, noise_multiplier=1.0853, rounds=180) <= 1.01


@pytest.mark.slow
def test_every_cell_of_a_comparison_is_on_its_safe_side(capsys):
    arguments = ("--clients", 900, "--cohort", 30, "--rounds", 2, "--noise-multiplier", 1.7, "--compare", "--papers")
    exact = json.loads(printed(capsys, *arguments, "--json"))["results"]
    cells = [
        [float(cell.replace("–", "nan")) for cell in line.split("│")[6:8]]
        for line in printed(capsys, *arguments).splitlines()
        if line.startswith("│") and line.split("│")[1].strip()
    ]
    assert len(cells) == len(exact)
    for (high, low), row in zip(cells, exact, strict=True):
        assert row["epsilon"] <= high <= row["epsilon"] + 1e-4
        assert row["lower_bound"] is None or row["lower_bound"] - 1e-4 <= low <= row["lower_bound"]


def test_notes_where_the_guarantee_says_nothing(capsys):
    arguments = ("--clients", 6000, "--sampling", "all", "--rounds", 1, "--noise-multiplier", 1.4)
    out = printed(capsys, *arguments, "--delta", ".5")
    assert out.startswith("epsilon 0 ")
    assert "note: delta 0.5 is above 1/clients = 1/6000" in out
    assert "note: epsilon is 0 because delta 0.5 covers all that is released, not because nothing is" in out
    loud = ("--clients", 6000, "--sampling", "all", "--rounds", 1, "--noise-multiplier", 0.1)
    assert "note: epsilon 87.2419 is above 20" in printed(capsys, *loud)
    assert "note: " not in printed(capsys, *arguments)


def test_ledger_commands_say_so_too(capsys, tmp_path):
    path = str(tmp_path / "p.jsonl")
    assert status(["ledger", "create", path, "--clients", "50", "--epsilon", "25", "--delta", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "note: delta 0.1 is above 1/clients = 1/50" in out
    assert "note: epsilon 25 is above 20" in out
    for command in (["ledger", "show", path], ["budget", "--ledger", path]):
        assert status(command) == 0
        assert "note: delta 0.1 is above 1/clients = 1/50" in capsys.readouterr().out
