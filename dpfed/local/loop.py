"""Local training one client at a time: for models too large to train side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpfed.local.gradients import BatchGradients
from dpfed.local.records import RecordGradients
from dpfed.local.task import LocalTask, Walk
from dpfed.local.threads import one_thread


def train_in_turn(task: LocalTask) -> Tensor:
    """Moves [c, n]; a client's is bit for bit the same whichever others the task has.

    On a CPU every core trains a client of its own, on one thread, so the number of cores does not matter either.
    """
    clients = len(task.schedule.steps)
    moves = torch.empty(clients, task.course.size, device=task.broadcast.device)
    longest_first = np.argsort(-task.schedule.steps, kind="stable").tolist()
    if moves.device.type != "cpu":
        _train_clients(task, longest_first, moves)
        return moves
    # OpenMP keeps its setting per thread: made in the caller alone it would not reach the workers.
    with one_thread() as cores, ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting = iter(longest_first)  # whoever is done takes the next
        for done in [pool.submit(_train_clients, task, waiting, moves) for _ in range(cores)]:
            done.result()
    return moves


def _train_clients(task: LocalTask, clients: Iterable[int], moves: Tensor) -> None:
    """Fill the rows `clients` of moves."""
    step: _Step | None = None
    for client in clients:
        walk = task.begin(np.array([client]))
        if step is None:
            step = _PrivateStep(task, walk) if task.record else _PlainStep(task, walk)
        step.enter(walk)
        for number, batch in enumerate(_batches(task, client)):
            walk.place(1, number)
            step.take(client, number, batch)
        moves[client] = walk.finish()[0]


class _Step(Protocol):
    """A batch's step, with what is kept from client to client: a module, buffers."""

    def enter(self, walk: Walk) -> None:
        """The next client."""

    def take(self, client: int, number: int, batch: Tensor) -> None:
        """Its step `number`, on the rows `batch`."""


class _PlainStep:
    def __init__(self, task: LocalTask, walk: Walk) -> None:
        self._task, self._walk = task, walk
        self._module = task.model.bind(walk.room[0])
        self._gradients = BatchGradients(task.model, self._module)
        self._room = walk.room.new_empty(task.model.size)

    def enter(self, walk: Walk) -> None:
        self._walk = walk
        self._task.model.rebind(self._module, walk.room[0])

    def take(self, client: int, number: int, batch: Tensor) -> None:
        task, walk = self._task, self._walk
        with torch.enable_grad():
            loss = cross_entropy(self._module(task.images(batch)), task.labels[batch])
        if walk.rate is not None:
            self._gradients.descend(loss, walk.rate)
            return
        self._gradients.write(loss, self._room)
        walk.step(1, number, walk.slope(1, self._room[None]))


class _PrivateStep:
    def __init__(self, task: LocalTask, walk: Walk) -> None:
        self._task, self._walk = task, walk
        self._module = task.model.bind(walk.room[0])
        self._records = RecordGradients(self._module)

    def enter(self, walk: Walk) -> None:
        self._walk = walk
        self._task.model.rebind(self._module, walk.room[0])

    def take(self, client: int, number: int, batch: Tensor) -> None:
        slope = _private_slope(self._task, self._walk, self._records, batch, client, number)
        self._walk.step(1, number, slope[None])


def _private_slope(
    task: LocalTask, walk: Walk, records: RecordGradients, batch: Tensor, client: int, step: int
) -> Tensor:
    """[n], of the batch's records clipped one by one, with noise."""
    assert task.record is not None
    assert task.schedule.expected is not None
    return task.record.slope(
        lambda rows: walk.slope(1, records(task.inputs[rows], task.labels[rows])),
        batch,
        size=task.course.size,
        expected=int(task.schedule.expected[client]),
        path=(task.round, int(task.clients[client]), step),
    )


def _batches(task: LocalTask, client: int) -> Iterator[Tensor]:
    """The client's batches in order, each an int64 tensor of its real rows."""
    for step in range(task.schedule.steps[client]):
        real = task.schedule.real[client, step]
        yield torch.from_numpy(task.schedule.samples[client, step][real]).to(task.labels.device)
