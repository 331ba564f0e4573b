"""A newcomer's nine steps as the docs say them: own data, a sweep, a fair comparison, LaTeX and the sentence."""

import csv
import re
import tomllib
from pathlib import Path

import pytest

from dpfed.cli import status
from dpfed.config.tables import override, parse
from dpfed.runs.experiment import check_configuration

MINE = """
import torch
from dpfed import data, models

def points(count):
    torch.manual_seed(count)
    inputs = torch.randn(count, 2)
    return torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).long())

def network(input_shape, classes):
    return torch.nn.Sequential(torch.nn.Linear(*input_shape, 8), torch.nn.Tanh(), torch.nn.Linear(8, classes))

owners = [f"ward {i % 30}" for i in range(300)]
data.register("points", data.from_samples(points(300), points(100), classes=2, clients=owners))
models.register("my-network", network)
"""
TABLE = """
title = "Two samplers"
quantities = ["test_accuracy", "epsilon"]
[base]
data = { name = "points", partition = "natural" }
model = { name = "my-network" }
federation = { clients = 30, cohort = 10, rounds = 2 }
local = { learning_rate = 0.1, epochs = 1, batch_size = 10 }
method = { name = "dp-fedavg" }
privacy = { epsilon = 8.0, clip_norm = 1.0 }
[axes]
run.seed = [1, 2]
[[row]]
name = "Poisson"
[[row]]
name = "fixed size, zero-out"
set = { federation.sampling = "fixed", privacy.adjacency = "zero-out" }
"""


@pytest.mark.slow
def test_nine_steps_of_a_newcomer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "table.toml").write_text(TABLE)
    sweep = ["sweep", "table.toml", "--load", "mine.py", "--jobs", "1"]
    assert status([*sweep, "--dry-run"]) == 0
    assert status([*sweep, "--out", "unequal"]) == 0
    capsys.readouterr()
    assert status(["report", "unequal"]) == 0
    assert "Epsilons of these rows are different guarantees" in capsys.readouterr().out
    assert status([*sweep, "--neighbours", "zero-out", "--out", "fair"]) == 0
    capsys.readouterr()
    assert status(["report", "fair", "--latex"]) == 0
    printed = capsys.readouterr().out
    assert "different guarantees" not in printed
    assert re.search(r"\\toprule", printed)
    assert status(["report", "fair", "--sentence"]) == 0
    assert "zero-out neighbours" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "fair" / "report" / "table.csv").read_text().splitlines()))
    assert {row["row"] for row in rows} == {"Poisson", "fixed size, zero-out"}
    page = (tmp_path / "fair" / "report" / "report.html").read_text()
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert captions
    assert len(captions) == len(set(captions))
    assert not re.search(r"<th[^>]*>published", page)


def test_a_hospitals_table_has_what_the_settings_of_its_command_lack():
    page = (Path(__file__).parents[2] / "docs" / "tutorials" / "hospitals.md").read_text(encoding="utf-8")
    (tables,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    config = parse(override(tomllib.loads(tables), re.findall(r"--set (\S+)", page)), source="hospitals.toml")
    check_configuration(config)
    assert (config.local.epochs is None) != (config.local.steps is None)
