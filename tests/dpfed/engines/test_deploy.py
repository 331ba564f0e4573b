"""`dpfed deploy` and `--engine` at the command line; needs no Flower."""

import tomllib
from pathlib import Path

from refusals import refused

from dpfed.cli import status
from dpfed.config.tables import parse
from dpfed.engines.flower.app_folder import write_app
from dpfed.engines.flower.settings import agreement_text
from dpfed.errors import RunError


def test_an_app_is_its_configuration_and_a_few_lines(tmp_path, capsys):
    app = tmp_path / "My App"
    assert status(["deploy", "dp-fedavg-digits", "--out", str(app), "--set", "federation.rounds=3"]) == 0
    project = tomllib.loads((app / "pyproject.toml").read_text())
    flower = project["tool"]["flwr"]["app"]
    assert flower["components"] == {"serverapp": "dpfed_app.server_app:app", "clientapp": "dpfed_app.client_app:app"}
    assert project["project"]["name"] == "dpfed-dp-fedavg-digits"
    config = parse(tomllib.loads((app / "dpfed_app" / "config.toml").read_text()), source="test")
    assert config.federation.rounds == 3
    assert all(len((app / "dpfed_app" / f"{one}_app.py").read_text().splitlines()) < 10 for one in ("server", "client"))
    assert "for a release" in capsys.readouterr().out


def test_the_app_names_no_path_of_its_maker(tmp_path):
    """All that is in the app's folder travels to every node; diagnostics are covered by no epsilon."""
    app = tmp_path / "app"
    assert status(["deploy", "fedavg-digits", "--out", str(app)]) == 0
    out = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]["out"]
    assert out == "app-run"
    texts = [one.read_text() for one in app.rglob("*.*")]
    assert not [text for text in texts if str(tmp_path) in text or str(Path.home()) in text]


def test_nothing_is_overwritten(tmp_path, checked, tables):
    (tmp_path / "notes.txt").write_text("mine")
    refused(RunError, r"is not empty \(notes.txt\)", write_app, checked(tables("fedavg")), tmp_path, name="x")


def test_what_no_node_could_run_is_refused_before_an_app_is_written(tmp_path, capsys):
    for settings, words in (
        (["privacy.noise_multiplier=-1.0"], "privacy.noise_multiplier"),
        (["aggregation.kind=masked"], "Use 'protocol' or 'plain'"),
        (["aggregation.kind=protocol", "audit.canaries=5"], "canaries have no node"),
    ):
        given = [part for setting in settings for part in ("--set", setting)]
        assert status(["deploy", "dp-fedavg-digits", "--out", str(tmp_path / "app"), *given]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "app").exists()


def test_machines_may_differ_in_their_devices_and_in_nothing_else(checked, tables):
    one = agreement_text(checked(tables("fedavg")))
    own = ("run.device=cuda", "run.group=3", "data.root=/data", "local.strategy=loop", "local.memory=500")
    assert agreement_text(checked(tables("fedavg", *own))) == one
    assert agreement_text(checked(tables("fedavg", "local.learning_rate=0.31"))) != one
    assert agreement_text(checked(tables("fedavg", "run.seed=1"))) != one


def test_without_flower_the_engine_says_what_to_install(tmp_path, capsys, monkeypatch):
    from dpfed.engines.flower import settings

    monkeypatch.setattr(settings.importlib.util, "find_spec", lambda name: None)
    assert status(["run", "fedavg-digits", "--engine", "flower", "--out", str(tmp_path / "run")]) == 2
    assert "pip install" in capsys.readouterr().err
