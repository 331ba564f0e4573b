"""Initial state of each client: changes by training are undone in a network and a loss before the next client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfed.clients.losses import CROSS_ENTROPY, Loss
from dpfed.clients.network_randomness import ClientRandomness
from dpfed.clients.plan import Precision
from dpfed.clients.records import Way
from dpfed.clients.schedule import Schedule
from dpfed.clients.state import State, StateChanges
from dpfed.mechanisms.records import RecordLevel
from dpfed.models.flat import FlatModel
from dpfed.seeds import Seeds


class InitialState:
    """State of a model and a loss before any client trains, shared by all copies of the model.

    moved: record of differences, during a trial
    alone: True if clients are trained one at a time, because training changes objects that threads share
    """

    def __init__(self, model: FlatModel, loss: Loss, device: torch.device) -> None:
        self._state = State(*(("model", one) for one in model.shared_objects(device)), ("local.loss", loss.each))
        self.moved: StateChanges | None = None
        self.alone: bool = True

    def restore(self) -> None:
        self._state.restore(self.moved)

    @contextmanager
    def restored_around(self) -> Iterator[None]:
        """Context that restores the state at its start and at its end."""
        self.restore()
        try:
            yield
        finally:
            self.restore()

    def shared_between_modules(self, moved: StateChanges) -> bool:
        """Return True if a changed object belongs to several modules."""
        return any(one in self._state.reached for one in moved.objects)


_NOTHING = nullcontext()


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundStart:
    """Clients [c] at the start of a round, all with the broadcast [n]; client i will take steps[i] batches."""

    broadcast: Tensor
    clients: NDArray[np.int64]
    steps: NDArray[np.int64]
    number: int
    seeds: Seeds


class ClientUniforms:
    """Uniform numbers from one stream per client, which depends on (seeds, purpose, round, client) only."""

    def __init__(self, start: RoundStart, purpose: str) -> None:
        device = str(start.broadcast.device)
        self._streams = [
            start.seeds.tensors(purpose, start.number, int(client), device=device) for client in start.clients
        ]

    def next_uniforms(self, rows: Tensor) -> Tensor:
        """Return the next numbers of the first clients, in the shape of their rows [active, m]."""
        uniforms = torch.empty_like(rows)
        for row, stream in zip(uniforms, self._streams, strict=False):
            stream.fill_uniform(row)
        return uniforms


class Walk(Protocol):
    """Clients in training in a round; clients are the first tensor dimension.

    Before each batch `place_weights` writes into `weights` the weights at which the gradient is computed, for the first
    `active` clients. After the batch `slope` computes the gradient of the trained numbers from the gradient of the
    batch's mean loss, and `step` follows it. Running statistics in `weights` are updated in between and have gradient
    0: `place_weights` does not change them. By default the trained numbers are the weights in `weights`, and the slope
    is their gradient.

    weights: weights of the network [c, d], always the same memory
    rate: the learning rate if `slope` and `step` only compute weights -= rate * gradient, so that they need not be
          called; None otherwise
    """

    weights: Tensor
    rate: float | None = None

    def place_weights(self, active: int, step: int) -> None:
        return

    def slope(self, active: int, gradient: Tensor) -> Tensor:
        """Return the slope [active, n] from gradients [active, d], which may be overwritten; for one client also [b, n]
        from b gradients.

        The map from gradients to slopes is linear.
        """
        return gradient

    def step(self, active: int, step: int, slope: Tensor) -> None:
        """Step along slope [active, n], which may be overwritten."""

    def finish(self) -> Tensor:
        """Return the change by training [c, n]: an update of weights, or a move of mask probabilities."""


class Course(Protocol):
    """Course of a method's local training: the state of its clients, and the effect of a batch."""

    @property
    def size(self) -> int:
        """Number n of entries in the broadcast, and in the result of training."""

    def begin(self, start: RoundStart) -> Walk: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalTask:
    """Task that trains each client of `schedule` from one broadcast [n] on its rows of (inputs, labels); it returns
    [c, n].

    random: purpose that names the network's random draws (`dpfed.clients.network_randomness`); None: it draws nothing
    channels_last: True if batches of images may have channels last in memory (`dpfed.clients.plan`)
    start:  initial state of network and loss for each client; None: training does not change their state
    kept:   (entries [p], their changes [c, p] so far) of the clients' personal layers; None: all layers are shared
    failed: None: an exception of the network or the loss ends training. Else it is recorded here, as (position of the
            client,) or (position, step, row) of a private record; the client's move is NaN, the record's slope 0
    windows: True: clients side by side convolve by windows (`dpfed.clients.gradients`)
    """

    model: FlatModel
    course: Course
    broadcast: Tensor
    inputs: Tensor
    labels: Tensor
    clients: NDArray[np.int64]
    schedule: Schedule
    round: int
    seeds: Seeds
    loss: Loss = CROSS_ENTROPY
    record: RecordLevel | None = None
    gradients_by: Way = "hooks"
    random: str | None = None
    channels_last: bool = False
    precision: Precision = "float32"
    start: InitialState | None = None
    kept: tuple[Tensor, Tensor] | None = None
    failed: set[tuple[int, ...]] | None = None
    windows: bool = False

    def forgives_error(self, error: BaseException) -> bool:
        """Return True if training continues after this exception, so that it does not reveal whose samples raised it.

        Interrupts and lack of memory always end training.
        """
        if self.failed is None or isinstance(error, KeyboardInterrupt | MemoryError | torch.OutOfMemoryError):
            return False
        return not (type(error) is RuntimeError and out_of_memory(error))

    def own_randomness(
        self, places: NDArray[np.int64], step: int, *, records: NDArray[np.int64] | None = None
    ) -> AbstractContextManager[object]:
        """Return the context of random draws for the clients in these places, or for one client's `records`, each
        drawing separately.
        """
        if self.random is None:
            return _NOTHING
        clients = self.clients[places].tolist()
        return ClientRandomness(self.seeds, self.random, number=self.round, clients=clients, step=step, records=records)

    def restore_shared_state(self) -> None:
        """Restore the state shared by all copies of the model."""
        if self.start is not None:
            self.start.restore()

    def restorer(self, module: nn.Module) -> Callable[[], None]:
        """Return a function that restores a module from `FlatModel.bind` and the loss; without `start` it does
        nothing."""
        start = self.start
        if start is None:
            return lambda: None
        trained = self.model.trained_tensors(module)
        state = State(("model", module), ("local.loss", self.loss.each), trained=trained)
        return lambda: state.restore(start.moved)

    def batch_inputs(self, rows: Tensor) -> Tensor:
        """Return the inputs of a batch in the memory layout that is fastest for the model."""
        inputs = self.inputs[rows]
        return inputs.clone(memory_format=torch.channels_last) if self.channels_last else inputs

    def begin(self, rows: NDArray[np.int64]) -> Walk:
        """Return the clients at the positions `rows` of the schedule, at the start of the round."""
        clients, steps = self.clients[rows], self.schedule.steps[rows]
        start = RoundStart(broadcast=self.broadcast, clients=clients, steps=steps, number=self.round, seeds=self.seeds)
        walk = self.course.begin(start)
        if self.kept is not None:
            entries, changes = self.kept
            walk.weights[:, entries] += changes[rows]
        return walk


def out_of_memory(error: BaseException) -> bool:
    """Return True if memory ran out: on a GPU, in torch's CPU allocator, or in Python itself."""
    words = ("can't allocate memory", "not enough memory")  # messages on Linux and macOS, then on Windows
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in str(error) for word in words)


def forward_pass(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass in this thread; the backward pass needs no context.

    bf16: matrix products and convolutions take inputs rounded to 8 significant bits, and add up in
    float32 (torch.autocast); weights, their gradients and the loss are float32, and, where clients train one by one on
    a CPU, large dense layers on small batches (`dpfed.clients.gradients.BatchGradients`).
    """
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
