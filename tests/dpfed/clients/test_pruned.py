"""FedSparsify's training against an ordinary module whose weights are multiplied by a mask, and its server."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from local_training import batches, training_of
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfed.clients import LocalTraining, Sgd
from dpfed.clients.optimisers import PrunedSgd
from dpfed.compress.sparse import FedSparsify, purge, purged_count
from dpfed.errors import ConfigError
from dpfed.models import FlatModel
from dpfed.seeds import Seeds
from dpfed.server.rules import Averaging, Purging, ServerState

SEEDS = Seeds(root=11)
SIZES = [12, 0, 7, 5, 13]
CLIENTS = np.arange(len(SIZES))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def trainer(strategy: str = "loop", sparsity: Any = None, **course: Any) -> LocalTraining:
    model = FlatModel(network)
    sgd = Sgd(size=model.size, learning_rate=0.3, momentum=0.5, learning_rate_decay=0.9)
    options = {"sgd": sgd, "prunable": model.indices("weight"), "sparsity": sparsity} | course
    return training_of(model, PrunedSgd(**options), SIZES, mixed=True, epochs=3, strategy=strategy)


def sparse_broadcast(model: FlatModel) -> Tensor:
    return purge(model.initial(0)[None], model.indices("weight"), 0.4)[0]


def by_torch(training: LocalTraining, broadcast: Tensor, client: int, fault: str = "") -> Tensor:
    """The model of one client in round 2, before any purge of its own."""
    module = network()
    layout = training.model.layout
    module.load_state_dict({b.name: broadcast[b.start : b.stop].view(b.shape) for b in layout}, strict=False)
    masks = [(p, (p != 0).float()) for name, p in module.named_parameters() if name in ("0.weight", "3.weight")]
    if fault == "biases, too":
        masks.append((module[3].bias, torch.zeros(4)))  # type: ignore[index,arg-type]

    def mask() -> None:
        with torch.no_grad():
            for parameter, ones in masks:
                parameter.mul_(ones)

    optimiser = torch.optim.SGD(module.parameters(), lr=0.3 * 0.9**2, momentum=0.5)
    for inputs, labels in batches(training, client, number=2, seeds=SEEDS):
        if fault != "masked at the end only":
            mask()
        optimiser.zero_grad()
        cross_entropy(module(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    if fault != "not masked at the end":
        mask()
    state = module.state_dict()
    return torch.cat([state[block.name].reshape(-1) for block in layout])


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_the_global_variant_equals_a_masked_module(strategy: str) -> None:
    training = trainer(strategy)
    broadcast = sparse_broadcast(training.model)
    moves = training.train(broadcast, CLIENTS, number=2, seeds=SEEDS)
    expected = torch.stack([by_torch(training, broadcast, int(client)) for client in CLIENTS])
    torch.testing.assert_close(broadcast + moves, expected, rtol=1e-3, atol=1e-5)
    zeros = (broadcast == 0) & torch.zeros_like(broadcast).index_fill_(0, training.model.indices("weight"), 1).bool()
    assert zeros.sum() == 32
    assert not (broadcast + moves)[:, zeros].any()
    assert not moves[1].any()


@pytest.mark.parametrize("fault", ["masked at the end only", "not masked at the end", "biases, too"])
def test_planted_faults_are_seen(fault: str) -> None:
    training = trainer()
    broadcast = sparse_broadcast(training.model)
    move = training.train(broadcast, CLIENTS[:1], number=2, seeds=SEEDS)[0]
    assert (broadcast + move - by_torch(training, broadcast, 0, fault)).abs().max() > 1e-3


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_the_local_variant_purges_each_clients_own_weights(strategy: str) -> None:
    asked = []

    def sparsity(number: int) -> float:
        asked.append(number)
        return 0.65

    training = trainer(strategy, sparsity)
    broadcast = sparse_broadcast(training.model)
    models = broadcast + training.train(broadcast, CLIENTS, number=2, seeds=SEEDS)
    weights = training.model.indices("weight").numpy()
    for client in CLIENTS:
        expected = by_torch(training, broadcast, int(client)).numpy()
        if client == 1:
            np.testing.assert_array_equal(models[client], expected)
            continue
        smallest = weights[np.argsort(np.abs(expected[weights]))[: math.floor(0.65 * len(weights))]]
        expected[smallest] = 0
        np.testing.assert_allclose(models[client], expected, rtol=1e-3, atol=1e-5)
        assert not models[client, smallest].any()
    assert set(asked) == {3}
    kept = models[:, weights] != 0
    assert (kept[0] != kept[2]).any()


@pytest.mark.parametrize("sparsity", [0.0, 0.29, 0.5, 0.97])
def test_purging_keeps_what_the_code_keeps(sparsity: float) -> None:
    models = torch.randn(3, 100, generator=torch.Generator().manual_seed(0)).round(decimals=1)  # with ties
    scheme = FedSparsify(sparsity=sparsity)
    expected = scheme.decode(scheme.encode(models))
    assert torch.equal(purge(models.clone(), torch.arange(100), sparsity), expected)
    assert purged_count(100, sparsity) == round(100 * sparsity)
    some = torch.arange(10, 60)
    purged = purge(models.clone(), some, sparsity)
    assert torch.equal(purged[:, some], purge(models[:, some].clone(), torch.arange(50), sparsity))
    assert torch.equal(purged[:, :10], models[:, :10])
    assert torch.equal(purged[:, 60:], models[:, 60:])


def test_the_server_purges_after_the_rule_and_keeps_the_zeros() -> None:
    rule = Purging(rule=Averaging(momentum=0.9), prunable=torch.arange(1, 9), sparsity=lambda number: 0.25 * number)
    state = ServerState(round=0, broadcast=torch.arange(1.0, 11.0), clip_norm=math.inf)
    first = rule.step(state, -torch.ones(10), count=1)
    assert first.broadcast.tolist() == [0, 0, 0, 3, 4, 5, 6, 7, 8, 9]
    assert state.broadcast[1] == 2
    second = rule.step(first, torch.zeros(10), count=1)  # momentum alone moves what is left
    torch.testing.assert_close(second.broadcast[:5], torch.tensor([-0.9, 0, 0, 0, 0]))
    torch.testing.assert_close(second.broadcast[5:], torch.tensor([4.1, 5.1, 6.1, 7.1, 8.1]))


@pytest.mark.parametrize("prunable", [torch.empty(0, dtype=torch.int64), torch.tensor([0, 200])])
def test_entries_that_do_not_exist_are_refused(prunable: Tensor) -> None:
    refused(ConfigError, "prunable", trainer, prunable=prunable)
    refused(ConfigError, r"sparsity=1\.0", purge, torch.ones(1, 3), torch.arange(3), 1.0)
