"""`dpfed budget --second-opinion`: another implementation's number beside ours, or why there is none."""

import json

import pytest

from accounting.compose.second_opinion import second_opinion
from accounting.mechanisms import Composed, FixedSizeSampling, Gaussian, PoissonSampling, Subsampled
from dpfed.cli import status

pytestmark = pytest.mark.slow_but_one_in(3)

PLAN = ["budget", "--clients", "6000", "--cohort", "100", "--rounds", "180", "--noise-multiplier", "1.4"]
COINS = [
    "budget", "--clients", "100", "--cohort", "10", "--rounds", "2", "--mechanism", "bernoulli-aggregate",
    "--dimension", "5", "--edge", ".2", "--clip-norm", ".1", "--second-opinion",
]  # fmt: skip


def record(capsys, *arguments):
    assert status([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "adjacency", "law", "words"),
    [
        ("poisson", "add-remove", PoissonSampling(probability=100 / 6000), ": agrees"),
        ("fixed", "replace-one", FixedSizeSampling(cohort=100, clients=6000), "its account is the looser one"),
    ],
)
def test_it_is_of_the_mechanism_that_is_charged(capsys, sampling, adjacency, law, words):
    plain = record(capsys, *PLAN, "--sampling", sampling)
    answer = record(capsys, *PLAN, "--sampling", sampling, "--second-opinion")
    one = Subsampled(mechanism=Gaussian(noise_multiplier=1.4, adjacency=adjacency), sampling=law)
    stated = second_opinion(Composed(parts=((one, 180),)), delta=6000**-1.1).epsilon
    assert answer["second_opinion"] == stated
    assert "second_opinion" not in plain
    assert words in answer["notes"][-1]
    assert {**plain, "second_opinion": stated, "notes": [*plain["notes"], answer["notes"][-1]]} == answer


def test_it_is_printed_as_an_upper_bound(capsys):
    assert status([*PLAN, "--second-opinion"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "second opinion 0.6303 by dp-accounting 0.6" in text


def test_where_there_is_none_the_reason_is_a_note(capsys):
    answer = record(capsys, *COINS)
    assert answer["second_opinion"] is None
    assert answer["notes"][-1] == "no second opinion: dp-accounting has no account of bernoulli-aggregate"
    assert status(COINS) == 0
    assert "note: no second opinion:" in capsys.readouterr().out


@pytest.mark.slow
def test_a_comparison_has_one_for_every_row(capsys):
    rows = record(capsys, *PLAN, "--compare", "--second-opinion")["results"]
    own = [row for row in rows if (row["sampling"], row["adjacency"]) == ("poisson", "add-remove")]
    assert len(own) == 3
    assert len({row["second_opinion"] for row in own}) == 1
    without = {row["sampling"] for row in rows if row["second_opinion"] is None}
    assert without == {"balls-and-bins"}  # dp-accounting has no account of it
    assert all(row["second_opinion"] > 0 for row in rows if row["sampling"] not in without)
    assert status([*PLAN, "--compare", "--second-opinion"]) == 0
    assert "opinion" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--over", "rounds=1:9", "--over", "noise-multiplier=1:2"]])
def test_maps_have_none(capsys, arguments):
    assert status([*PLAN[:5], *arguments, "--second-opinion", "--json"]) == 2
    assert "--second-opinion with --over" in capsys.readouterr().err


@pytest.mark.slow
def test_a_project_has_one_of_what_was_spent_and_the_plan_together(capsys, tmp_path):
    path = str(tmp_path / "p.jsonl")
    assert status(["ledger", "create", path, "--clients", "6000", "--epsilon", "3"]) == 0
    capsys.readouterr()
    both = ["--cohort", "100", "--rounds", "180", "--noise-multiplier", "1.4", "--second-opinion"]
    answer = record(capsys, "budget", "--ledger", path, *both)
    assert answer["plan"]["second_opinion"] == record(capsys, *PLAN, "--second-opinion")["second_opinion"]
    assert status(["budget", "--ledger", path, "--second-opinion"]) == 2
    assert "--second-opinion with --ledger" in capsys.readouterr().err
