"""Every strategy, chunk, number of workers gives the same moves, for every course; memory that runs out is met."""

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from local_training import training_of
from refusals import refused
from torch import Tensor, nn

from dpfed.clients import LocalTraining, Sgd, gradients
from dpfed.clients.masks import MaskedNoise, MaskTraining
from dpfed.clients.optimisers import PrunedSgd
from dpfed.clients.plan import chunk_within, fastest_plan, step_cost
from dpfed.clients.side_by_side import ChunkSize, allocate_moves, out_of_memory
from dpfed.clients.task import Course, RoundStart
from dpfed.compress.mask_schemes import random_noise
from dpfed.errors import GroupTooLarge, TrainingFailed
from dpfed.models import build
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import freeze
from dpfed.seeds import Seeds

SEEDS = Seeds(root=5)
SIZES = [12, 0, 7, 5, 1, 23, 12, 3]
CLIENTS = np.arange(len(SIZES))


def network() -> FlatModel:
    def layers() -> nn.Module:
        dense = nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), *dense)

    return FlatModel(layers)


def course(name: str, model: FlatModel) -> Course:
    size, rate = model.size, {"learning_rate": 0.1, "learning_rate_decay": 0.9}
    if name == "masked noise":
        noise = partial(random_noise, noise="uniform", alpha=0.1)
        return MaskedNoise(size=size, masked=model.compressible, noise=noise, **rate)
    if name == "masks":
        return MaskTraining(network=freeze(model, SEEDS), **rate, momentum=0.5)
    if name == "pruned":
        return PrunedSgd(sgd=Sgd(size=size, **rate), prunable=model.indices("weight"), sparsity=lambda number: 0.3)
    return Sgd(size=size, **rate, momentum=0.6 if name == "momentum" else 0.0)


COURSES = ["sgd", "momentum", "masks", "masked noise", "pruned"]


def trainer(name: str = "sgd", **changes: Any) -> LocalTraining:
    model = network()
    given = {"model": model, "course": course(name, model)} | changes
    return training_of(sizes=SIZES, shape=(1, 10, 10), **given)


def start(training: LocalTraining) -> Tensor:
    if isinstance(training.course, MaskTraining):
        return training.course.network.initial
    weights = training.model.initial(0)
    weights[::7] = 0.0  # something purged
    return weights


def moves(training: LocalTraining) -> Tensor:
    return training.train(start(training), CLIENTS, number=1, seeds=SEEDS)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("name", COURSES)
def test_all_ways_give_the_same_moves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = moves(trainer(name, strategy="loop"))
    assert plain.abs().sum(dim=1).count_nonzero() == len(SIZES) - 1
    for chunk in (1, 3):
        torch.testing.assert_close(moves(trainer(name, strategy="vmap", chunk=chunk)), plain, rtol=2e-3, atol=2e-5)
    threads = torch.get_num_threads()
    try:
        for workers in (2, 3):
            torch.set_num_threads(workers)
            assert torch.equal(moves(trainer(name, strategy="loop")), plain)
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(gradients, "_DENSE_FROM", 0)
    torch.testing.assert_close(moves(trainer(name, strategy="loop")), plain, rtol=2e-3, atol=2e-5)


