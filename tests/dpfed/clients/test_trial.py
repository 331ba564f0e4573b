"""Custom networks and losses: state starts afresh with each client, and what still passes on is refused."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from custom_networks import (
    ClassCounts,
    FittedOnFirstBatch,
    FixedParameterWritten,
    HiddenState,
    LateBuffer,
    NumpyNoise,
    Plain,
    Queue,
    RunningMeanInHook,
)
from local_training import training_of
from refusals import refused
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.utils.checkpoint import checkpoint

from dpfed.clients import LocalTraining, Sgd
from dpfed.clients.losses import custom_loss
from dpfed.clients.masks import MaskTraining
from dpfed.clients.state import State, StateChanges
from dpfed.clients.task import InitialState
from dpfed.clients.trial import training_after_batch_trial, training_after_trial
from dpfed.errors import ConfigError
from dpfed.mechanisms.records import GaussianRecords, gaussian_noise
from dpfed.models import MODELS, build
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import freeze
from dpfed.models.networks import LstmLayer
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

SEEDS = Seeds(root=5)
SIZES = [12, 24, 7]
RECORD = GaussianRecords(clip_norm=1.0, noise=gaussian_noise(1.0), randomness=Simulated(seeds=SEEDS))
SEEN: dict[str, Any] = {}
"""Global of this module that networks below write to."""


KEEPS: list[Callable[[], nn.Module]] = [
    HiddenState,
    FittedOnFirstBatch,
    RunningMeanInHook,
    FixedParameterWritten,
    LateBuffer,
    Queue,
]


@pytest.fixture(autouse=True)
def _in_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfed.clients.trial.SECONDS", 0.05)


def points(model: FlatModel, shape: tuple[int, ...] = (6,), classes: int = 3, *, letters: bool = False) -> Any:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, *shape, generator=generator)
    if letters:
        inputs = torch.randint(0, 60, (60, *shape), generator=generator).float()
    return inputs, torch.randint(0, classes, (60,), generator=generator)


def trainer(model: FlatModel, samples: tuple[Tensor, Tensor], **changes: Any) -> LocalTraining:
    settings: dict[str, Any] = {"course": Sgd(size=model.size, learning_rate=0.1, momentum=0.5), "epochs": 2}
    settings |= {"batch_size": 4, "strategy": "loop", "inputs": samples[0], "labels": samples[1]}
    return training_of(model, sizes=SIZES, **settings | changes)


def after_trial(made: Callable[[], nn.Module] | FlatModel, **changes: Any) -> LocalTraining:
    model = made if isinstance(made, FlatModel) else FlatModel(made)
    samples = points(model)
    training = trainer(model, samples, **changes)
    start = InitialState(model, training.loss, torch.device("cpu"))
    return training_after_trial(training, model.initial(0), samples, start, cohort=5)


def updates(training: LocalTraining, clients: list[int], *, shift: float = 0.0) -> Tensor:
    """Updates after the first client's samples, 0 to 11, were moved by `shift`."""
    inputs = training.inputs.clone()
    inputs[:12] -= shift
    moved = LocalTraining(**{**vars_of(training), "inputs": inputs})
    return moved.train(training.model.initial(0), np.array(clients), number=0, seeds=SEEDS)


def vars_of(training: LocalTraining) -> dict[str, Any]:
    return {name: getattr(training, name) for name in training.__dataclass_fields__}


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("network", KEEPS)
def test_a_client_starts_afresh(network: Callable[[], nn.Module]) -> None:
    training = after_trial(network)
    alone = updates(training, [1])[0]
    assert torch.equal(updates(training, [0, 1])[1], alone)
    assert torch.equal(updates(training, [2, 0, 1], shift=30.0)[2], alone)
    assert torch.equal(updates(training, [2, 1])[0], updates(training, [1, 2, 0], shift=-30.0)[1])


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_a_client_with_masks_starts_afresh(strategy: str) -> None:
    """Weights that a mask chooses among are written before every batch; what else the network keeps is put back."""
    model = FlatModel(Positions if strategy == "vmap" else FittedOnFirstBatch)
    network, samples = freeze(model, SEEDS), points(model)
    training = trainer(model, samples, course=MaskTraining(network=network, learning_rate=0.1), strategy=strategy)
    start = InitialState(model, training.loss, torch.device("cpu"))
    training = training_after_trial(training, network.initial, samples, start, cohort=5)
    assert training.start is not None
    alone = training.train(network.initial, np.array([1]), number=0, seeds=SEEDS)[0]
    beside = training.train(network.initial, np.array([0, 2, 1]), number=0, seeds=SEEDS)[2]
    assert torch.equal(beside, alone) if strategy == "loop" else torch.allclose(beside, alone, atol=1e-5)


