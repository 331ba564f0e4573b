"""Runs that predict numbers: a file of targets, losses and metrics of one's own, and what the folder says of them."""

import json

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.numpy import save_file
from safetensors.torch import load_file

from dpfed import data
from dpfed.audit.run import audit_run
from dpfed.config.tables import parse
from dpfed.errors import ConfigError, DataError
from dpfed.records.summary import read_finished
from dpfed.report.run import write_report
from dpfed.runs import loop as federation
from dpfed.runs.evaluate import mae, r2, rmse
from dpfed.runs.experiment import build
from dpfed.runs.training import CustomObjects

from ...rounds import stopped_run

CLIENTS, EACH = 30, 12


def arrays(*, shape=(2,), dtype=np.float32):
    """Inputs [n, 5] and targets that are linear in them."""
    generator = np.random.default_rng(0)
    weights, made = generator.normal(size=(5, *shape)), {}
    for half, count in (("train", CLIENTS * EACH), ("test", 80)):
        inputs = generator.normal(size=(count, 5))
        made[f"{half}_inputs"] = inputs.astype(np.float32)
        made[f"{half}_targets"] = np.tensordot(inputs, weights, 1).astype(dtype)
    return made


def tables(folder, *, name="numbers.safetensors", private=False, **tables):
    made = {
        "data": {"name": name, "root": str(folder)},
        "model": {"name": "mlp", "hidden": [8]},
        "federation": {"clients": CLIENTS, "cohort": 10, "rounds": 3},
        "local": {"learning_rate": 0.1, "epochs": 2, "batch_size": 6},
        "method": {"name": "dp-fedavg" if private else "fedavg"},
    }
    if private:
        made["privacy"] = {"clip_norm": 1.0, "noise_multiplier": 0.5}
    for key, values in tables.items():
        made[key] = made.get(key, {}) | values
    return parse(made, source="test")


@pytest.fixture
def folder(tmp_path):
    save_file(arrays(), tmp_path / "numbers.safetensors")
    return tmp_path


def outputs_of(saved, inputs):
    """The saved network on inputs, in numpy."""
    first, second = (np.asarray(saved[name]) for name in saved if name.endswith("weight"))
    one, two = (np.asarray(saved[name]) for name in saved if name.endswith("bias"))
    return np.maximum(inputs @ first.T + one, 0) @ second.T + two


@pytest.mark.drawn
@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("private", [False, True])
def test_a_file_of_targets_is_learnt_and_reported_without_code(folder, private):
    done = federation.run(build(tables(folder, private=private)), folder / "run")
    test = arrays()
    off = outputs_of(load_file(folder / "run" / "model.safetensors"), test["test_inputs"]) - test["test_targets"]
    spread = test["test_targets"] - test["test_targets"].mean(axis=0)
    expected = {"loss": (off**2).mean(), "mae": np.abs(off).mean(), "r2": 1 - (off**2).sum() / (spread**2).sum()}
    for name, value in expected.items():
        assert done.summary[f"test_{name}"] == pytest.approx(float(value), rel=1e-4)
        assert done.metrics[-1][f"test_{name}"] == pytest.approx(float(value), rel=1e-4)
    assert done.metrics[-1]["test_loss"] < done.metrics[0]["test_loss"]
    assert done.summary["loss"] == "mse"
    assert all(done.summary[key] is None for key in ("test_accuracy", "best_test_accuracy", "validation_accuracy"))
    assert all(line["test_accuracy"] is None for line in done.metrics)
    write_report(done)
    assert "Test r2" in (folder / "run" / "report.html").read_text()
    assert (folder / "run" / "curves.png").stat().st_size > 1000
    read_finished(folder / "run")
    assert not private or audit_run(folder / "run").verdict != "fail"


@pytest.mark.parametrize("loss", ["mse", "l1", "huber"])
def test_losses_and_metrics_have_names_in_the_configuration(folder, loss):
    experiment = build(tables(folder, local={"loss": loss}, run={"metrics": ["rmse"]}, data={"validation": 60}))
    done = federation.run(experiment, folder / "run")
    assert {"test_rmse", "validation_rmse", "validation_loss"} <= done.summary.keys()
    assert "test_mae" not in done.summary
    assert done.summary["loss"] == loss
    assert all(line["validation_rmse"] > 0 for line in done.metrics)


