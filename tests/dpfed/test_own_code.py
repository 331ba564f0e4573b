"""Networks and data sets of a user's own file, for configurations and in every process of a sweep."""

import json
import os
import tomllib

import pytest

from dpfed.cli import status
from dpfed.sweep.one_run import Job, Result, build_job
from dpfed.sweep.workers import workers

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


def test_a_worker_older_than_the_own_code_knows_it(tmp_path, monkeypatch):
    (tmp_path / "net_for_old_workers.py").write_text(NETWORK)
    config = tomllib.loads(EXPERIMENT)["base"]
    jobs = [Job(number=i, config=config, folder=tmp_path / str(i), state="to run") for i in (0, 1)]
    with workers(2) as pool:
        before = list(pool.results(build_job, jobs))
        monkeypatch.setenv("DPFED_OWN_CODE", str(tmp_path / "net_for_old_workers.py"))
        after = list(pool.results(build_job, jobs))
    assert all("known models are" in str(result.error) for result in before)
    assert [result.error for result in after] == [None, None]


def test_no_worker_outlives_its_sweep(tmp_path):
    def processes() -> list[int]:
        jobs = [Job(number=i, config={}, folder=tmp_path, state="to run") for i in (0, 1)]
        with workers(2) as pool:
            return [result.number for result in pool.results(process_of, jobs)]

    assert not set(processes()) & set(processes())


def process_of(job: Job) -> Result:
    return Result(number=os.getpid())


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
