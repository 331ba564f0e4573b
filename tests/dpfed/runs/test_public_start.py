"""Runs that start from their public samples, and the score of the public samples alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file, save_file

from dpfed.audit.run import audit_run
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError, RunError
from dpfed.methods.catalogue import preset_tables
from dpfed.runs.experiment import Experiment, build
from dpfed.runs.loop import Run, run

SMALL = ["federation.rounds=2", "data.test_samples=100", "run.evaluate_every=2"]
PUBLIC = [*SMALL, "data.public=60", "server.start=public", "server.start_epochs=3"]


@pytest.fixture(autouse=True)
def short_training(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "alone_see" not in request.node.name:
        monkeypatch.setattr("dpfed.runs.training._STEPS", 3)


def made(preset: str, *settings: str) -> Experiment:
    return build(parse(override(preset_tables(preset), list(settings)), source=preset))


def first_broadcast(folder: Path) -> torch.Tensor:
    return load_file(folder / "start.safetensors")["broadcast"]


class CountedTraining:
    """Replacement of the training before round 1 that counts its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        from dpfed.runs.training import PublicTraining

        before = PublicTraining.start

        def counted(public: PublicTraining, broadcast: torch.Tensor, *, epochs: int) -> torch.Tensor:
            self.calls += 1
            return before(public, broadcast, epochs=epochs)

        monkeypatch.setattr(PublicTraining, "start", counted)


def test_the_start_is_plain_training_on_the_public_samples_in_order(tmp_path: Path) -> None:
    """One batch of all samples: the start is one step of SGD, computed by autograd here."""
    settings = [*SMALL, "data.public=60", "server.start=public", "server.start_epochs=1", "local.batch_size=60"]
    experiment = made("dp-fedavg-digits", *settings, "local.momentum=0", "local.weight_decay=0")
    run(experiment, tmp_path / "run")
    public, local = experiment.public, experiment.config.local
    assert public is not None
    weights = experiment.start.broadcast.clone().requires_grad_()
    logits = experiment.model.forward(weights, public.public.inputs)
    loss = torch.nn.functional.cross_entropy(logits, public.public.labels)
    (slope,) = torch.autograd.grad(loss, weights)
    expected = experiment.start.broadcast - local.learning_rate * slope
    torch.testing.assert_close(first_broadcast(tmp_path / "run"), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("preset", ["dp-fedavg-digits", pytest.param("fedpm-private-digits", marks=pytest.mark.slow)])
def test_epsilon_and_cohorts_are_those_of_a_cold_run(tmp_path: Path, preset: str) -> None:
    cold = run(made(preset, *SMALL, "data.public=60"), tmp_path / "cold")
    warm = run(made(preset, *PUBLIC), tmp_path / "warm")
    assert warm.summary["epsilon"] == cold.summary["epsilon"]
    assert warm.summary["public_samples_alone"] == cold.summary["public_samples_alone"]
    members = [
        [json.loads(line)["members"] for line in (one.folder / "diagnostics.jsonl").read_text().splitlines()]
        for one in (cold, warm)
    ]
    assert members[0] == members[1]
    assert any("public samples" in one for one in warm.summary["not_protected"])


def test_probabilities_of_masks_stay_inside_their_edges(tmp_path: Path) -> None:
    free = ("privacy.epsilon=", "privacy.clip_norm=1", "privacy.release=uploads")  # no clip is searched
    experiment = made("fedpm-private-digits", *PUBLIC, *free, "local.learning_rate=5", "mask.edge=0.1")
    run(experiment, tmp_path / "run")
    start = first_broadcast(tmp_path / "run")
    assert start.min() >= torch.tensor(0.1)
    assert start.max() <= torch.tensor(0.9)
    assert not torch.equal(start, experiment.start.broadcast)


def test_the_start_is_trained_once_and_bound_to_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfed.sources import InProcessClients

    counted = CountedTraining(monkeypatch)
    experiment, folder = made("dp-fedavg-digits", *PUBLIC), tmp_path / "run"
    opened = Run.open(experiment, folder, resume=False, on_round=lambda record: None)
    opened.run_one_round(InProcessClients(seeds=experiment.seeds))
    opened.unlock()
    saved = first_broadcast(folder)
    whole = run(made("dp-fedavg-digits", *PUBLIC), tmp_path / "whole")
    resumed = run(made("dp-fedavg-digits", *PUBLIC), folder, resume=True)
    assert counted.calls == 2
    assert torch.equal(first_broadcast(folder), saved)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    header = json.loads((folder / "ledger.jsonl").read_text().splitlines()[0])
    assert header["binding"]["public_start"]


@pytest.mark.parametrize("harm", ["edited", "missing"])
def test_a_run_whose_start_was_changed_is_not_resumed(tmp_path: Path, harm: str) -> None:
    from safetensors.torch import save_file

    from dpfed.sources import InProcessClients

    experiment, folder = made("dp-fedavg-digits", *PUBLIC), tmp_path / "run"
    opened = Run.open(experiment, folder, resume=False, on_round=lambda record: None)
    opened.run_one_round(InProcessClients(seeds=experiment.seeds))
    opened.unlock()
    path = folder / "start.safetensors"
    if harm == "edited":
        save_file({"broadcast": first_broadcast(folder) + 1}, path)
    else:
        path.unlink()
    refused(RunError, "start", lambda: run(made("dp-fedavg-digits", *PUBLIC), folder, resume=True))


def test_public_samples_alone_see_no_client(tmp_path: Path) -> None:
    """The score is the same whatever clients hold: their samples are replaced by zeros."""
    experiment = made("dp-fedavg-digits", *SMALL, "data.public=137")
    public = experiment.public
    assert public is not None
    emptied = dataclasses.replace(public, clients=dataclasses.replace(public.clients, inputs=public.clients.inputs * 0))
    half = (torch.from_numpy(one) for one in (experiment.dataset.test_inputs, experiment.dataset.test_labels))
    inputs, labels = half
    scores = [
        one.score_alone(experiment.start.broadcast, inputs, labels, objective=experiment.objective)
        for one in (public, emptied)
    ]
    assert scores[0] == scores[1]
    assert scores[0] is not None
    assert 0.8 < scores[0] <= 1


def test_runs_without_public_samples_have_no_such_score(tmp_path: Path) -> None:
    assert "public_samples_alone" not in run(made("dp-fedavg-digits", *SMALL), tmp_path / "run").summary


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["server.start=public"], "data.public=0"),
        (["server.start_epochs=3", "data.public=60"], "server.start='public'"),
        (["server.start=elsewhere"], "server.start"),
    ],
)
def test_refusals(settings: list[str], message: str) -> None:
    refused(ConfigError, message, made, "dp-fedavg-digits", *settings)


def test_training_that_diverges_is_an_error_before_round_1(tmp_path: Path) -> None:
    experiment = made("dp-fedavg-digits", *PUBLIC, "local.learning_rate=1e30")
    refused(ConfigError, "diverges", run, experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_coordinates_of_a_warm_run_are_chosen_again_from_its_start(tmp_path: Path) -> None:
    """Another model as the start is found, by the hash in the ledger's header."""
    run(made("fed-smp-topk-digits", *PUBLIC, "method.public_epochs=1"), tmp_path / "run")

    def check() -> bool | None:
        (found,) = [one for one in audit_run(tmp_path / "run").checks if "public data" in one.name]
        return found.passed

    assert check() is True
    save_file({"broadcast": first_broadcast(tmp_path / "run") + 0.01}, tmp_path / "run" / "start.safetensors")
    assert check() is False
    (tmp_path / "run" / "start.safetensors").unlink()
    assert check() is None
