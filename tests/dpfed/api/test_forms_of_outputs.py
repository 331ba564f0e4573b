"""Outputs and targets of other forms: multi-label, ignored labels, classes last, dictionaries and objects."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dpfed
from dpfed import data
from dpfed.clients.losses import CROSS_ENTROPY, cross_entropy_without
from dpfed.errors import ConfigError, DataError
from dpfed.models.networks import Logits
from dpfed.runs.evaluate import Objective

GENERATOR = torch.Generator().manual_seed(5)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)


def run(folder: Path, data: Any, model: nn.Module, **settings: Any) -> Any:
    tables = {"federation.rounds": 1, "federation.cohort": 4, "privacy.epsilon": None, "privacy.noise_multiplier": 1.0}
    chosen = tables | {name.replace("__", "."): value for name, value in settings.items()}
    return dpfed.run("dp-fedavg-digits", chosen, data=data, model=model, out=folder / "run", progress=False)


class Fixed(nn.Module):
    """Logits that do not depend on the inputs."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), *self.logits.shape)


def labelled(targets: Tensor, **options: Any) -> Any:
    pair = torch.randn(len(targets), 4, generator=GENERATOR), targets
    return dpfed.data.from_clients([pair] * 8, pair, **{"classes": None, **options})


def test_binary_targets_have_metrics_of_probabilities_and_an_accuracy(tmp_path: Path) -> None:
    targets = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    settings = {"local__loss": "binary-cross-entropy", "local__learning_rate": 1e-9, "privacy__clip_norm": 1e-9}
    done = run(tmp_path, labelled(targets), Fixed([20.0, -20.0, 1.0]), **settings)
    likely = 1 / (1 + np.exp(-1))
    assert done.summary["test_accuracy"] == pytest.approx((4 + 3 + 2) / 12)
    assert done.summary["test_mae"] == pytest.approx((0 + 1 + 2 * (1 - likely) + 2 * likely) / 12, abs=1e-6)
    most_frequent = done.experiment.objective.majority_accuracy(targets.numpy())
    assert most_frequent == pytest.approx((1 + 0.75 + 0.5) / 3)
    chosen = run(tmp_path / "other", labelled(targets), Fixed([1.0] * 3), run__metrics=["accuracy", "rmse"], **settings)
    assert {"test_accuracy", "test_rmse"} <= chosen.summary.keys()
    soft = run(tmp_path / "soft", labelled(targets / 2), Fixed([1.0] * 3), **settings)
    assert soft.summary["test_accuracy"] is None


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("ignored", [255, -100])
def test_ignored_labels_count_in_neither_loss_nor_accuracy(ignored: int, tmp_path: Path) -> None:
    labels = torch.tensor([[0, ignored, 1], [1, 1, ignored], [ignored, ignored, ignored], [2, 0, 0]])
    logits = torch.randn(4, 3, 3, generator=GENERATOR)
    losses = cross_entropy_without(ignored).each(logits, labels)
    for row in (0, 1, 3):
        counted = labels[row] != ignored
        expected = cross_entropy(logits[row].T[counted], labels[row][counted])
        torch.testing.assert_close(losses[row], expected)
    assert losses[2] == 0
    accuracies = Objective(ignored=ignored).accuracies(logits, labels)
    assert bool(accuracies[2].isnan())
    assert float(accuracies[3]) == float((logits[3].argmax(0) == labels[3]).double().mean())
    torch.testing.assert_close(
        cross_entropy_without(7).each(logits, labels.clamp(0, 2)), CROSS_ENTROPY.each(logits, labels.clamp(0, 2))
    )
    done = run(tmp_path, labelled(labels, classes=3, ignored=ignored), Fixed([[5.0] * 3, [0.0] * 3, [0.0] * 3]))
    assert 0 <= done.summary["test_accuracy"] <= 1
    refused(DataError, "not among the 3 declared classes", labelled, labels, classes=3)


