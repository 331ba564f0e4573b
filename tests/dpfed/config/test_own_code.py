"""Networks and data sets of a user's own file, for configurations and in every process of a sweep."""

import json
import os
import tomllib

import pytest
import tomli_w
from reference.bounded import bounded

from dpfed.cli import status
from dpfed.sweep.jobs import JobResult, RunJob, build_job, worker_pool

pytestmark = pytest.mark.slow_but_one_in(3)

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


@pytest.mark.slow
def test_every_process_of_a_sweep_knows_the_network(sweep, tmp_path, monkeypatch, capsys):
    (tmp_path / "net_for_a_sweep.py").write_text(NETWORK)
    monkeypatch.setenv("DPFED_OWN_CODE", str(tmp_path / "net_for_a_sweep.py"))
    assert status([*sweep, "--jobs", "2"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["summary"]["parameters"] for run in runs] == [64 * 5 + 5 + 5 * 10 + 10] * 2


@pytest.mark.slow
def test_a_worker_older_than_the_own_code_knows_it(tmp_path, monkeypatch):
    (tmp_path / "net_for_old_workers.py").write_text(NETWORK)
    config = tomllib.loads(EXPERIMENT)["base"]
    jobs = [RunJob(number=i, config=config, folder=tmp_path / str(i), state="to run") for i in (0, 1)]
    with worker_pool(2, ["cpu"]) as pool:
        before = list(pool.results(build_job, jobs))
        monkeypatch.setenv("DPFED_OWN_CODE", str(tmp_path / "net_for_old_workers.py"))
        after = list(pool.results(build_job, jobs))
    assert all("known models are" in str(result.error) for result in before)
    assert [result.error for result in after] == [None, None]


@pytest.mark.slow
def test_no_worker_outlives_its_sweep(tmp_path):
    def processes() -> list[int]:
        jobs = [RunJob(number=i, config={}, folder=tmp_path, state="to run") for i in (0, 1)]
        with worker_pool(2, ["cpu"]) as pool:
            return [result.number for result in pool.results(process_of, jobs)]

    assert not set(processes()) & set(processes())


def process_of(job: RunJob) -> JobResult:
    return JobResult(number=os.getpid())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nowhere.py", None, "nowhere.py is not an existing Python file"),
        ("net.txt", NETWORK, "net.txt is not an existing Python file"),
        ("broken.py", "1 / 0", "broken.py fails: ZeroDivisionError"),
        ("taken.py", NETWORK.replace("five-wide", "mlp"), "is the name of an existing model"),
    ],
)
def test_a_file_that_cannot_be_used(sweep, tmp_path, monkeypatch, capsys, name, content, words):
    if content is not None:
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("DPFED_OWN_CODE", str(tmp_path / name))
    assert status([*sweep, "--dry-run"]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


MODEL = """
import torch
from torch import nn
from dpfed import models

class Net(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.last = nn.Linear(width, classes)
    def forward(self, inputs):
        {forward}

def network(input_shape, classes):
    {maker}
    return Net(64, classes)

models.register("mine", network)
"""
FAILS = {
    "maker": ({"maker": "raise KeyError('no such layer')"}, "cannot be made: KeyError: 'no such layer'"),
    "maker of something else": ({"maker": "return 3"}, "gives int, not a torch.nn.Module"),
    "lazy": ({"maker": "return nn.LazyLinear(classes)"}, "has no shape before a first call"),
    "no weights": ({"maker": "return nn.Flatten()"}, "has no parameters"),
    "memory": ({"maker": "return nn.Linear(2**40, 2**20)"}, "cannot be made: RuntimeError"),
    "forward": ({"forward": "raise LookupError('what')"}, "fails on 2 test samples, (2, 1, 8, 8): LookupError: what"),
    "shape": ({"forward": "return self.last(inputs.flatten(1))[:, :3]"}, "gives torch.float32 of shape (2, 3)"),
    "shapes": ({"forward": "return self.last(inputs)"}, "fails on 2 test samples"),
    "layer of torch": ({"maker": "return nn.Linear(3, classes)"}, "fails on 2 test samples"),
    "pair": ({"forward": "return inputs, inputs"}, "gives tuple for 2 samples"),
    "integers": ({"forward": "return self.last(inputs.flatten(1)).long()"}, "gives torch.int64"),
}


def config_with_mine(folder):
    (folder / "mine.toml").write_text(tomli_w.dumps(tomllib.loads(EXPERIMENT)["base"] | {"model": {"name": "mine"}}))
    return str(folder / "mine.toml")


@pytest.mark.parametrize("case", sorted(FAILS))
def test_a_network_that_fails_is_one_error_with_its_line(tmp_path, monkeypatch, capsys, case):
    changes, words = FAILS[case]
    parts = {"maker": "pass", "forward": "return self.last(inputs.flatten(1))"} | changes
    file = tmp_path / f"{case.replace(' ', '_')}.py"
    file.write_text(MODEL.format(**parts))
    monkeypatch.setenv("DPFED_OWN_CODE", str(file))
    assert status(["run", config_with_mine(tmp_path), "--out", str(tmp_path / "run"), "--json"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert "flat.py" not in said  # the line is the user's, or there is none
    assert not (tmp_path / "run").exists()
    if case in ("maker", "forward", "shapes", "memory"):
        (fault,) = changes.values()
        line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if fault in text)
        assert f"({file}, line {line})" in said


def test_a_network_that_fails_in_training_is_one_error(tmp_path, monkeypatch, capsys):
    forward = "if torch.is_grad_enabled(): raise LookupError('a\\nb')\n        return self.last(inputs.flatten(1))"
    (tmp_path / "net_that_fails_late.py").write_text(MODEL.format(maker="pass", forward=forward))
    monkeypatch.setenv("DPFED_OWN_CODE", str(tmp_path / "net_that_fails_late.py"))
    words = ["run", config_with_mine(tmp_path), "--set", "local.strategy=loop", "--out", str(tmp_path / "run")]
    assert status(words) == 2
    said = capsys.readouterr().err
    assert "training fails on a batch of 10 samples (LookupError: a b (" in said
    assert "net_that_fails_late.py, line 11)" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("content", ["raise SystemExit(0)", "import nothing_of_this_name", "def f(:", "\0"])
def test_own_code_that_ends_the_process_or_is_no_code_is_one_error(sweep, tmp_path, monkeypatch, capsys, content):
    file = tmp_path / f"own_{abs(hash(content))}.py"
    file.write_text(content)
    monkeypatch.setenv("DPFED_OWN_CODE", str(file))
    assert status([*sweep, "--dry-run"]) == 2
    assert f"{file} fails: " in capsys.readouterr().err


def test_hidden_layers_that_no_memory_holds_are_refused_before_they_are_made(tmp_path, capsys):
    for hidden in ("[65536, 65536]", "[100000]", "[" + "9," * 70 + "9]"):
        with bounded():
            assert (
                status(["run", "fedavg-digits", "--set", f"model.hidden={hidden}", "--out", str(tmp_path / "run")]) == 2
            )
        assert "at most" in (said := capsys.readouterr().err) or "less than or equal to 65536" in said
