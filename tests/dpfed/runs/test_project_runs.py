"""Runs that draw from one project: together within its budget, each with its own ledger."""

import json
import re

import pytest
from refusals import refused

from accounting import Ledger
from accounting.errors import BudgetSpent, LedgerError
from accounting.ledger.project import ProjectLedger
from dpfed.cli import status
from dpfed.config.tables import parse
from dpfed.errors import RunError
from dpfed.methods import catalogue
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from ...rounds import Killed, killed_after, killed_before_checkpoint


@pytest.fixture
def project(tmp_path):
    return ProjectLedger.create(tmp_path / "project.jsonl", clients=60, epsilon=4.0, delta=1e-3)


def run(tiny_config, project, folder, *settings, **options):
    return federation.run(build(tiny_config("federation.rounds=8", *settings)), folder, project=project, **options)


def test_two_runs_end_where_the_projects_budget_does(tiny_config, tmp_path):
    project = ProjectLedger.create(tmp_path / "small.jsonl", clients=60, epsilon=2.0, delta=1e-3)
    first = run(tiny_config, project, tmp_path / "a", "federation.rounds=3").summary
    second = run(tiny_config, project, tmp_path / "b", "federation.rounds=200", "run.evaluate_every=200").summary
    assert (first["stopped_by"], second["stopped_by"]) == ("rounds", "budget")
    assert second["project_epsilon"] == 2.0
    assert second["project_condition"] is None
    assert project.units == (3 + second["rounds"], 0)
    assert project.spent().epsilon <= 2.0
    releases = Ledger.read(project.ledger.path).releases
    assert len(releases) == 3 + second["rounds"]
    own = [Ledger.read(tmp_path / name / "ledger.jsonl").releases for name in "ab"]
    assert [one.mechanism for one in releases] == [one.mechanism for run in own for one in run]
    assert second["test_accuracy"] is not None


def test_a_round_that_another_run_forestalled_is_not_released(tiny_config, tmp_path, project, monkeypatch):
    monkeypatch.setattr(ProjectLedger, "refusal", lambda self, mechanism, **what: None)

    def charge(self, release, **how):
        if release.round == 2:
            raise BudgetSpent("nothing left")

    monkeypatch.setattr(ProjectLedger, "charge", charge)
    outcome = run(tiny_config, project, tmp_path / "a")
    assert outcome.summary["stopped_by"] == "budget"
    assert outcome.summary["rounds"] == 2
    assert len(Ledger.read(tmp_path / "a" / "ledger.jsonl").releases) == 2


def test_a_project_that_pays_for_no_round_is_named_with_why(tiny_config, tmp_path):
    poor = ProjectLedger.create(tmp_path / "poor.jsonl", clients=60, epsilon=0.01, delta=1e-3)
    with pytest.raises(RunError, match="not even one round fits") as found:
        run(tiny_config, poor, tmp_path / "b")
    said = str(found.value)
    assert said.startswith(f"{poor.ledger.path} (a project ledger): not even one round fits: ")
    assert "one unit exceeds epsilon 0.01 at delta 0.001" in said
    assert said.endswith("Raise privacy.noise_multiplier, or do without the run.")


def test_a_run_of_another_kind_is_bought_whole_or_does_not_begin(tiny_config, tmp_path, project):
    run(tiny_config, project, tmp_path / "a", "federation.rounds=3")
    units, left = project.units
    other = ("privacy.noise_multiplier=0.9", "federation.rounds=4")
    with pytest.raises(BudgetSpent, match=r"price is (\d+) of the \d+ remaining units.*Give --pay \1") as found:
        run(tiny_config, project, tmp_path / "b", *other)
    price = int(re.search(r"--pay (\d+)", str(found.value))[1])
    assert price > 4
    assert not (tmp_path / "b").exists()
    assert project.units == (units, left)
    project.pay = price - 1
    refused(BudgetSpent, f"--pay {price}", run, tiny_config, project, tmp_path / "b", *other)

    project.pay = price
    refused(Killed, "", run, tiny_config, project, tmp_path / "b", *other, on_round=killed_after(2))
    assert project.units == (units, left - price)
    again = ProjectLedger.open(project.ledger.path)
    done = run(tiny_config, again, tmp_path / "b", *other, resume=True).summary
    assert (done["rounds"], done["stopped_by"]) == (4, "rounds")
    assert again.units == (units, left - price)


def test_a_resumed_run_buys_the_round_that_it_repeats(tiny_config, tmp_path, project):
    """It ended one round early, whatever was given for --pay, because the interrupted round had used a bought one."""
    noise = ("run.randomness=secure", "privacy.noise=discrete-gaussian", "federation.rounds=2")
    run(tiny_config, project, tmp_path / "a", *noise)
    other = build(tiny_config(*noise, "privacy.noise_multiplier=0.9"))
    project.pay = 10**5
    killed_before_checkpoint(other, tmp_path / "b", 1, project=project)
    again = ProjectLedger.open(project.ledger.path, pay=10**5)
    done = federation.run(other, tmp_path / "b", resume=True, project=again).summary
    assert (done["rounds"], done["stopped_by"]) == (2, "rounds")


