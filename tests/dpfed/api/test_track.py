"""Trackers get the lines of metrics.jsonl, nothing of diagnostics.jsonl, and cannot end a run; progress in pipes."""

import csv
import io
import json
import sys
import types

import pytest
from refusals import refused
from rich.console import Console

import dpfed
from dpfed.api.track import clipping_hint, open_trackers, progress_display
from dpfed.errors import ConfigError

from ...rounds import DIGITS, tables

TABLES = tables(DIGITS, model={"hidden": [4]}, privacy={"accountant": "rdp"}, run={"evaluate_every": 2})
PUBLIC = {"round", "test_accuracy", "test_loss", "epsilon", "clip_norm", "uplink_megabytes", "aborted"}


class FakeMlflow(types.SimpleNamespace):
    """What of MLflow is called, kept."""

    def __init__(self, fails_at=None, named=True):
        self.calls, self.fails_at, self.named = [], fails_at, named

    def is_tracking_uri_set(self):
        return self.named

    def start_run(self, run_name):
        self.calls.append(("start", run_name))

    def log_params(self, params):
        self.calls.append(("params", params))

    def log_metrics(self, metrics, step):
        if step == self.fails_at:
            raise ConnectionError("the server is gone")
        self.calls.append(("metrics", metrics, step))

    def end_run(self):
        self.calls.append(("end",))


@pytest.fixture
def mlflow(monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return fake


def test_a_run_is_tracked_with_public_lines_only(tmp_path, mlflow):
    done = dpfed.run(TABLES, out=tmp_path / "run", track=["csv", "mlflow"])
    rows = list(csv.DictReader(io.StringIO((tmp_path / "run" / "metrics.csv").read_text())))
    assert set(rows[0]) == PUBLIC | {"majority_accuracy"}
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    assert float(rows[2]["epsilon"]) == done.metrics[2]["epsilon"]
    assert rows[0]["test_accuracy"] == rows[0]["majority_accuracy"] == ""
    assert rows[1]["majority_accuracy"], "a key of evaluated rounds alone"
    lines = [call for call in mlflow.calls if call[0] == "metrics"]
    assert [step for _, _, step in lines] == [1, 2, 3]
    assert all(set(values) < PUBLIC | {"majority_accuracy"} for _, values, _ in lines)
    assert mlflow.calls[0] == ("start", "run")
    assert mlflow.calls[1][1]["privacy.noise_multiplier"] == "2.0"
    assert mlflow.calls[-1] == ("end",)


def test_a_tracker_that_fails_is_left_aside(tmp_path, monkeypatch):
    fake = FakeMlflow(fails_at=2)
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    said = []
    with open_trackers(["mlflow"], tmp_path, {"a": {"b": 1}}, say=said.append) as on_round:
        for number in (1, 2, 3):
            on_round({"round": number, "epsilon": 1.0})
    assert said == ["--track mlflow: fails (ConnectionError: the server is gone). The run continues without it."]
    assert [call[0] for call in fake.calls] == ["start", "params", "metrics"]


def test_a_tracker_that_is_not_there_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    refused(ConfigError, "mlflow is not installed", dpfed.run, TABLES, out=tmp_path / "run", track=["mlflow"])
    assert not (tmp_path / "run").exists()
    monkeypatch.setitem(sys.modules, "mlflow", FakeMlflow(named=False))
    refused(ConfigError, "Set MLFLOW_TRACKING_URI", dpfed.run, TABLES, out=tmp_path / "run", track=["mlflow"])
    with pytest.raises(ConfigError, match="must be one of csv, tensorboard, mlflow, wandb, prometheus"):
        dpfed.run(TABLES, out=tmp_path / "run", track=["paper"])


def test_tensorboard_gets_scalars(tmp_path, monkeypatch):
    kept = []
    writer = types.SimpleNamespace(add_scalar=lambda *call: kept.append(call), close=lambda: kept.append("closed"))
    module = types.SimpleNamespace(SummaryWriter=lambda log_dir: writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with open_trackers(["tensorboard"], tmp_path, {}, say=print) as on_round:
        on_round({"round": 1, "epsilon": 0.5, "test_accuracy": None, "aborted": "words"})
    assert kept == [("epsilon", 0.5, 1), "closed"]


def test_a_pipe_gets_a_line_a_tenth_with_epsilon_of_its_budget():
    said = []
    with progress_display(200, Console(file=io.StringIO()), otherwise=said.append, budget=3.0) as on_round:
        for number in range(1, 201):
            on_round({"round": number, "test_accuracy": 0.5, "test_loss": 1.0, "epsilon": 0.01 * number})
    assert len(said) == 10
    assert said[0] == "round 20/200  accuracy 50.0%  epsilon so far 0.2 of 3"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"typical_norm": 76.1, "counted": 12, "clipped": 12}, "12 of 12 updates are clipped; a typical one is 76.1"),
        ({"typical_norm": 0.05, "counted": 12, "clipped": 0}, "a typical one is 0.05 of the clip norm"),
        ({"typical_norm": 1.2, "counted": 12, "clipped": 9}, None),
        ({"typical_norm": None, "counted": 12, "clipped": 9}, None),
        ({}, None),
    ],
)
def test_the_operator_is_told_of_a_clip_norm_that_is_far_off(tmp_path, line, words):
    drawn = {"round": 1, "cohort": 12, "participants": 12}
    lines = (drawn | {"typical_norm": 99.0, "counted": 1}, drawn | line)
    (tmp_path / "diagnostics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    hint = clipping_hint(tmp_path)
    assert hint is None if words is None else words in hint
    assert clipping_hint(tmp_path / "none") is None
