"""Networks and data sets of a user's own file, for configurations and in every process of a sweep."""

import json

import pytest

from dpfed.cli import status

NETWORK = """
from torch import nn
from dpfed import models

def network(input_shape, classes):
    width = 1
    for size in input_shape:
        width *= size
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, classes))

models.register("five-wide", network)
"""
EXPERIMENT = """
title = "Mine"
[base]
model = { name = "five-wide" }
data = { name = "digits" }
federation = { clients = 20, cohort = 5, rounds = 1 }
local = { learning_rate = 0.1, epochs = 1, batch_size = 10 }
method = { name = "fedavg" }
[axes]
run.seed = [1, 2]
[[row]]
name = "Five wide"
"""


@pytest.fixture
def sweep(tmp_path):
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    return ["sweep", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "out"), "--json"]


def test_every_process_of_a_sweep_knows_the_network(sweep, tmp_path, monkeypatch, capsys):
    (tmp_path / "net_for_a_sweep.py").write_text(NETWORK)
    monkeypatch.setenv("DPFED_OWN_CODE", str(tmp_path / "net_for_a_sweep.py"))
    assert status([*sweep, "--jobs", "2"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["summary"]["parameters"] for run in runs] == [64 * 5 + 5 + 5 * 10 + 10] * 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nowhere.py", None, "nowhere.py is no Python file that is there"),
        ("net.txt", NETWORK, "net.txt is no Python file that is there"),
        ("broken.py", "1 / 0", "broken.py fails: ZeroDivisionError"),
        ("taken.py", NETWORK.replace("five-wide", "mlp"), "is the name of a model that is there already"),
    ],
)
def test_a_file_that_cannot_be_used(sweep, tmp_path, monkeypatch, capsys, name, content, words):
    if content is not None:
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("DPFED_OWN_CODE", str(tmp_path / name))
    assert status([*sweep, "--dry-run"]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
