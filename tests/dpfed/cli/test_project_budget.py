"""`dpfed budget --ledger`: what a project has spent and left, and what of a plan still fits."""

import json
import math
from dataclasses import replace

import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from accounting import Aborted, Gaussian, Header, Ledger, PoissonSampling, Release, subsample
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import Cyclic
from accounting.rounding import downwards, upwards
from dpfed.cli import status

DELTA = 1e-5


def release(number, z):
    mechanism = Gaussian(noise_multiplier=z, adjacency="add-remove")
    return Release(round=number, mechanism=mechanism, clip_norm=1.0, noise_std=z, noise_placement="server")


def noise_of(z):
    return Gaussian(noise_multiplier=z, adjacency="add-remove")


@pytest.fixture
def path(tmp_path):
    """Epsilon 3 for 100 clients; 10 rounds with noise 20 and 5 with noise 30."""
    project = ProjectLedger.create(tmp_path / "p.jsonl", clients=100, epsilon=3.0, delta=DELTA)
    project.ledger.record_all(release(round, 20.0 if round < 10 else 30.0) for round in range(15))
    return str(tmp_path / "p.jsonl")


def epsilon_of(inverse_squares):
    """The exact epsilon of Gaussian rounds whose 1/z^2 add up to this (Balle and Wang 2018)."""
    mu = inverse_squares**0.5

    def excess(epsilon):
        return ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)) - DELTA

    return brentq(excess, 0, 50, xtol=1e-12)


SPENT = 10 / 20**2 + 5 / 30**2