def logcosh(outputs, targets):
    return (outputs - targets).cosh().log().mean(dim=1)


def worst(outputs, targets):
    return (outputs - targets).abs().max()


def test_functions_of_ones_own_stand_under_their_names_and_a_resumed_run_needs_them(folder):
    config = tables(folder)
    metrics = {"worst": worst, "first": lambda outputs, targets: (outputs - targets)[:, 0].abs()}
    experiment = build(config, own=CustomObjects(loss=logcosh, metrics=metrics))
    stopped_run(experiment, folder / "run", after=2)
    assert 'loss = "own"' in (folder / "run" / "config.toml").read_text()
    refused(ConfigError, "was given in Python", build, experiment.config)
    done = federation.run(build(config, own=CustomObjects(loss=logcosh, metrics=metrics)), folder / "run", resume=True)
    test = arrays()
    off = outputs_of(load_file(folder / "run" / "model.safetensors"), test["test_inputs"]) - test["test_targets"]
    assert done.summary["test_loss"] == pytest.approx(float(np.log(np.cosh(off)).mean()), rel=1e-4)
    assert done.summary["test_worst"] == pytest.approx(float(np.abs(off).max()), rel=1e-4)
    assert done.summary["test_first"] == pytest.approx(float(np.abs(off[:, 0]).mean()), rel=1e-4)
    whole = federation.run(build(config, own=CustomObjects(loss=logcosh, metrics=metrics)), folder / "whole")
    assert done.metrics == whole.metrics


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("shape", [(), (1,), (3, 2)])
@pytest.mark.parametrize("method", ["fedavg", "fedpm", "fedmrn", "fedsparsify"])
def test_every_local_training_learns_targets_of_any_shape(tmp_path, shape, method):
    save_file(arrays(shape=shape), tmp_path / "numbers.safetensors")
    options = {"options": {"sparsity": 0.5}} if method == "fedsparsify" else {}
    local = {"learning_rate": 1.0} if method == "fedpm" else {}
    config = tables(tmp_path, method={"name": method, **options}, local=local)
    done = federation.run(build(config), tmp_path / "run")
    assert np.isfinite(done.summary["test_mae"])
    assert done.metrics[-1]["test_loss"] != done.metrics[0]["test_loss"]


def test_sequences_of_labels_have_cross_entropy_and_accuracy_of_places(tmp_path):
    from dpfed import models

    generator = np.random.default_rng(1)
    made = {}
    for half, count in (("train", CLIENTS * EACH), ("test", 40)):
        made[f"{half}_inputs"] = generator.normal(size=(count, 4)).astype(np.float32)
        made[f"{half}_labels"] = (made[f"{half}_inputs"] > 0).astype(np.int64)
    save_file(made, tmp_path / "places.safetensors", metadata={"classes": "2"})
    models.register(
        "places-of-a-test",
        lambda input_shape, classes: torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Unflatten(1, (classes, input_shape[0]))
        ),
    )
    config = tables(tmp_path, name="places.safetensors", model={"name": "places-of-a-test", "hidden": None})
    done = federation.run(build(config), tmp_path / "run")
    saved = load_file(tmp_path / "run" / "model.safetensors")
    logits = (made["test_inputs"] @ saved["0.weight"].numpy().T + saved["0.bias"].numpy()).reshape(-1, 2, 4)
    right = (logits.argmax(axis=1) == made["test_labels"]).mean()
    assert done.summary["test_accuracy"] == pytest.approx(float(right))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    taken = np.take_along_axis(chances, made["test_labels"][:, None], 1)
    assert done.summary["test_loss"] == pytest.approx(float(-np.log(taken).mean()), rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"local": {"loss": "cross-entropy"}}, r"local\.loss='cross-entropy'.*numbers, no classes.*mse"),
        ({"local": {"loss": "mze"}}, "Did you mean 'mse'"),
        ({"local": {"loss": "own"}}, "was given in Python"),
        ({"run": {"metrics": ["accuracy"]}}, "for labels of classes"),
        ({"run": {"metrics": ["mea"]}}, "Did you mean 'mae'"),
        ({"data": {"partition": "dirichlet", "alpha": 0.5}}, "divides samples by their class"),
    ],
)
def test_what_does_not_fit_targets_is_refused(folder, changes, complaint):
    refused(ConfigError, complaint, lambda: build(tables(folder, **changes)))


