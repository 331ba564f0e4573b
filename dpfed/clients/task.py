"""State that each client begins with: what training changes in a network and a loss is put back before the next one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfed.clients.losses import CROSS_ENTROPY, Loss
from dpfed.clients.network_randomness import OwnRandomness
from dpfed.clients.plan import Precision
from dpfed.clients.records import RecordLevel
from dpfed.clients.schedule import Schedule
from dpfed.clients.state import Moved, State
from dpfed.models.flat import FlatModel
from dpfed.seeds import Seeds


class Start:
    """State of a model and a loss before any client, shared by all copies of the model.

    moved: where differences are noted, during a trial
    alone: True if clients are trained one at a time, as what training changes is shared by several threads
    """

    def __init__(self, model: FlatModel, loss: Loss, device: torch.device) -> None:
        self._state = State(*(("model", one) for one in model.shared(device)), ("local.loss", loss.each))
        self.moved: Moved | None = None
        self.alone: bool = True

    def restore(self) -> None:
        self._state.restore(self.moved)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The state as it was, at the beginning and at the end."""
        self.restore()
        try:
            yield
        finally:
            self.restore()

    def shares(self, moved: Moved) -> bool:
        """True if an object that moved is not a single module's own."""
        return self._state.holds(moved.objects)


class Held:
    """State of one module from `FlatModel.bind` and of the loss, to be put back before each client; nothing is where
    `start` is None."""

    def __init__(self, start: Start | None, model: FlatModel, module: nn.Module, loss: Loss) -> None:
        self._start = start
        roots = ("model", module), ("local.loss", loss.each)
        self._state = None if start is None else State(*roots, trained=model.trained(module))

    def restore(self) -> None:
        if self._state is not None and self._start is not None:
            self._state.restore(self._start.moved)


_NOTHING = nullcontext()


@dataclass(frozen=True, kw_only=True, eq=False)
class Departure:
    """Clients [c] at the start of a round, from the same broadcast [n]; client i will take steps[i] batches."""

    broadcast: Tensor
    clients: NDArray[np.int64]
    steps: NDArray[np.int64]
    number: int
    seeds: Seeds


class ClientUniforms:
    """Uniform numbers of each client's own stream, which depends on (seeds, purpose, round, client) only."""

    def __init__(self, start: Departure, purpose: str) -> None:
        device = str(start.broadcast.device)
        self._streams = [
            start.seeds.tensors(purpose, start.number, int(client), device=device) for client in start.clients
        ]

    def like(self, rows: Tensor) -> Tensor:
        """Return the next numbers of the first clients, in the form of their rows [active, m]."""
        uniforms = torch.empty_like(rows)
        for row, stream in zip(uniforms, self._streams, strict=False):
            stream.fill_uniform(row)
        return uniforms


class Walk(Protocol):
    """Clients on their way through a round, clients being the first tensor dimension.

    Before each batch `place` puts the weights at which its gradient is taken into `room`, for the first `active`
    clients; after it `slope` makes the gradient of what is trained from that of the batch's mean loss, and `step`
    follows it. The running statistics in `room` are brought up to date in between, their gradient is 0: `place`
    leaves them alone. Without definitions of their own, the weights are those in `room`, and the gradient is theirs.

    room: weights of the network [c, d], always the same memory
    rate: the learning rate where `slope` and `step` are nothing but room -= rate * gradient, so that a step may be
          taken without asking; None where there is more to them
    """

    room: Tensor
    rate: float | None = None

    def place(self, active: int, step: int) -> None:
        return

    def slope(self, active: int, gradient: Tensor) -> Tensor:
        """[active, n] from [active, d], which it may overwrite; for one client also [b, n] from b gradients. Linear."""
        return gradient

    def step(self, active: int, step: int, slope: Tensor) -> None:
        """Follow slope [active, n], which it may overwrite."""

    def finish(self) -> Tensor:
        """Change by training, [c, n]: an update of weights, or a move of mask probabilities."""


class Course(Protocol):
    """A method's local training: the state that its clients hold and what a batch does to it."""

    @property
    def size(self) -> int:
        """n, the entries of what is broadcast and of what training returns."""

    def begin(self, start: Departure) -> Walk: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalTask:
    """Send each client of `schedule` along the course from the same broadcast [n], on the rows of (inputs, labels)
    it names and their `loss`, with private slopes if `record` is given. The answer is [c, n].

    random: the purpose that names what the network draws (`dpfed.clients.network_randomness`); None: it draws nothing
    channels_last: whether batches of images may lie so in memory (`dpfed.clients.plan`)
    start: state of network and loss that each client begins with; None: training leaves it as it is
    failed: None: an exception of the network or the loss ends training. Else it is noted here, as (place of the
            client,) or (place, step, row) of a private record, and the client's move is NaN, the record's slope 0
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
    random: str | None = None
    channels_last: bool = False
    precision: Precision = "float32"
    start: Start | None = None
    failed: set[tuple[int, ...]] | None = None

    def forgives(self, error: BaseException) -> bool:
        """True if training goes on after this exception, so that no one sees whose samples caused it. Interrupts and
        lack of memory always end training."""
        if self.failed is None or isinstance(error, KeyboardInterrupt | MemoryError | torch.OutOfMemoryError):
            return False
        return not (type(error) is RuntimeError and out_of_memory(error))

    def own_randomness(
        self, places: NDArray[np.int64], step: int, *, records: NDArray[np.int64] | None = None
    ) -> AbstractContextManager[object]:
        """For a forward pass of the clients in these places of the schedule, or of one client's `records`, each of
        which then has draws of its own."""
        if self.random is None:
            return _NOTHING
        clients, number = self.clients[places].tolist(), self.round
        return OwnRandomness(
            self.seeds,
            self.random,
            number=number,
            clients=clients,
            step=step,
            records=records,
        )

    def put_back(self) -> None:
        """Put the state that all copies of the model share back to the start."""
        if self.start is not None:
            self.start.restore()

    def images(self, rows: Tensor) -> Tensor:
        """The inputs of a batch, laid out as its model is fastest."""
        inputs = self.inputs[rows]
        return inputs.clone(memory_format=torch.channels_last) if self.channels_last else inputs

    def begin(self, rows: NDArray[np.int64]) -> Walk:
        """The clients in places `rows` of the schedule, at the start."""
        steps = self.schedule.steps[rows]
        return self.course.begin(
            Departure(
                broadcast=self.broadcast, clients=self.clients[rows], steps=steps, number=self.round, seeds=self.seeds
            )
        )


def out_of_memory(error: BaseException) -> bool:
    """Return True if a tensor found no room: on a GPU, in torch's CPU allocator, or in Python itself."""
    words = ("can't allocate memory", "not enough memory")  # Linux and macOS; Windows
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in str(error) for word in words)


def forward_pass(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """For a forward pass, in this thread; the backward pass follows it by itself.

    bf16: matrix products and convolutions take inputs rounded to 8 significant bits, and add up in
    float32 (torch.autocast); weights, their gradients and the loss are float32.
    """
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
