"""Runs that draw from one project: together within its budget, each with its own ledger."""

import json
import re

import pytest

from accounting import Ledger
from accounting.errors import BudgetSpent, LedgerError
from accounting.ledger.project import ProjectLedger
from dpfed.cli import status
from dpfed.errors import RunError
from dpfed.run import loop as federation
from dpfed.run.experiment import build


@pytest.fixture
def project(tmp_path):
    return ProjectLedger.create(tmp_path / "project.jsonl", clients=60, epsilon=4.0, delta=1e-3)


def run(tiny_config, project, folder, *settings, **options):
    return federation.run(build(tiny_config("federation.rounds=8", *settings)), folder, project=project, **options)


def test_two_runs_end_where_the_projects_budget_does(tiny_config, tmp_path, project):
    first = run(tiny_config, project, tmp_path / "a", "federation.rounds=3").summary
    second = run(tiny_config, project, tmp_path / "b", "privacy.noise_multiplier=0.8").summary
    assert (first["stopped_by"], second["stopped_by"]) == ("rounds", "budget")
    assert 0 < second["rounds"] < 8
    assert second["project_epsilon"] <= 4.0 < second["project_epsilon"] + 1.5
    releases = Ledger.read(project.ledger.path).releases
    assert len(releases) == 3 + second["rounds"]
    own = [Ledger.read(tmp_path / name / "ledger.jsonl").releases for name in "ab"]
    assert [one.mechanism for one in releases] == [one.mechanism for run in own for one in run]
    assert second["test_accuracy"] is not None


def test_a_round_that_another_run_forestalled_is_not_released(tiny_config, tmp_path, project, monkeypatch):
    monkeypatch.setattr(ProjectLedger, "with_also", lambda self, mechanism: 0.0)

    def charge(self, release, **how):
        if release.round == 2:
            raise BudgetSpent("nothing left")

    monkeypatch.setattr(ProjectLedger, "charge", charge)
    outcome = run(tiny_config, project, tmp_path / "a")
    assert outcome.summary["stopped_by"] == "budget"
    assert outcome.summary["rounds"] == 2
    assert len(Ledger.read(tmp_path / "a" / "ledger.jsonl").releases) == 2


def test_a_project_that_pays_for_no_round_is_named_with_what_it_has_left(tiny_config, tmp_path, project):
    run(tiny_config, project, tmp_path / "a", "federation.rounds=3")
    left = 4.0 - project.spent().epsilon
    with pytest.raises(RunError, match="not even one round fits") as found:
        run(tiny_config, project, tmp_path / "b", "privacy.noise_multiplier=0.1", "privacy.epsilon=1e6")
    said = re.fullmatch(
        r"(\S+) \(a project ledger\): not even one round fits\. It would bring epsilon to (\S+) at delta 0\.001; "
        r"allowed is 4, of which (\S+) is left\. Raise privacy\.noise_multiplier, or do without the run\.",
        str(found.value),
    )
    assert said[1] == str(project.ledger.path)
    assert float(said[2]) > 4.0
    assert left - 1e-3 <= float(said[3]) <= left


def test_a_round_that_others_forestalled_names_the_project(tiny_config, tmp_path, project, monkeypatch):
    """The budget is enough when the round begins, and spent when it is charged."""

    def charge(self, release, **how):
        raise BudgetSpent("nothing left")

    monkeypatch.setattr(ProjectLedger, "charge", charge)
    with pytest.raises(RunError, match=r"project\.jsonl \(a project ledger\): not even one round fits.*allowed is 4"):
        run(tiny_config, project, tmp_path / "a")


def test_an_interrupted_run_charges_its_project_once(tiny_config, tmp_path, project):
    def kill(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny_config, project, tmp_path / "a", "federation.rounds=4", on_round=kill)
    run(tiny_config, project, tmp_path / "a", "federation.rounds=4", resume=True)
    lines = Ledger.read(project.ledger.path).releases
    assert [one.round for one in lines] == [0, 1, 2, 3]
    assert len({one.detail["run"] for one in lines}) == 1


def test_runs_on_other_clients_or_without_privacy_are_refused(tiny_config, tmp_path, project):
    with pytest.raises(RunError, match="60 clients, this run has 50"):
        run(tiny_config, project, tmp_path / "a", "federation.clients=50")
    not_private = build(tiny_config("method.name=fedavg", without=["privacy"]))
    with pytest.raises(RunError, match="only runs with"):
        federation.run(not_private, tmp_path / "b", project=project)
    assert not Ledger.read(project.ledger.path).releases


def test_the_commands(tmp_path, capsys):
    path = str(tmp_path / "p.jsonl")
    assert status(["ledger", "create", path, "--clients", "650", "--epsilon", "3"]) == 0
    assert status(["ledger", "create", path, "--clients", "650", "--epsilon", "3"]) == 1
    settings = ["--set", "federation.rounds=2", "--set", "model.hidden=[8]", "--out", str(tmp_path / "run")]
    assert status(["run", "dp-fedavg-digits", "--ledger", path, *settings]) == 0
    capsys.readouterr()
    assert status(["ledger", "show", path, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["releases"] == 2
    assert 0 < shown["spent_epsilon"] <= shown["epsilon"] == 3.0
    assert shown["delta"] == pytest.approx(1e-4)
    assert status(["ledger", "show", str(tmp_path / "absent")]) == 1
    with pytest.raises(LedgerError):
        ProjectLedger.open(tmp_path / "run" / "ledger.jsonl")
