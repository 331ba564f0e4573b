"""Figure 3's training loss is that of the saved model on the clients' samples, by torch's own modules."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dpfed.cli import status
from dpfed.data import load

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_loss_of_a_sweeps_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = EXPERIMENTS / "fed-smp" / "figure-3-fashion-mnist.toml", tmp_path / "out"
    assert (
        status(
            [
                "sweep",
                str(file),
                "--profile",
                "smoke",
                "--only",
                "FedAvg-topk",
                "--out",
                str(out),
                "--jobs",
                "1",
                "--json",
            ]
        )
        == 0
    )
    monkeypatch.setattr(sys, "argv", ["training_loss.py", str(out)])
    runpy.run_path(str(EXPERIMENTS / "fed-smp" / "training_loss.py"), run_name="__main__")
    with (out / "training-loss.csv").open(encoding="utf-8", newline="") as stream:
        lines = {line["row"]: line for line in csv.DictReader(stream)}
    assert list(lines) == ["FedAvg-topk"]
    assert (out / "training-loss.pdf").exists()

    digits = load("digits")
    (model,) = (out / "fedavg-topk").glob("*/model.safetensors")
    tensors = load_file(model)
    (first, first_bias), (last, last_bias) = zip(*[iter(tensors[name] for name in order(tensors))] * 2, strict=True)
    inputs = torch.from_numpy(digits.train_inputs).flatten(1)
    logits = torch.relu(inputs @ first.T + first_bias) @ last.T + last_bias
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(digits.train_labels))
    assert len(digits.train_labels) > 1300
    loss = float(lines["FedAvg-topk"]["training_loss"])
    assert loss == pytest.approx(float(expected), rel=0.02)  # 137 of the samples are public, and with no client
    assert loss != pytest.approx(float(expected), rel=1e-6)


def order(tensors: dict[str, torch.Tensor]) -> list[str]:
    """Weight and bias of the first layer, then of the second."""
    return sorted(sorted(tensors, reverse=True), key=lambda name: name.rpartition(".")[0])
