"""Clients of a model with BatchNorm train as an ordinary module in training mode, and keep their own statistics."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from local_training import batches, descend, training_of
from refusals import refused
from torch import Tensor, nn

from dpfed.clients import LocalTraining, Sgd
from dpfed.errors import ConfigError
from dpfed.models import FlatModel
from dpfed.models.frozen import freeze
from dpfed.seeds import Seeds

SEEDS = Seeds(root=11)
SIZES = [12, 0, 7, 5, 23, 13]
CLIENTS = np.arange(len(SIZES))


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 5), nn.BatchNorm1d(5, momentum=0.3), nn.ReLU(), nn.Linear(5, 4))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 3, 3, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 4, bias=False),
        nn.BatchNorm1d(4, affine=False),
    )


def trainer(factory: Any = dense, **changes: Any) -> LocalTraining:
    model = FlatModel(factory)
    course = changes.pop("course", Sgd(size=model.size, learning_rate=0.1, momentum=0.5))
    return training_of(changes.pop("model", model), course, SIZES, (16,), mixed=True, **({"epochs": 2} | changes))


def by_torch(training: LocalTraining, weights: Tensor, client: int, factory: Any) -> Tensor:
    """The state of an ordinary module after the client's batches, minus the broadcast."""
    module, layout = factory(), training.model.layout
    module.load_state_dict({b.name: weights[b.start : b.stop].view(b.shape) for b in layout}, strict=False)
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    descend(module, optimiser, batches(training, client, number=1, seeds=SEEDS))
    state = module.state_dict()
    return torch.cat([state[block.name].reshape(-1) for block in layout]) - weights


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("factory", [dense, convolutional])
@pytest.mark.parametrize("changes", [{}, {"batch_size": 9}, {"batch_size": 100}, {"epochs": None, "steps": 4}], ids=str)
def test_weights_and_statistics_equal_an_ordinary_module(strategy: str, factory: Any, changes: dict[str, Any]) -> None:
    """Batches of 5 and 2, of 9, 7, 5 and 3, or whole clients of four sizes: short ones are padded under vmap."""
    training = trainer(factory, strategy=strategy, **changes)
    weights = training.model.initial(0)
    weights[training.model.parameters_size :].add_(0.3)
    moves = training.train(weights, CLIENTS, number=1, seeds=SEEDS)
    expected = torch.stack([by_torch(training, weights, int(client), factory) for client in CLIENTS])
    torch.testing.assert_close(moves, expected, rtol=1e-3, atol=2e-5)
    statistics = moves[:, training.model.parameters_size :]
    assert not moves[1].any()
    assert (statistics[0] - statistics[2]).abs().max() > 1e-3  # each its own


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_a_client_moves_alike_alone_and_in_any_chunk(strategy: str) -> None:
    training = trainer(convolutional, strategy=strategy)
    weights = training.model.initial(0)
    kept = weights.clone()
    whole = training.train(weights, CLIENTS, number=0, seeds=SEEDS)
    for chunk in (1, 4):
        again = replace(training, chunk=chunk).train(weights, CLIENTS, number=0, seeds=SEEDS)
        torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-6)
    alone = training.train(weights, np.array([4]), number=0, seeds=SEEDS)[0]
    torch.testing.assert_close(alone, whole[4], rtol=1e-4, atol=1e-6)
    assert torch.equal(weights, kept)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_a_diverging_client_spoils_its_own_statistics_only(strategy: str) -> None:
    training = trainer(strategy=strategy)
    weights = training.model.initial(0)
    healthy = training.train(weights, CLIENTS, number=0, seeds=SEEDS)
    inputs = training.inputs.clone()
    inputs[training.partition.of(3)[0]] = float("inf")
    moves = replace(training, inputs=inputs).train(weights, CLIENTS, number=0, seeds=SEEDS)
    assert moves[3, -1].isnan()
    torch.testing.assert_close(moves[CLIENTS != 3], healthy[CLIENTS != 3])


@pytest.mark.parametrize(
    "changes", [{"batch_size": 11}, {"batch_size": 1}, {"batch_size": 6, "epochs": None, "steps": 2}]
)
def test_batches_of_one_sample_are_refused_where_batch_norm_has_one_value(changes: dict[str, Any]) -> None:
    refused(ConfigError, r"client \d has \d+ samples and so a batch of one.*GroupNorm", trainer, **changes)
    images = FlatModel(lambda: nn.Sequential(*list(convolutional())[:-1]))  # type: ignore[call-overload]
    trainer(model=images, course=Sgd(size=images.size, learning_rate=0.1), **changes)  # four values a channel


def test_a_batch_of_one_that_is_never_reached_is_no_fault() -> None:
    trainer(batch_size=6, epochs=None, steps=1)


def test_frozen_networks_refuse_batch_norm() -> None:
    refused(ConfigError, r"BatchNorm.*GroupNorm", lambda: freeze(FlatModel(dense), SEEDS))