def test_the_key_of_ignored_labels_is_read_with_files_only(tmp_path: Path) -> None:
    """data.ignored of a file and of a table; other labels outside the classes are refused as before."""
    inputs, labels = np.ones((4, 2), dtype=np.float32), np.array([[0, -100], [1, 1], [-100, -100], [1, 0]])
    one_each = {"train_inputs": inputs, "test_inputs": inputs}
    np.savez(tmp_path / "padded.npz", **one_each, train_labels=labels, test_labels=labels, classes=2)
    np.savez(tmp_path / "single.npz", **one_each, train_labels=labels[:, 1], test_labels=labels[:, 1], classes=2)
    np.savez(tmp_path / "numbers.npz", **one_each, train_targets=labels, test_targets=labels)
    for half in ("train", "test"):
        (tmp_path / f"{half}.csv").write_text("x,y\n1.5,0\n2.5,255\n")
    assert data.load("padded.npz", tmp_path, ignored=-100).ignored == -100
    table = data.Columns(inputs=("x",), label="y")
    assert data.load("train.csv", tmp_path, classes=2, columns=table, ignored=255).ignored == 255
    refused(DataError, "not among the 2 declared classes", data.load, "padded.npz", tmp_path)
    refused(DataError, "targets that are no classes", data.load, "numbers.npz", tmp_path, ignored=-100)
    network = {"model.name": "mlp", "model.hidden": (4,), "data.root": str(tmp_path), "federation.clients": 2}
    private = {"privacy.epsilon": None, "privacy.noise_multiplier": 1.0, "federation.cohort": 1}
    settings = network | private | {"data.ignored": -100, "federation.rounds": 1, "local.batch_size": 2}
    with pytest.raises(ConfigError, match=r"data\.ignored=-100 has no effect here"):
        dpfed.run("dp-fedavg-digits", settings, out=tmp_path / "digits")
    skewed = {"data.name": "single.npz", "data.partition": "dirichlet", "data.alpha": 1.0}
    with pytest.raises(ConfigError, match="do not have one class each"):
        dpfed.run("dp-fedavg-digits", settings | skewed, out=tmp_path / "skewed")
    done = dpfed.run("dp-fedavg-digits", settings | {"data.name": "single.npz"}, out=tmp_path / "run", progress=False)
    assert 0 <= done.summary["test_accuracy"] <= 1


@dataclass
class Made:
    logits: Tensor


def test_logits_are_found_and_turned() -> None:
    first, last = torch.zeros(5, 3, 4), torch.zeros(5, 4, 3)
    hook = Logits((3, 4))

    def form(outputs: object, hook: Logits = hook) -> object:
        made = hook(nn.Identity(), (), outputs)
        return tuple(made.shape) if isinstance(made, Tensor) else made

    for outputs in (first, last, {"logits": last}, {"out": first}, Made(first), Made(last)):
        assert form(outputs) == (5, 3, 4)
    square, marked = Logits((3, 3)), torch.arange(9.0).reshape(1, 3, 3)
    assert torch.equal(square(nn.Identity(), (), marked), marked)  # type: ignore[arg-type]
    assert torch.equal(square(nn.Identity(), (), Made(marked)), marked.movedim(-1, 1))  # type: ignore[arg-type]
    assert form(torch.zeros(5, 7, 2)) == (5, 7, 2)
    assert form({"loss": 3}) == {"loss": 3}
    assert form(torch.zeros(5, 3), Logits(None)) == (5, 3)


class Sequences(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.table, self.out, self.wrap = nn.Embedding(9, 6), nn.Linear(6, 3), wrap

    def forward(self, tokens: Tensor) -> object:
        return self.wrap(self.out(self.table(tokens.long())))


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("wrap", [lambda made: made, lambda made: {"logits": made}, Made])
def test_a_label_for_each_token_trains(wrap: Callable[[Tensor], object], tmp_path: Path) -> None:
    def pair() -> Any:
        tokens = torch.randint(0, 9, (6, 5), generator=GENERATOR)
        return tokens, tokens % 3

    data = dpfed.data.from_clients([pair() for _ in range(8)], pair(), classes=3)
    done = run(tmp_path, data, Sequences(wrap))
    assert 0 <= done.summary["test_accuracy"] <= 1
    refused(ConfigError, "must give logits", lambda: run(tmp_path / "other", data, Sequences(lambda made: made[:, :2])))