def asked(capsys, path, *options):
    assert status(["budget", "--ledger", path, "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_without_a_plan_what_is_spent_and_left(capsys, path):
    shown = asked(capsys, path)
    assert shown["spent_epsilon"] == pytest.approx(epsilon_of(SPENT), rel=1e-6)
    assert shown["left_epsilon"] == pytest.approx(3 - epsilon_of(SPENT), rel=1e-6)
    assert (shown["releases"], shown["clients"], shown["epsilon"], shown["plan"]) == (15, 100, 3.0, None)
    assert status(["budget", "--ledger", path]) == 0
    assert (
        f"if all releases were fixed in advance: epsilon {upwards(epsilon_of(SPENT))} spent, "
        f"{downwards(3 - epsilon_of(SPENT))} left" in " ".join(capsys.readouterr().out.split())
    )
    assert (shown["units"] - shown["units_left"], shown["price"]) == (15, None)


def test_a_plan_has_a_price_in_units(capsys, path):
    shown = asked(capsys, path, "--sampling", "all", "--rounds", "7", "--noise-multiplier", "10")
    assert 28 <= shown["price"] <= 30  # 1/10^2 is four times 1/20^2
    same = asked(capsys, path, "--sampling", "all", "--rounds", "7", "--noise-multiplier", "20")
    assert same["price"] == 7
    assert status(["budget", "--ledger", path, "--sampling", "all", "--rounds", "7", "--noise-multiplier", "10"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"As a further run they use {shown['price']} of the {shown['units_left']} units left." in said
    loud = asked(capsys, path, "--sampling", "all", "--rounds", "700", "--noise-multiplier", "10")
    assert loud["price"] is None


def test_a_plan_with_both_costs_what_everything_together_costs(capsys, path):
    plan = asked(capsys, path, "--sampling", "all", "--rounds", "7", "--noise-multiplier", "25")["plan"]
    assert plan["epsilon"] == pytest.approx(epsilon_of(SPENT + 7 / 25**2), rel=1e-6)
    assert (plan["rounds"], plan["noise_multiplier"], plan["delta"]) == (7, 25.0, DELTA)
    capsys.readouterr()
    assert status(["budget", "--ledger", path, "--sampling", "all", "--rounds", "7", "--noise-multiplier", "2"]) == 0
    assert "7 such rounds on top DO NOT FIT" in capsys.readouterr().out


def bought_and_made(path, release_of_round, bought, made):
    """A run that has bought its rounds and made some of them."""
    project = ProjectLedger.open(path, pay=10**6)
    project.begin([release_of_round] * bought, run="a")
    for number in range(made):
        line = replace(release(number, 10.0), mechanism=release_of_round)
        project.charge(line, run="a")


@pytest.mark.parametrize("made", [0, 2])
def test_rounds_that_are_bought_and_not_yet_made_are_counted(capsys, tmp_path, made):
    """40 bought rounds of noise 10 and 40 others at the noise that was printed for epsilon 3 had epsilon 4.11."""
    one = release(0, 10.0).mechanism
    ProjectLedger.create(tmp_path / "p.jsonl", clients=100, epsilon=3.0, delta=DELTA, unit=((noise_of(20.0), 1),))
    path = str(tmp_path / "p.jsonl")
    bought_and_made(path, one, 40, made)
    shown = asked(capsys, path, "--sampling", "all", "--rounds", "40")
    z = shown["plan"]["noise_multiplier"]
    assert 2.99 < epsilon_of(40 / 10**2 + 40 / z**2) <= 3.0
    assert any("bought or declared" in note for note in shown["notes"])
    assert asked(capsys, path, "--sampling", "all", "--rounds", "3", "--noise-multiplier", "20")["price"] == 3


def test_a_bought_schedule_and_declared_rounds_are_counted(tmp_path):
    turns = subsample(Gaussian(noise_multiplier=10.0, adjacency="add-remove"), Cyclic(period=5, stream="seed 0"))
    terms = {"clients": 100, "epsilon": 5.0, "delta": DELTA, "unit": ((noise_of(20.0), 1),)}
    project = ProjectLedger.create(tmp_path / "p.jsonl", **terms, declared=((noise_of(9.0), 3),))
    assert project.committed().parts == ((noise_of(9.0), 3),)
    bought_and_made(tmp_path / "p.jsonl", turns, 20, 7)
    parts = dict(ProjectLedger.open(tmp_path / "p.jsonl").committed().parts)
    assert parts == {turns: 20, noise_of(9.0): 3}


def test_a_plan_has_the_neighbours_of_the_projects_unit(capsys, tmp_path):
    unit = subsample(Gaussian(noise_multiplier=20.0, adjacency="replace-one"), PoissonSampling(probability=0.1))
    ProjectLedger.create(tmp_path / "p.jsonl", clients=100, epsilon=3.0, delta=DELTA, unit=((unit, 1),))
    shown = asked(capsys, str(tmp_path / "p.jsonl"), "--cohort", "10", "--rounds", "3", "--noise-multiplier", "20")
    assert (shown["plan"]["adjacency"], shown["price"]) == ("replace-one", 3)


def test_the_rounds_that_fit_and_not_one_more(capsys, path):
    plan = asked(capsys, path, "--sampling", "all", "--noise-multiplier", "12")["plan"]
    rounds = plan["rounds"]
    assert epsilon_of(SPENT + rounds / 12**2) <= 3.0 < epsilon_of(SPENT + (rounds + 1) / 12**2)


def test_the_least_noise_that_fits(capsys, path):
    plan = asked(capsys, path, "--sampling", "all", "--rounds", "40")["plan"]
    z = plan["noise_multiplier"]
    assert plan["epsilon"] <= 3.0
    assert epsilon_of(SPENT + 40 / z**2) <= 3.0 < epsilon_of(SPENT + 40 / (z * (1 - 1e-5)) ** 2)


def test_a_sampled_plan_and_coins_come_on_top(capsys, path):
    sampled = asked(capsys, path, "--cohort", "10", "--rounds", "3", "--noise-multiplier", "4", "--accountant", "rdp")
    assert sampled["spent_epsilon"] < sampled["plan"]["epsilon"] < 3.0
    options = ["--mechanism", "bernoulli-channel", "--sampling", "all", "--dimension", "100", "--edge", "0.2"]
    coins = [*options, "--clip-norm", "0.05", "--accountant", "rdp"]
    assert status(["budget", "--ledger", path, *coins]) == 2  # add-remove: whose coins would be there?
    assert "adjacency" in capsys.readouterr().err


def test_a_reader_takes_no_lock_and_leaves_an_unfinished_line(capsys, path):
    with open(path, "ab") as file:
        file.write(b'{"chain":"0')
    with ProjectLedger.open(path)._lock:
        assert asked(capsys, path)["releases"] == 15
    with open(path, "rb") as file:
        assert file.read().endswith(b'{"chain":"0')


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--clients", "5"], "--clients with --ledger"),
        (["--epsilon", "5"], "--epsilon with --ledger"),
        (["--delta", "0.1"], "--delta with --ledger"),
        (["--compare"], "--compare with --ledger"),
        (["--table"], "--table with --ledger"),
        (["--unit", "record", "--records", "9", "--batch-size", "3", "--rounds", "5"], "--unit with --ledger"),
        (["--rounds", "5"], "Give --cohort"),
        (["--cohort", "5"], "give --rounds"),
        (["--cohort", "500", "--rounds", "3"], "cohort=500"),
        (["--cohort", "5", "--sampling", "fixed", "--rounds", "3"], "adjacency='add-remove'"),
        (["--cohort", "5", "--adjacency", "zero-out", "--rounds", "3", "--noise-multiplier", "2"], "one composition"),
    ],
)
def test_what_cannot_be_asked_is_refused(capsys, path, options, words):
    assert status(["budget", "--ledger", path, *options]) == 2
    assert words in capsys.readouterr().err


def test_a_line_that_was_not_paid_for_is_found(capsys, path):
    Ledger.resume(path).record(release(15, 1.0))
    assert status(["budget", "--ledger", path]) == 1
    assert "round 15 of run None was charged" in capsys.readouterr().err


def test_only_a_project_is_one(capsys, tmp_path):
    run = Ledger.create(tmp_path / "run.jsonl", Header(unit="client", clients=10, randomness="simulated"))
    run.record(Aborted(round=0, reason="too few"))
    assert status(["budget", "--ledger", str(run.path)]) == 1
    assert "not of a project" in capsys.readouterr().err
    assert status(["budget"]) == 2
    assert "--clients is missing" in capsys.readouterr().err


def test_a_plan_of_which_no_round_fits_names_the_ledger_and_what_it_has_left(capsys, path):
    assert status(["budget", "--ledger", path, "--sampling", "all", "--noise-multiplier", "0.5"]) == 2
    said = capsys.readouterr().err
    left = 3 - epsilon_of(SPENT)
    assert said.startswith(f"dpfed: {path}: ")
    assert f"not even one round fits. It would bring epsilon to {upwards(epsilon_of(SPENT + 4))} " in said
    assert f"allowed is 3, of which {downwards(left)} is left" in said


@pytest.mark.parametrize("option", ["--clients", "--epsilon", "--delta"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e400", "1e-400", "9" * 5000, "x", ""])
def test_a_project_of_impossible_terms_is_one_error(tmp_path, capsys, option, value):
    terms = {"--clients": "650", "--epsilon": "3", "--delta": "1e-5"} | {option: value}
    words = ["ledger", "create", str(tmp_path / "p.jsonl"), *(f"{name}={given}" for name, given in terms.items())]
    assert status(words) == 2
    without = [word for word in words if not word.startswith("--delta")]
    assert status(without) == (2 if option != "--delta" else 0)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert len(said) < 5000
