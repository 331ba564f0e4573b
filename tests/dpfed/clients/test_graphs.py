"""Steps recorded once and replayed give the moves of a loop; what cannot be recorded is trained without.

A recorder of a CPU keeps the work and does it at every replay. What it shows is all but CUDA's own part: that a replay
reads and writes the memory that was recorded, and that this memory is filled and emptied.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpfed.clients import LocalTraining, Sgd, graphs
from dpfed.clients.graphs import MOST_RECORDED, RecordedGradients, Work
from dpfed.clients.masked_noise import MaskedNoise
from dpfed.clients.masks import MaskTraining
from dpfed.clients.plan import cheapest, cost_of
from dpfed.clients.schedule import Schedule
from dpfed.clients.task import Course, LocalTask
from dpfed.compress.masked_noise import random_noise
from dpfed.data import Partition
from dpfed.errors import ConfigError
from dpfed.models import build
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import freeze
from dpfed.seeds import Seeds

SEEDS = Seeds(root=7)
SIZES = [12, 12, 7, 5, 0, 23, 12, 3]
CLIENTS = np.arange(len(SIZES))
COURSES = ["sgd", "momentum", "masks", "masked noise", "normalised"]


def network(*, normalised: bool = False) -> FlatModel:
    def layers() -> nn.Module:
        norm = (nn.BatchNorm2d(4),) if normalised else ()
        dense = nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4)
        return nn.Sequential(nn.Conv2d(1, 4, 3), *norm, nn.ReLU(), nn.MaxPool2d(2), *dense)

    return FlatModel(layers)


def course(name: str, model: FlatModel) -> Course:
    if name == "masks":
        return MaskTraining(network=freeze(model, SEEDS), learning_rate=0.1)
    if name == "masked noise":
        noise = partial(random_noise, noise="uniform", alpha=0.1)
        return MaskedNoise(size=model.size, masked=model.compressible, noise=noise, learning_rate=0.1)
    return Sgd(size=model.size, learning_rate=0.1, momentum=0.5 if name == "momentum" else 0.0)


class Keeper:
    """Records on a CPU; counts what was recorded and replayed."""

    def __init__(self) -> None:
        self.recorded: list[int] = []
        self.replayed = 0

    def __call__(self, work: Work, clients: int) -> Callable[[], None]:
        self.recorded.append(clients)

        def replay() -> None:
            self.replayed += 1
            for client in range(clients):
                work(client)

        return replay


def trainer(name: str, chunk: int | None = None, record: graphs.Recorder | None = None) -> LocalTraining:
    """A loop, or recorded steps of chunks."""
    generator, model = torch.Generator().manual_seed(0), network(normalised=name == "normalised")
    count = sum(SIZES)
    training = LocalTraining(
        model=model,
        course=course(name, model),
        inputs=torch.randn(count, 1, 10, 10, generator=generator),
        labels=torch.randint(4, (count,), generator=generator),
        partition=Partition(indices=np.arange(count), offsets=np.concatenate([[0], np.cumsum(SIZES)])),
        epochs=2,
        batch_size=5,
        strategy="loop" if record is None else "vmap",
        chunk=chunk,
    )
    if record is not None:
        vars(training)["_gradients"] = RecordedGradients(record)
    return training


def moves(training: LocalTraining, rounds: int = 2) -> list[Tensor]:
    """Of some rounds, each from other weights."""
    first = training.course.network.initial if isinstance(training.course, MaskTraining) else training.model.initial(0)
    return [training.train(first * (1 - 0.1 * r), CLIENTS, number=r, seeds=SEEDS) for r in range(rounds)]


def close(found: list[Tensor], expected: list[Tensor]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(torch.allclose(one, other, rtol=2e-3, atol=2e-5) for one, other in pairs)


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("name", COURSES)
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_replays_give_the_moves_of_a_loop(name: str, chunk: int) -> None:
    keeper = Keeper()
    assert close(moves(trainer(name, chunk, keeper)), moves(trainer(name)))
    assert keeper.replayed > 2 * len(keeper.recorded)
    assert 0 < len(keeper.recorded) <= 8


FILLED = ["_weights", "_rows", "_shares"]


@pytest.mark.parametrize("stale", FILLED)
def test_memory_that_is_not_filled_again_would_be_noticed(stale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = graphs._Recording.replay

    def replay(self: graphs._Recording, weights: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
        given = {"_weights": weights, "_rows": rows, "_shares": shares}
        kept = getattr(self, stale).clone()
        return real(self, *(kept if name == stale else given[name] for name in FILLED))

    expected = moves(trainer("sgd"))
    monkeypatch.setattr(graphs._Recording, "replay", replay)
    assert not close(moves(trainer("sgd", 3, Keeper())), expected)


def idle(work: Work, clients: int) -> Callable[[], None]:
    return lambda: None


def forbidden(work: Work, clients: int) -> Callable[[], None]:
    raise RuntimeError("operation not permitted when stream is capturing\nmore")


def wordless(work: Work, clients: int) -> Callable[[], None]:
    raise RuntimeError


@pytest.mark.parametrize(
    ("record", "why"),
    [(idle, "did not give what"), (forbidden, "not permitted when stream is c"), (wordless, "RuntimeError")],
)
def test_what_cannot_be_recorded_is_trained_without(record: graphs.Recorder, why: str) -> None:
    training = trainer("normalised", 3, record)
    with pytest.warns(RuntimeWarning, match=rf"CUDA graphs do not work here \(.*{why}") as told:
        found = moves(training)
    assert len(told) == 1
    assert close(found, moves(trainer("normalised")))


def test_when_memory_runs_out_half_as_many_go_on() -> None:
    keeper = Keeper()

    def record(work: Work, clients: int) -> Callable[[], None]:
        if clients > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return keeper(work, clients)

    training = trainer("sgd", 4, record)
    with pytest.warns(RuntimeWarning, match="no memory for 4 clients"):
        found = moves(training)
    assert training.plan.chunk == 2
    assert set(keeper.recorded) <= {1, 2}
    assert close(found, moves(trainer("sgd")))


def test_a_client_that_diverges_stays_its_own_affair() -> None:
    training, alone = trainer("sgd", 4, Keeper()), trainer("sgd")
    for one in (training, alone):
        one.inputs[0] = torch.inf
    found, expected = moves(training), moves(alone)
    for ours, theirs in zip(found, expected, strict=True):
        assert not ours[0].isfinite().all()
        assert torch.allclose(ours[1:], theirs[1:], rtol=2e-3, atol=2e-5)


def test_graphs_need_a_gpu() -> None:
    model = network()
    with pytest.raises(ConfigError, match="strategy='graphs' on cpu: CUDA graphs are for CUDA GPUs"):
        LocalTraining(
            model=model,
            course=course("sgd", model),
            inputs=torch.zeros(2, 1, 10, 10),
            labels=torch.zeros(2, dtype=torch.int64),
            partition=Partition(indices=np.arange(2), offsets=np.array([0, 2])),
            epochs=1,
            batch_size=2,
            strategy="graphs",
        )


@pytest.mark.parametrize(("name", "strategy"), [("mlp", "vmap"), ("fed-smp-cnn", "graphs")])
def test_a_gpu_records_convolutions(name: str, strategy: str) -> None:
    shape = (1, 28, 28)
    cost = cost_of(build(name, shape, 10), torch.zeros(1, *shape), 10)
    plan = cheapest(cost, 100, 1000, torch.device("cuda"))
    assert plan.strategy == strategy
    assert "ms recorded, 100 side by side" in plan.why


class NoWaiting(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold: results whose values or shape the host must learn from the device."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique")

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert operation.overloadpacket.__name__.strip("_") not in [name.strip("_") for name in self.WAITS], operation
        return operation(*args, **(kwargs or {}))


MODELS = {
    "mlp": (1, 28, 28),
    "fed-smp-cnn": (1, 28, 28),
    "strided-cnn": (1, 28, 28),
    "cnn-4-bn": (3, 32, 32),
    "conv-4": (3, 32, 32),
}


def recorded_step(model: FlatModel, shape: tuple[int, ...]) -> None:
    """One step of two clients, replayed under `NoWaiting`."""

    def record(work: Work, clients: int) -> Callable[[], None]:
        def replay() -> None:
            with NoWaiting():
                for client in range(clients):
                    work(client)

        return replay

    task = LocalTask(
        model=model,
        course=Sgd(size=model.size, learning_rate=0.1),
        broadcast=model.initial(0),
        inputs=torch.randn(6, *shape, generator=torch.Generator().manual_seed(0)),
        labels=torch.arange(6) % 3,
        clients=np.arange(2),
        schedule=Schedule(
            samples=np.arange(6).reshape(2, 1, 3),
            real=np.ones((2, 1, 3), dtype=np.bool_),
            steps=np.ones(2, dtype=np.int64),
        ),
        round=0,
        seeds=SEEDS,
    )
    weights, rows, shares = task.broadcast.repeat(2, 1), torch.arange(6).view(2, 3), torch.full((2, 3), 1 / 3)
    gradients = RecordedGradients(record)
    expected = gradients(task, weights.clone(), rows, shares)
    for _ in range(2):  # recorded, then replayed
        assert torch.allclose(gradients(task, weights.clone(), rows, shares), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_recorded_waits_for_the_device(name: str) -> None:
    recorded_step(build(name, MODELS[name], 10), MODELS[name])


def test_a_network_that_waits_would_be_noticed() -> None:
    class Waits(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs.flatten(1)) * float(inputs.abs().max())

    with pytest.raises(AssertionError, match="_local_scalar_dense"):
        recorded_step(FlatModel(lambda: Waits(8, 3)), (8,))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", COURSES)
def test_a_gpu_gives_the_moves_of_a_loop(name: str) -> None:
    model, generator = network(normalised=name == "normalised"), torch.Generator().manual_seed(0)
    found = []
    for strategy in ("graphs", "vmap"):
        training = LocalTraining(
            model=model,
            course=course(name, model),
            inputs=torch.randn(96, 1, 10, 10, generator=generator.manual_seed(0)).cuda(),
            labels=torch.randint(4, (96,), generator=generator).cuda(),
            partition=Partition(indices=np.arange(96), offsets=np.arange(0, 97, 12)),
            epochs=3,
            batch_size=5,
            strategy=strategy,
        )
        assert training.plan.chunk is not None
        assert strategy == "vmap" or training.plan.chunk <= MOST_RECORDED
        found.append(training.train(model.initial(0).cuda(), np.arange(8), number=0, seeds=SEEDS))
    assert close(found[:1], found[1:])