def test_a_client_starts_afresh_with_the_loss() -> None:
    training = after_trial(Plain, loss=custom_loss(ClassCounts()), batch_size=2)
    alone = updates(training, [2])[0]
    assert torch.equal(updates(training, [1, 0, 2])[2], alone)
    assert torch.equal(updates(training, [1, 0, 2], shift=30.0)[2], alone)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("changes", [{}, {"strategy": "vmap"}, {"record": RECORD}], ids=str)
@pytest.mark.parametrize("name", ["plain", "batch norm"])
def test_nothing_is_put_back_where_nothing_changes(name: str, changes: dict[str, Any]) -> None:
    if (name, *changes) != ("batch norm", "record"):
        assert after_trial(PASS[name], **changes).start is None


def test_state_that_threads_share_is_for_one_client_at_a_time() -> None:
    hook, own = after_trial(RunningMeanInHook), after_trial(FittedOnFirstBatch)
    assert hook.start is not None
    assert hook.start.alone
    assert own.start is not None
    assert not own.start.alone
    alone, threads = updates(hook, [1])[0], torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(updates(hook, [0, 2, 1, 0, 2], shift=30.0)[2], alone)
    finally:
        torch.set_num_threads(threads)


class Noted(Plain):
    """Notes outside whether it found a state, which has no effect."""

    def __init__(self) -> None:
        super().__init__()
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        SEEN.setdefault("state", []).append(self.state is not None)
        self.state = x.detach()
        return super().forward(x)


def test_private_records_leave_no_state_to_later_batches() -> None:
    training = after_trial(Noted, record=RECORD)
    SEEN.clear()
    updates(training, [0, 1])
    assert len(SEEN["state"]) > 10
    assert not any(SEEN["state"])


class PythonNoise(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + random.random() if self.training else x)


class OwnGenerator(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.rand(6, generator=self.own) if self.training else x)


class NumpyGenerator(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.own = np.random.default_rng(3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + float(self.own.random()) if self.training else x)


class Checkpointed(Plain):
    def __init__(self, dropped: float = 0.5) -> None:
        super().__init__()
        self.dropped = dropped

    def forward(self, x: Tensor) -> Tensor:
        def layer(y: Tensor) -> Tensor:
            return dropout(torch.relu(self.a(y)), self.dropped, self.training)

        logits: Tensor = self.o(checkpoint(layer, x, use_reentrant=False))
        return logits


class InAClass(Plain):
    mean: Any = 0.0

    def forward(self, x: Tensor) -> Tensor:
        before, InAClass.mean = InAClass.mean, x.detach().mean()
        return super().forward(x - before)


class InAGlobal(Plain):
    def forward(self, x: Tensor) -> Tensor:
        before, SEEN["mean"] = SEEN.get("mean", 0.0), x.detach().mean()
        return super().forward(x - before)


class InAnIterator(Plain):
    """Keeps the number of calls where no state is followed; only its remainder has an effect."""

    def __init__(self, period: int = 5) -> None:
        super().__init__()
        self.calls, self.period = iter(range(10**9)), period

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + next(self.calls) % self.period)


