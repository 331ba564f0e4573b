"""A user's network that raises on one client's samples: it ends an experiment, and a run for release shows nothing."""

import json
import logging
import warnings

import pytest
import torch
from torch import nn

import dpfed
from dpfed.errors import ConfigError, TrainingFailed

SECRET = "diagnosis 77"
RELEASED = {
    "model.hidden": None, "federation.rounds": 2, "federation.clients": 12, "federation.cohort": 6,
    "federation.sampling": "all", "local.strategy": "loop", "privacy.noise_multiplier": 2.0, "run.device": "cpu",
}  # fmt: skip
SECURE = {"run.randomness": "secure", "privacy.noise": "discrete-gaussian"}


class Refusing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, inputs):
        if bool((inputs > 70).any()):
            warnings.warn(SECRET, UserWarning, stacklevel=1)
            raise LookupError(SECRET)
        return self.out(inputs)


def samples():
    draw = torch.Generator().manual_seed(0)
    held = [torch.randn(6, 4, generator=draw) for _ in range(12)]
    held[5][2, 1] = 77.0
    pairs = [(x, x[:, :3].argmax(1)) for x in held]
    return dpfed.data.from_clients(pairs, test=pairs[0], classes=3)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)

    def started(settings=None):
        settings = {**RELEASED, "federation.cohort": 12, **(settings or {})}
        return dpfed.run("dp-fedavg-digits", settings, data=samples(), model=Refusing, out=tmp_path / "run")

    return started


def test_a_run_for_release_counts_the_error_and_shows_it_nowhere_else(run, capfd, caplog, recwarn):
    caplog.set_level(logging.DEBUG)
    done = run(SECURE)
    lines = [json.loads(line) for line in (done.folder / "diagnostics.jsonl").read_text().splitlines()]
    assert [(line["failed"], line["not_finite"], line["arrived"]) for line in lines] == [(1, 1, 12)] * 2
    seen = capfd.readouterr()
    shown = [seen.out, seen.err, caplog.text, *(str(one.message) for one in recwarn)]
    shown += [file.read_bytes().decode("latin-1") for file in sorted(done.folder.rglob("*")) if file.is_file()]
    assert not [text for text in shown if SECRET in text or "LookupError" in text]
    public = [text for file in ("metrics.jsonl", "ledger.jsonl", "summary.json")
              for text in [(done.folder / file).read_text()]]  # fmt: skip
    assert not [text for text in public if '"failed"' in text]


def test_an_experiment_ends_by_the_error_and_can_count_it(run):
    with pytest.raises(TrainingFailed, match=SECRET):
        run()


def test_an_experiment_can_count_it(run):
    done = run({"run.on_error": "count"})
    line = json.loads((done.folder / "diagnostics.jsonl").read_text().splitlines()[0])
    assert (line["failed"], line["not_finite"]) == (1, 1)


def test_a_run_for_release_cannot_end_by_it(run):
    with pytest.raises(ConfigError, match=r"run\.on_error='raise' with run\.randomness='secure'"):
        run({**SECURE, "run.on_error": "raise"})