def test_a_run_that_its_own_budget_ends_before_round_1_buys_nothing(tiny_config, tmp_path, project):
    run(tiny_config, project, tmp_path / "a", "federation.rounds=1")
    units, project.pay = project.units, 10**5
    other = ("privacy.noise_multiplier=0.9", "federation.rounds=4", "privacy.epsilon=0.5")
    refused(RunError, "privacy.epsilon: not even one round fits", run, tiny_config, project, tmp_path / "b", *other)
    assert project.units == units


@pytest.mark.slow
def test_shares_that_are_charged_cost_the_fewest_that_may_arrive(tiny_config, tmp_path, project):
    shares = (
        "federation.sampling=fixed",
        "privacy.adjacency=zero-out",
        "privacy.placement=clients",
        "privacy.missing_shares=charged",
        "privacy.noise_multiplier=3.0",
        "aggregation.dropout=0.2",
        "aggregation.tolerance=0.5",
    )
    done = run(tiny_config, project, tmp_path / "a", "federation.rounds=3", *shares).summary
    lines = Ledger.read(project.ledger.path).releases
    noises = {line.mechanism.mechanism.noise_multiplier for line in lines}
    worst = {line.detail["charged_as"]["mechanism"]["noise_multiplier"] for line in lines}
    assert len(worst) == 1
    assert max(worst) < min(noises) <= 3.0
    units, left = project.units
    assert left == units - len(lines)
    assert done["stopped_by"] == "rounds"


def test_a_round_that_others_forestalled_names_the_project(tiny_config, tmp_path, project, monkeypatch):
    """The budget is enough when the round begins, and spent when it is charged."""

    def charge(self, release, **how):
        raise BudgetSpent("nothing left")

    monkeypatch.setattr(ProjectLedger, "charge", charge)
    with pytest.raises(RunError, match=r"project\.jsonl \(a project ledger\): not even one round fits: nothing left"):
        run(tiny_config, project, tmp_path / "a")


def test_runs_on_other_clients_or_without_privacy_are_refused(tiny_config, tmp_path, project):
    refused(RunError, "60 clients, this run has 50", run, tiny_config, project, tmp_path / "a", "federation.clients=50")
    not_private = build(tiny_config("method.name=fedavg", without=["privacy"]))
    refused(RunError, "only runs with", federation.run, not_private, tmp_path / "b", project=project)
    assert not Ledger.read(project.ledger.path).releases


def test_a_project_is_made_for_a_plan(tmp_path, capsys):
    path = str(tmp_path / "p.jsonl")
    plan = ["--plan", "dp-fedavg-digits", "--plan", "fed-smp-randk-digits"]
    assert status(["ledger", "create", path, "--clients", "650", "--epsilon", "6", *plan, "--reserve", "0.02"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    project = ProjectLedger.open(path)
    assert f"which is {project.units[0]} units (poisson" in said
    assert project.terms.reserve == 0.02
    ((_, rounds),) = project.terms.declared
    assert rounds == build(parse(catalogue.preset_tables("fed-smp-randk-digits"), source="")).config.federation.rounds
    assert status(["ledger", "create", f"{path}2", "--clients", "60", "--epsilon", "6", *plan]) == 2
    assert "must have [privacy] and 60 clients" in capsys.readouterr().err
    assert status(["run", "dp-fedavg-digits", "--pay", "3", "--out", str(tmp_path / "run")]) == 2
    assert "--pay without --ledger" in capsys.readouterr().err


def test_the_commands(tmp_path, capsys):
    path = str(tmp_path / "p.jsonl")
    assert status(["ledger", "create", path, "--clients", "650", "--epsilon", "3.1"]) == 0
    assert status(["ledger", "create", path, "--clients", "650", "--epsilon", "3"]) == 1
    settings = ["--set", "federation.rounds=2", "--set", "model.hidden=[8]", "--out", str(tmp_path / "run")]
    assert status(["run", "dp-fedavg-digits", "--ledger", path, *settings]) == 0
    capsys.readouterr()
    assert status(["ledger", "show", path, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["releases"] == 2
    assert 0 < shown["spent_epsilon"] <= shown["epsilon"] == 3.1
    assert shown["delta"] == pytest.approx(1e-4)
    assert status(["ledger", "show", str(tmp_path / "absent")]) == 1
    refused(LedgerError, "", ProjectLedger.open, tmp_path / "run" / "ledger.jsonl")