def noisy(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none") * torch.rand(len(outputs))


REFUSED: list[tuple[Callable[[], nn.Module], str]] = [
    (NumpyNoise, r"draws from numpy's global generator"),
    (PythonNoise, r"draws from Python's global generator"),
    (OwnGenerator, r"draws from model\.own \(Generator\)"),
    (NumpyGenerator, r"draws from model\.own \(Generator\)"),
    (Checkpointed, r"draws from torch's global generator .*checkpointing with dropout"),
    (InAClass, r"depends on the clients that trained before it, through class InAClass\.mean"),
    (InAGlobal, r"depends on the clients that trained before it, through global SEEN\['mean'\]"),
    (InAnIterator, r"depends on the clients that trained before it, through something outside"),
]


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(("network", "said"), REFUSED)
@pytest.mark.parametrize("strategy", ["loop", pytest.param("auto", marks=pytest.mark.slow)])
def test_what_still_passes_between_clients_is_refused(
    network: Callable[[], nn.Module], said: str, strategy: str
) -> None:
    refused(ConfigError, said, after_trial, network, strategy=strategy)


@pytest.mark.parametrize(
    "period", [2, *(pytest.param(one, marks=pytest.mark.slow) for one in (3, 4, 5, 6, 7, 9, 11, 30))]
)
def test_a_state_of_any_period_is_refused(period: int) -> None:
    """Whatever number of calls the trial's processor time has room for."""
    with pytest.raises(ConfigError, match="depends on the clients that trained before it"):
        after_trial(partial(InAnIterator, period), strategy="loop")


def test_a_loss_that_draws_is_refused() -> None:
    refused(ConfigError, "draws from torch's global generator", lambda: after_trial(Plain, loss=custom_loss(noisy)))


def test_the_global_generators_are_as_before() -> None:
    states = torch.get_rng_state(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002
    after_trial(Plain)
    refused(ConfigError, "", after_trial, NumpyNoise)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (repr(np.random.get_state()), random.getstate()) == states[1:]  # noqa: NPY002


class Positions(Plain):
    """A cache of what depends on the shape only."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] not in self.cached:
            self.cached[x.shape[-1]] = torch.arange(x.shape[-1]) / 10
        return super().forward(x + self.cached[x.shape[-1]])


class Logged(Plain):
    """Numbers kept for its user, and no effect of them."""

    def forward(self, x: Tensor) -> Tensor:
        SEEN.setdefault("shapes", []).append(len(x))
        return super().forward(x)


class Steps(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.o = layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x[..., None])
        logits: Tensor = self.o((found[0] if isinstance(found, tuple) else found)[..., -1, :])
        return logits


def layers(*inside: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, 8), *inside, nn.Linear(8, 3))


PASS: dict[str, Callable[[], nn.Module]] = {
    "LSTM of dpfed": lambda: Steps(LstmLayer(1, 8)),
    "plain": Plain,
    "dropout": layers(nn.ReLU(), nn.Dropout(0.5)),
    "group norm": layers(nn.GroupNorm(2, 8)),
    "layer norm": layers(nn.LayerNorm(8)),
    "cache of positions": Positions,
    "numbers for the user": Logged,
    "checkpointing": lambda: Checkpointed(dropped=0.0),
    "batch norm": layers(nn.BatchNorm1d(8)),
    "frozen part": lambda: nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.Linear(8, 3)),
}


@pytest.mark.slow_but_one_in(19)
@pytest.mark.parametrize("name", PASS)
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_nothing_else_is_refused(name: str, strategy: str) -> None:
    if (name, strategy) != ("checkpointing", "vmap"):
        after_trial(PASS[name], strategy=strategy)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_fused_layers_are_not_refused(layer: Callable[..., nn.Module]) -> None:
    after_trial(lambda: Steps(layer(1, 8, batch_first=True)), strategy="auto")


SHAPES = {"mlp": (8,), "fedscalar-mlp": (64,), "char-lstm": (6,)} | dict.fromkeys(
    ("fed-smp-cnn", "fed-smp-cnn-unpadded"), (1, 28, 28)
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_networks_that_come_with_dpfed_pass(name: str, strategy: str) -> None:
    """Runs of these do without the trial."""
    shape, classes = SHAPES.get(name, (3, 32, 32)), 80 if name == "char-lstm" else 10
    model = build(name, shape, classes)
    samples = points(model, shape, classes, letters=name == "char-lstm")
    training = trainer(model, samples, strategy=strategy)
    start = InitialState(model, training.loss, torch.device("cpu"))
    assert training_after_trial(training, model.initial(0), samples, start, cohort=5).start is None


class Escapes(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        before, self.last = self.last, x.detach().mean(0)
        return super().forward(x if before is None else x - before)


class Mixes(Plain):
    """Standardises by its batch, padding included."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x - x.mean(0)) / (x.std(0, correction=0) + 1))


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("network", "loss", "said"),
    [
        (Escapes, None, "model.last|training fails"),
        (FixedParameterWritten, None, "training fails"),
        (Mixes, None, "samples of a batch are mixed"),
        (Plain, ClassCounts, "local.loss.counts|training fails"),
    ],
)
def test_what_cannot_train_side_by_side_trains_in_a_loop(
    network: Callable[[], nn.Module], loss: Callable[[], Any] | None, said: str
) -> None:
    own = {} if loss is None else {"loss": custom_loss(loss())}
    refused(ConfigError, said, after_trial, network, strategy="vmap", batch_size=2 if own else 4, **own)
    assert trainer(FlatModel(network), points(FlatModel(network)), strategy="auto", at_once=100).plan.strategy == "vmap"
    own = {} if loss is None else {"loss": custom_loss(loss())}
    training = after_trial(network, strategy="auto", at_once=100, batch_size=2 if own else 4, **own)
    assert training.plan.strategy == "loop"
    assert "cannot be trained side by side: " in training.plan.why
    assert torch.equal(updates(training, [0, 1], shift=30.0)[1], updates(training, [1])[0])


def test_without_privacy_a_loop_takes_what_vmap_cannot() -> None:
    model = FlatModel(Escapes)
    training = trainer(model, points(model), strategy="auto", at_once=100)
    refused(RuntimeError, "", updates, training, [0, 1, 2])
    model = FlatModel(Escapes)
    training = trainer(model, points(model), strategy="auto", at_once=100)
    start = InitialState(model, training.loss, torch.device("cpu"))
    training = training_after_batch_trial(training, model.initial(0), points(model), start)
    assert training.plan.strategy == "loop"
    assert updates(training, [0, 1, 2]).isfinite().all()


@dataclass(slots=True)
class Slotted:
    total: float = 0.0
    seen: list[int] = field(default_factory=list)


class Everything:
    """One attribute of each sort."""

    def __init__(self) -> None:
        inside, cells = {"m": 1}, 0

        def function(x: int, memory: list[int] = []) -> None:  # noqa: B006
            nonlocal cells
            cells += x
            inside["m"] = x
            memory.append(x)

        self.function, self.slots = function, Slotted()
        self.list, self.set, self.queue = [1], {1}, deque([1], maxlen=2)
        self.array, self.tensor, self.view = np.zeros(2), torch.zeros(4), torch.zeros(0)
        self.view = self.tensor[1:3]
        self.nested: tuple[Any, ...] = ({"a": [torch.ones(1)]},)
        self.method, self.cells = self.list.append, lambda: (cells, dict(inside), list(function.__defaults__ or ()))

    def change(self) -> None:
        self.function(7)
        self.function.calls = 1  # type: ignore[attr-defined]
        self.slots.total, self.new = 2.0, 1
        self.slots.seen.append(1)
        self.list.append(2)
        self.set.add(2)
        self.queue.append(2)
        self.array += 1
        self.tensor.data = torch.ones(3)
        self.view += 5
        self.nested[0]["a"][0].mul_(3)


def test_every_sort_of_state_is_put_back() -> None:
    thing, moved = Everything(), StateChanges()
    state = State(("it", thing))
    thing.change()
    state.restore(moved)
    assert thing.cells() == (0, {"m": 1}, [[]])
    assert not hasattr(thing.function, "calls")
    assert not hasattr(thing, "new")
    assert (thing.slots.total, thing.slots.seen) == (0.0, [])
    assert (thing.list, thing.set, list(thing.queue)) == ([1], {1}, [1])
    assert thing.array.tolist() == [0, 0]
    assert thing.tensor.tolist() == [0, 0, 0, 0]
    assert thing.tensor[1:3].data_ptr() == thing.view.data_ptr()
    assert thing.nested[0]["a"][0].item() == 1
    assert {"it.list", "it.new", "it.slots.total", "it.array", "it.nested[0]['a'][0]"} <= set(moved.names)
    again = StateChanges()
    state.restore(again)
    assert not again.names
