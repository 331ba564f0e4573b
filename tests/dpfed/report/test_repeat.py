"""Lines of "How to repeat" work as they stand, with the user's code and data, and promise no more than they do."""

import html
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

import dpfed
from dpfed.cli import status

from ..cli.test_load import NETWORK

SMALL = [
    word
    for one in ("rounds=1", "clients=20", "cohort=5")
    for word in ("--set", f"federation.{one}")
]  # fmt: skip
PRIVATE = ["--set", "privacy.epsilon=", "--set", "privacy.noise_multiplier=2"]
SWEEP = """
title = "Mine"
[base]
model = {name = "one-layer"}
data = {name = "digits"}
federation = {clients = 20, cohort = 5, rounds = 1}
local = {learning_rate = 0.1, epochs = 1, batch_size = 10}
method = {name = "fedavg"}
[axes]
"run.seed" = [1, 2]
[[row]]
name = "Mine"
"""


@pytest.fixture
def network(tmp_path):
    file = tmp_path / "my network.py"
    file.write_text(NETWORK)
    return file


def lines_of(page, word):
    """Lines of code on a page that begin with this word."""
    code = re.findall(r"<code>(.*?)</code>", page.read_text(), flags=re.DOTALL)
    return [html.unescape(line) for block in code for line in block.splitlines() if line.startswith(word)]


def same(first, second, name="model.safetensors"):
    return (first / name).read_bytes() == (second / name).read_bytes()


def test_the_page_of_a_run_with_a_users_network_repeats_it(network, tmp_path, monkeypatch):
    out = tmp_path / "run"
    words = ["--load", str(network), "--set", "model.name=one-layer", "--set", "model.hidden=", *SMALL]
    assert status(["run", "dp-fedavg-digits", *words, *PRIVATE, "--out", str(out)]) == 0
    (line,) = lines_of(out / "report.html", "dpfed run")
    assert line.endswith("# the same run")
    monkeypatch.chdir(out)
    assert status(shlex.split(line, comments=True)[1:]) == 0
    assert same(out, out / "again")
    (audit,) = lines_of(out / "report.html", "dpfed audit .")
    assert shlex.split(audit, comments=True) == ["dpfed", "audit", ".", "--load", str(network)]


@pytest.mark.slow
def test_the_audit_of_the_page_replays_a_users_network(network, tmp_path, monkeypatch):
    words = ["--load", str(network), "--set", "model.name=one-layer", "--set", "model.hidden=", *SMALL]
    out = str(tmp_path / "run")
    assert status(["run", "dp-fedavg-digits", *words, *PRIVATE, "--out", out]) == 0
    monkeypatch.chdir(out)
    (audit,) = lines_of(Path("report.html"), "dpfed audit .")
    assert status(shlex.split(audit, comments=True)[1:]) == 0


def test_the_page_of_a_run_on_a_data_file_repeats_it_from_its_folder(tmp_path, monkeypatch):
    generator = np.random.default_rng(1)
    monkeypatch.chdir(tmp_path)
    rows = {"x": generator.normal(size=(200, 4)).astype(np.float32), "y": generator.integers(0, 2, 200)}
    np.savez("mine.npz", train_inputs=rows["x"][:160], train_labels=rows["y"][:160],
             test_inputs=rows["x"][160:], test_labels=rows["y"][160:], classes=2)  # fmt: skip
    words = ["run", "fedavg-digits", "--set", "data.name=mine.npz", *SMALL, "--out", "run"]
    assert status(words) == 0
    (line,) = lines_of(Path("run/report.html"), "dpfed run")
    monkeypatch.chdir(tmp_path / "run")
    assert status(shlex.split(line, comments=True)[1:]) == 0
    assert same(tmp_path / "run", tmp_path / "run" / "again")


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("kind", ["page of a run", "page of run folders"])
def test_a_secure_run_is_not_called_the_same(tmp_path, kind):
    out = tmp_path / "run"
    words = ["run", "dp-fedavg-digits", *SMALL, *PRIVATE, "--release"]
    assert status([*words, "--out", str(out)]) == 0
    page = out / "report.html"
    if kind == "page of run folders":
        assert status(["report", str(out), "--out", str(tmp_path / "page")]) == 0
        page = tmp_path / "page" / "report.html"
    (line,) = lines_of(page, "dpfed run")
    assert "another run with equal settings" in line
    assert "the same run" not in page.read_text()


def test_objects_of_python_are_named_as_its_arguments(tmp_path):
    out = tmp_path / "run"
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    settings = {"federation.rounds": 1, "federation.clients": 20, "federation.cohort": 5}
    dpfed.run("fedavg-digits", settings, model=network, loss=loss, out=out)
    (line,) = lines_of(out / "report.html", "dpfed.run")
    assert line.startswith("dpfed.run('config.toml', model=..., loss=..., out='again')")


@pytest.mark.parametrize("repeated", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_pages_of_a_sweep_and_of_folders_load_the_users_code(network, tmp_path, monkeypatch, repeated):
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(SWEEP if repeated else SWEEP.replace("[1, 2]", "[1]"))
    assert status(["sweep", "sweep.toml", "--load", str(network), "--jobs", "1", "--out", "all"]) == 0
    assert status(["report", "all"]) == 0
    (line,) = lines_of(Path("all/report/report.html"), "dpfed sweep")
    assert line.endswith("# the same runs")
    words = shlex.split(line, comments=True)[1:]
    assert words[words.index("--load") + 1] == str(network)
    folders = sorted(str(one.parent) for one in Path("all").rglob("summary.json"))
    assert status(["report", *folders, "--out", "page"]) == 0
    first = shlex.split(lines_of(Path("page/report.html"), "dpfed run")[0], comments=True)[1:]
    assert first[first.index("--load") + 1] == str(network)
    if repeated:
        words[words.index("--out") + 1] = "again"
        assert status(words) == 0
        assert same(Path(folders[0]), Path("again") / Path(folders[0]).relative_to("all"))
        assert status([*first, "--out", "third"]) == 0
        assert same(Path(folders[0]), Path("third"))


def test_a_forgotten_load_is_named_when_a_run_is_resumed(network, tmp_path, capsys):
    out = str(tmp_path / "run")
    words = ["run", "fedavg-digits", "--set", "model.name=one-layer", "--set", "model.hidden=", *SMALL, "--out", out]
    assert status([*words, "--load", str(network)]) == 0
    for resumed in ([*words, "--resume"], ["run", "--resume", "--out", out]):
        capsys.readouterr()
        assert status(resumed) == 2
        said = capsys.readouterr().err
        assert f"needs code of your own (own_code.json): give --load {network}" in said
    with pytest.raises(dpfed.errors.ConfigError, match=r"own_code\.json"):
        dpfed.run(f"{out}/config.toml", out=out, resume=True)
    with pytest.raises(dpfed.errors.ConfigError, match="known models") as plain:  # a mistake of another kind
        dpfed.run("fedavg-digits", {"model.name": "one-layer", "model.hidden": None}, out=tmp_path / "other")
    assert "own_code.json" not in str(plain.value)
    assert status([*words, "--load", str(network), "--resume"]) == 0
    assert json.loads((tmp_path / "run" / "own_code.json").read_text())[0]["path"] == str(network)
