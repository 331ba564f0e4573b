"""bf16 rounds gradients and nothing else; TF32 is where it was asked for and nowhere else."""

from typing import Any

import numpy as np
import pytest
import torch
from local_training import training_of
from torch import nn

from dpfed.clients import LocalTraining, Sgd
from dpfed.data import Partition
from dpfed.errors import ConfigError
from dpfed.mechanisms.records import GaussianRecords, gaussian_noise
from dpfed.models import build
from dpfed.models.flat import FlatModel
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

SEEDS = Seeds(root=1)


def trainer(**changes: Any) -> LocalTraining:
    model = changes.pop("model", None) or build("fed-smp-cnn-unpadded", (1, 20, 20), 4)
    course = Sgd(size=model.size, learning_rate=0.1)
    return training_of(model, course, [12, 18], shape=(1, 20, 20), **{"steps": 3, "batch_size": 6} | changes)


def with_batch_norm() -> FlatModel:
    def layers() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(1296, 4))

    return FlatModel(layers)


def moves(training: LocalTraining) -> torch.Tensor:
    return training.train(training.model.initial(0), np.arange(2), number=0, seeds=SEEDS)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_bf16_is_near_and_not_the_same(strategy: str) -> None:
    exact, rounded = (moves(trainer(strategy=strategy, precision=name, steps=1)) for name in ("float32", "bf16"))
    assert rounded.dtype == torch.float32
    error = float((rounded - exact).norm() / exact.norm())
    assert 1e-4 < error < 0.05
    assert torch.equal(rounded, moves(trainer(strategy=strategy, precision="bf16", steps=1)))


def test_a_step_below_bf16s_resolution_of_the_weights_is_kept() -> None:
    """Weights near 1, moves near 1e-4: a weight stored in bf16 could not move by less than 2^-8."""
    model = FlatModel(lambda: nn.Sequential(nn.Flatten(), nn.Linear(400, 4)))
    training = LocalTraining(
        model=model,
        course=Sgd(size=model.size, learning_rate=1e-4),
        inputs=torch.rand(6, 1, 20, 20, generator=torch.Generator().manual_seed(1)),
        labels=torch.arange(6) % 4,
        partition=Partition(indices=np.arange(6), offsets=np.array([0, 6])),
        steps=5,
        batch_size=6,
        precision="bf16",
        strategy="loop",
    )
    found = training.train(torch.ones(model.size), np.array([0]), number=0, seeds=SEEDS)[0]
    assert found.abs().max() < 2**-9
    assert (found != 0).float().mean() > 0.9


@pytest.mark.parametrize(
    ("width", "batch", "rounded"),
    [(500, 63, False), (500, 64, True), (499, 63, True)],
    ids=["200,000 weights", "a large batch", "fewer weights"],
)
def test_bf16_rounds_no_large_dense_layer_on_a_small_batch(width: int, batch: int, rounded: bool) -> None:
    """On a CPU, rounding 200,000 weights takes longer than their product with 63 rows."""
    model = FlatModel(lambda: nn.Sequential(nn.Flatten(), nn.Linear(400, width)))
    given: dict[str, Any] = {
        "model": model,
        "inputs": torch.rand(2 * batch, 1, 20, 20, generator=torch.Generator().manual_seed(1)),
        "labels": torch.arange(2 * batch) % 4,
        "partition": Partition(indices=np.arange(2 * batch), offsets=np.array([0, batch, 2 * batch])),
        "batch_size": batch,
        "strategy": "loop",
    }
    exact, found = (moves(trainer(precision=name, **given)) for name in ("float32", "bf16"))
    assert torch.equal(exact, found) != rounded


def test_statistics_stay_float32_and_near() -> None:
    model = with_batch_norm()
    exact, rounded = (moves(trainer(model=model, precision=name)) for name in ("float32", "bf16"))
    statistics = model.indices("statistic")
    torch.testing.assert_close(rounded[:, statistics], exact[:, statistics], rtol=0.02, atol=2e-3)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"precision": "tf32"}, "only CUDA GPUs have it"),
        ({"precision": "bf16", "model": with_batch_norm(), "strategy": "vmap"}, "BatchNorm"),
        (
            {
                "precision": "bf16",
                "record": GaussianRecords(clip_norm=1.0, noise=gaussian_noise(1.0), randomness=Simulated(seeds=SEEDS)),
            },
            "private records",
        ),
    ],
    ids=["tf32", "batch-norm", "records"],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        trainer(**changes)
