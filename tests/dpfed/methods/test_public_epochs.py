"""How long the server trains on its public samples (method.public_epochs), from which the top coordinates follow."""

import math

import numpy as np
import pytest
import torch

from dpfed.audit.run import audit_run
from dpfed.config.tables import parse
from dpfed.methods import catalogue
from dpfed.runs.experiment import build
from dpfed.stages.project import top_indices

from ...rounds import preset
from ..audit import run_folders

TOPK = ("method.name=fed-smp-topk", "method.keep=0.1", "data.public=137", "federation.rounds=2")
OF_PERIOD = "coordinates are chosen by public data"


def map_of(*settings):
    """The choice of coordinates in a run on the digits: 1,300 samples of 650 clients, batches of 10, 5 epochs."""
    experiment = build(preset("fed-smp-topk-digits", *settings))
    return experiment, experiment.method.stages.project.choice


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (["method.public_epochs=1"], math.ceil(137 / 10)),
        (["method.public_epochs=3"], 3 * 14),
        (["method.public_epochs=clients"], 5 * 14),  # the paper: the clients' epochs
        (["method.public_epochs=client-steps"], 5 * 1),  # a client has two samples, so one batch an epoch
        (["method.public_epochs=clients", "local.epochs=", "local.steps=7"], 7),
        (["method.public_epochs=2", "local.epochs=", "local.steps=7"], 2 * 14),
        (["method.public_epochs=client-steps", "data.partition=dirichlet", "data.alpha=1.0"], 5 * 14),
    ],
)
def test_the_number_of_steps_follows_from_settings_alone(settings, steps):
    _, choice = map_of(*settings)
    assert choice.trainer.period == steps


def test_one_pass_is_one_epoch_of_sgd_over_every_public_sample():
    """Beside plain SGD written out here, over the batches of the stream that the run draws from."""
    experiment, choice = map_of("method.public_epochs=1", "local.momentum=0.0")
    start = experiment.start.broadcast
    update = choice.trainer.train_on(
        choice.inputs, choice.labels, start, number=0, seeds=experiment.seeds, purpose="public.shuffle"
    )
    model, weights, seen = experiment.model, start.clone(), []
    keys = experiment.seeds.keys("public.shuffle", 0, np.array([0]), (1, 137))
    order = np.argsort(keys[0, 0], kind="stable")
    for rows in np.array_split(order, range(10, len(order), 10)):
        weights.requires_grad_(True)
        outputs = model.forward(weights, choice.inputs[rows])
        slope = torch.autograd.grad(torch.nn.functional.cross_entropy(outputs, choice.labels[rows]), weights)[0]
        weights = (weights - 0.5 * slope).detach()
        seen += rows.tolist()
    assert sorted(seen) == list(range(137))
    torch.testing.assert_close(update, weights - start, rtol=1e-4, atol=1e-5)
    chosen = choice.for_round(start, 0, experiment.seeds).indices
    assert torch.equal(chosen, top_indices(update[None], choice.kept)[0])


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("given", ["1", "4", "clients", "client-steps"])
def test_an_audit_chooses_the_coordinates_again_and_finds_another_period(tmp_path, given):
    folder = run_folders.run(tmp_path / "run", *TOPK, f"method.public_epochs={given}", "local.epochs=2")
    assert verdict_of_coordinates(folder)
    other = {"1": "4", "4": "client-steps"}.get(given, "9")
    text = (folder / "config.toml").read_text()
    old = given if given.isdigit() else f'"{given}"'
    new = other if other.isdigit() else f'"{other}"'
    assert f"public_epochs = {old}" in text
    (folder / "config.toml").write_text(text.replace(f"public_epochs = {old}", f"public_epochs = {new}"))
    assert not verdict_of_coordinates(folder)


def test_a_folder_of_0_2_is_audited_by_its_own_period(tmp_path):
    folder = run_folders.run(tmp_path / "run", *TOPK, "method.public_epochs=client-steps", "local.epochs=2")
    path = folder / "config.toml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "public_epochs" not in line))
    assert verdict_of_coordinates(folder)


def verdict_of_coordinates(folder):
    found = {check.name: check.passed for check in audit_run(folder).checks}
    return found[OF_PERIOD]


def test_a_preset_names_a_number_and_never_the_clients_period():
    for name in catalogue.preset_names():
        config = parse(catalogue.preset_tables(name), source=name)
        assert isinstance(config.method.public_epochs, int), name