def test_what_does_not_fit_labels_is_refused(tiny_config):
    refused(ConfigError, "labels of 10 classes", lambda: build(tiny_config("local.loss=mse")))
    refused(ConfigError, "for numeric targets", lambda: build(tiny_config("run.metrics=['mae']")))
    one, named = CustomObjects(loss=torch.nn.CrossEntropyLoss()), tiny_config("local.loss=cross-entropy")
    refused(ConfigError, "one floating number per sample", build, tiny_config(), own=one)
    refused(ConfigError, "give only one of the two", build, named, own=CustomObjects(loss=logcosh))
    for name in ("loss", "accuracy", "two words", ""):
        own = CustomObjects(metrics={name: worst})
        refused(ConfigError, "cannot be the name of a metric", build, tiny_config(), own=own)


def test_files_of_targets_are_checked(tmp_path):
    def bad(made, complaint, **metadata):
        save_file(made, tmp_path / "bad.safetensors", metadata=metadata or None)
        refused(DataError, complaint, data.load, "bad.safetensors", tmp_path)

    good = arrays()
    bad({key: value for key, value in good.items() if key != "test_targets"}, "with targets these must be")
    bad(good | {"train_labels": np.zeros(CLIENTS * EACH, np.int64)}, "with targets these must be")
    bad(good, "which are not classes", classes="3")
    bad(good | {"test_targets": good["test_targets"][:, :1]}, "both must be equal")
    bad(good | {"train_targets": np.full_like(good["train_targets"], np.nan)}, "NaN or infinity")
    bad(good | {"train_targets": good["train_targets"][:-1]}, "360 samples with labels of shape")


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int64, np.uint16, np.float64, np.float16])
def test_targets_keep_their_kind(tmp_path, dtype):
    save_file(arrays(dtype=dtype), tmp_path / "numbers.safetensors")
    loaded = data.load("numbers.safetensors", tmp_path)
    kind = np.dtype(np.float32 if np.dtype(dtype).kind == "f" else np.int64 if dtype is np.uint16 else dtype)
    assert (loaded.train_labels.dtype, loaded.classes, loaded.outputs) == (kind, None, 2)
    items = list(zip(arrays()["train_inputs"], arrays(dtype=dtype)["train_targets"], strict=True))
    assert data.from_samples(items, items[:5], classes=None).train_labels.dtype == kind


def test_metrics_are_what_their_names_say():
    generator = np.random.default_rng(2)
    outputs, targets = generator.normal(size=(50, 3)), generator.normal(size=(50, 3))
    given = torch.from_numpy(outputs).float(), torch.from_numpy(targets).float()
    assert float(mae(*given)) == pytest.approx(np.abs(outputs - targets).mean(), rel=1e-5)
    assert float(rmse(*given)) == pytest.approx(np.sqrt(((outputs - targets) ** 2).mean()), rel=1e-5)
    spread = ((targets - targets.mean(0)) ** 2).sum()
    assert float(r2(*given)) == pytest.approx(1 - ((outputs - targets) ** 2).sum() / spread, rel=1e-5)
    assert float(r2(given[1], given[1])) == 1.0


def test_metrics_jsonl_is_json_where_a_metric_is_no_number(folder):
    metrics = {"nothing": lambda outputs, targets: float("nan")}
    federation.run(build(tables(folder), own=CustomObjects(metrics=metrics)), folder / "run")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["test_nothing"] is None for line in lines)
