"""Modes of torch that a caller has set around a run or a release change nothing, and are there again afterwards."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn

import dpfed
from dpfed.errors import ConfigError

SMALL = {"federation.rounds": 1, "federation.clients": 30, "federation.cohort": 5, "run.device": "cpu"}


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MODES = {
    "float64": lambda: default_dtype(torch.float64),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference": torch.inference_mode,
    "device": lambda: torch.device("meta"),
}


def state():
    modes = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    return torch.get_default_dtype(), torch.get_default_device(), *modes


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch):
    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)


def run(folder, **more):
    done = dpfed.run("dp-fedavg-digits", SMALL, out=folder, progress=False, **more)
    return [(line["test_loss"], line["epsilon"]) for line in done.metrics]


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_the_same(mode, tmp_path):
    plain = run(tmp_path / "plain")
    with MODES[mode]():
        before = state()
        assert run(tmp_path / "run") == plain
        assert state() == before


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("mode", MODES)
def test_a_release_is_the_same(mode):
    rows = np.ones((4, 6), np.float32)

    def released():
        plan = {"clients": 10, "cohort": 4, "rounds": 1, "clip_norm": 1.0, "noise_multiplier": 1.0}
        private = dpfed.ClientLevel(**plan, sampling="fixed", randomness="simulated", seed=3)
        return [step.release(rows).tolist() for step in private.rounds()]

    plain = released()
    with MODES[mode]():
        assert released() == plain


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(17, 2, sparse=True), nn.Linear(128, 10)

    def forward(self, x):
        return self.last(self.table(x.long().clamp(0, 16).flatten(1)).flatten(1))


def test_sparse_gradients_are_refused_before_the_first_round(tmp_path):
    refused(ConfigError, "Embedding with sparse=True", run, tmp_path / "run", model=Letters)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    "updates",
    [torch.eye(4).to_sparse(), [torch.ones(4).to_sparse()] * 4, [{"a": torch.eye(2).to_sparse()}] * 4],
    ids=["sparse", "rows", "dictionaries"],
)
def test_updates_that_are_not_dense_are_refused_and_the_round_goes_on(updates):
    plan = {"clients": 10, "cohort": 4, "rounds": 1, "clip_norm": 1.0, "noise_multiplier": 1.0}
    private = dpfed.ClientLevel(**plan, sampling="fixed", randomness="simulated", seed=3)
    for step in private.rounds():
        refused(ConfigError, "must be a dense tensor", step.release, updates)
        step.release(torch.eye(4))
