"""Local SGD: each client by itself, whoever else trains; its steps are those of torch in test_optimisers.py."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from local_training import training_of
from refusals import refused

from dpfed.clients import LocalTraining, Sgd
from dpfed.data import Partition
from dpfed.errors import ConfigError
from dpfed.models import build
from dpfed.seeds import Seeds

SEEDS = Seeds(root=11)
SIZES = [12, 0, 7, 5, 1, 23, 12]
CLIENTS = np.arange(len(SIZES))


def trainer(**changes: Any) -> LocalTraining:
    optimiser = {"learning_rate": 0.3, "learning_rate_decay": 0.9, "momentum": 0.5}
    optimiser |= {key: changes.pop(key) for key in list(changes) if key in optimiser}
    model = changes.pop("model", None) or build("mlp", (6,), 4, hidden=(5,))
    defaults = {} if "steps" in changes else {"epochs": 3}
    return training_of(model, Sgd(size=model.size, **optimiser), SIZES, mixed=True, **defaults | changes)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_a_client_without_samples_does_not_move(strategy: str) -> None:
    sgd = trainer(strategy=strategy)
    weights = sgd.model.initial(0)
    assert not sgd.train(weights, CLIENTS, number=0, seeds=SEEDS)[1].any()
    assert not sgd.train(weights, np.array([1]), number=0, seeds=SEEDS).any()
    assert sgd.train(weights, np.array([], dtype=np.int64), number=0, seeds=SEEDS).shape == (0, sgd.model.size)


def test_a_loop_is_bit_identical_whoever_else_trains_and_on_any_number_of_threads() -> None:
    sgd = trainer(strategy="loop", model=build("mlp", (6,), 4, hidden=(300,)))
    weights = sgd.model.initial(0)
    together = sgd.train(weights, CLIENTS[::-1].copy(), number=0, seeds=SEEDS).flip(0)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for client in CLIENTS:
                alone = sgd.train(weights, np.array([client]), number=0, seeds=SEEDS)[0]
                assert torch.equal(alone, together[client])
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_training_leaves_its_arguments_and_the_global_generator_alone(strategy: str) -> None:
    sgd = trainer(strategy=strategy)
    weights, state = sgd.model.initial(0), torch.get_rng_state()
    kept = weights.clone()
    first = sgd.train(weights, CLIENTS, number=0, seeds=SEEDS)
    assert torch.equal(weights, kept)
    assert torch.equal(state, torch.get_rng_state())
    with torch.no_grad():
        assert torch.equal(first, sgd.train(weights, CLIENTS, number=0, seeds=SEEDS))
    assert not torch.equal(first, sgd.train(weights, CLIENTS, number=1, seeds=SEEDS))


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_train_on_equals_a_client_with_those_samples(strategy: str) -> None:
    sgd = trainer(strategy=strategy, learning_rate_decay=1.0)
    weights, rows = sgd.model.initial(0), torch.from_numpy(sgd.partition.of(5))
    update = sgd.train_on(sgd.inputs[rows], sgd.labels[rows], weights, number=0, seeds=SEEDS, purpose="server.public")
    alone = Partition(indices=np.arange(23), offsets=np.array([0, 23]))
    twin = replace(sgd, inputs=sgd.inputs[rows], labels=sgd.labels[rows], partition=alone)
    full_batch: dict[str, Any] = {"batch_size": 23, "epochs": None, "steps": 4}
    expected = replace(twin, **full_batch).train(weights, np.array([0]), number=0, seeds=SEEDS)[0]
    given = replace(sgd, **full_batch).train_on(
        sgd.inputs[rows], sgd.labels[rows], weights, number=0, seeds=SEEDS, purpose="server.public"
    )
    assert sgd.period == 3 * 5
    assert update.shape == (sgd.model.size,)
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-6)  # full batches: the order does not matter


@pytest.mark.parametrize("epochs", [1, None])
def test_training_has_epochs_or_steps(epochs: int | None) -> None:
    refused(ConfigError, "exactly one", trainer, steps=epochs, epochs=epochs)


def test_train_raises_on_wrong_weights() -> None:
    sgd = trainer()
    weights = sgd.model.initial(0)
    for wrong in (weights[:-1], weights.double(), weights[None]):
        refused(ConfigError, "must be float32", sgd.train, wrong, CLIENTS, number=0, seeds=SEEDS)