def fails_above(most: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Training more than `most` clients at a time raises `error`, after some of them have been trained."""
    tried: list[int] = []
    real = Sgd.begin

    def begin(self: Sgd, start: RoundStart) -> Any:
        tried.append(len(start.clients))
        if len(start.clients) > most:
            raise error
        return real(self, start)

    monkeypatch.setattr(Sgd, "begin", begin)
    return tried


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to ..."),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_when_memory_runs_out_half_as_many_go_on(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = moves(trainer(strategy="vmap", chunk=8))
    tried = fails_above(3, error, monkeypatch)
    training = trainer(strategy="vmap", chunk=8)
    with pytest.warns(RuntimeWarning, match="no memory for . clients") as told:
        found = moves(training)
    assert len(told) == 2
    assert training.plan.chunk == 2
    assert tried == [8, 4, 2, 2, 2, 2]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    tried.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moves(training)  # the next round does not try again
    assert tried == [2, 2, 2, 2]


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_where_one_client_is_too_many_it_is_said_once(
    strategy: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_above(0, error, monkeypatch)
    refused(TrainingFailed, r"into memory .*local\.batch_size", lambda: moves(trainer(strategy=strategy, chunk=1)))


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_other_errors_are_not_taken_for_a_lack_of_memory(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = fails_above(0, RuntimeError("shapes differ"), monkeypatch)
    refused(RuntimeError, "shapes differ", lambda: moves(trainer(strategy=strategy, chunk=1)))
    assert 1 in tried


def test_moves_that_do_not_fit_name_the_group() -> None:
    with pytest.raises(GroupTooLarge, match=r"the moves of 1000000 clients.*run\.group"):
        allocate_moves(1_000_000, 1 << 40, torch.device("cpu"))


def test_the_allocators_own_error_is_known() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60)
    assert out_of_memory(raised.value)


def test_clients_beyond_the_failed_ones_are_trained_once() -> None:
    seen: list[tuple[int, int]] = []

    def train(first: int, last: int) -> None:
        if first == 4 and last - first > 1:
            raise MemoryError
        seen.append((first, last))

    chunk = ChunkSize(4)
    with pytest.warns(RuntimeWarning):
        chunk.train_in_chunks(7, train)
    assert seen == [(0, 4), (4, 5), (5, 6), (6, 7)]


@pytest.mark.parametrize(
    ("name", "batch", "clients", "strategy"),
    [("mlp", 10, 100, "vmap"), ("mlp", 10, 1, "loop"), ("cnn", 1, 100, "vmap"), ("cnn", 1000, 100, "loop")],
)
def test_small_steps_of_many_clients_go_side_by_side(name: str, batch: int, clients: int, strategy: str) -> None:
    model, shape = (build("mlp", (8, 8), 10, hidden=(32,)), (8, 8)) if name == "mlp" else (network(), (1, 10, 10))
    cost = step_cost(model, torch.zeros(1, *shape), batch)
    assert fastest_plan(cost, clients, 100, torch.device("cpu")).strategy == strategy


def test_the_cost_counts_layers_and_multiplications() -> None:
    cost = step_cost(network(), torch.zeros(1, 1, 10, 10), 5)
    assert (cost.weights, cost.dense, cost.convolutions) == (40 + 64 * 16 + 16 + 16 * 4 + 4, 2, 1)
    assert (cost.products, cost.convolved) == (5 * (64 * 16 + 16 * 4), 5 * 8 * 8 * 4 * 9)


def test_the_choice_is_told_and_can_be_overridden() -> None:
    large = build("fed-smp-cnn", (1, 28, 28), 10)
    changes = {"model": large, "course": course("sgd", large), "inputs": torch.zeros(sum(SIZES), 1, 28, 28)}
    plan = trainer(**changes).plan
    assert (plan.strategy, plan.chunk) == ("loop", None)
    assert "ms in a loop" in plan.why
    assert trainer(**changes, strategy="vmap", chunk=7).plan.chunk == 7
    assert trainer(strategy="loop").plan.why == "as local.strategy says"


def test_the_budget_bounds_the_chunk() -> None:
    chunks = [trainer(strategy="vmap", memory=megabytes).plan.chunk for megabytes in (1, 2, 4)]
    assert all(chunk is not None for chunk in chunks)
    assert chunks[0] < chunks[1] < chunks[2]  # type: ignore[operator]
    cpu = torch.device("cpu")
    assert [chunk_within(budget, 1_000_000, cpu) for budget in (0, 5_000_000, 10**12)] == [1, 5, 20]
    assert chunk_within(10**12, 10, cpu) == 100
