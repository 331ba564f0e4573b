"""Local training one client at a time: for models too large to train side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpfed.clients.gradients import BatchGradients
from dpfed.clients.records import RecordGradients
from dpfed.clients.side_by_side import out_of_memory, room_for_moves
from dpfed.clients.start import Held
from dpfed.clients.task import LocalTask, Walk, forward_pass
from dpfed.compress.threads import one_thread
from dpfed.errors import TrainingFailed


def train_in_turn(task: LocalTask) -> Tensor:
    """Moves [c, n]; a client's is bit for bit the same whichever others the task has.

    On a CPU every core trains a client of its own, on one thread, so the number of cores does not matter either.
    Raises TrainingFailed where memory runs out.
    """
    moves = room_for_moves(len(task.schedule.steps), task.course.size, task.broadcast.device)
    longest_first = np.argsort(-task.schedule.steps, kind="stable").tolist()
    try:
        if moves.device.type == "cpu":
            _on_every_core(task, longest_first, moves)
        else:
            _train_clients(task, longest_first, moves)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise TrainingFailed(
            f"local training: one client a core does not fit into memory ({str(error).strip()[:200]}). Choose a "
            "smaller local.batch_size or model, or fewer cores (OMP_NUM_THREADS)."
        ) from error
    return moves


def _on_every_core(task: LocalTask, clients: Iterable[int], moves: Tensor) -> None:
    """As `_train_clients`; whichever core is done takes the next client."""
    waiting = iter(clients)
    alone = task.start is not None and task.start.alone
    # OpenMP keeps its setting per thread: made in the caller alone it would not reach the workers.
    with one_thread() as cores, ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done in [pool.submit(_train_clients, task, waiting, moves) for _ in range(1 if alone else cores)]:
            done.result()


def _train_clients(task: LocalTask, clients: Iterable[int], moves: Tensor) -> None:
    """Fill the rows `clients` of moves."""
    step: _BatchStep | None = None
    for client in clients:
        walk = task.begin(np.array([client]))
        if step is None:
            task.put_back()
            step = _PrivateStep(task, walk) if task.record else _PlainStep(task, walk)
        step.enter(walk)
        for number, batch in enumerate(_batches(task, client)):
            walk.place(1, number)
            step.take(client, number, batch)
        moves[client] = walk.finish()[0]


class _BatchStep(Protocol):
    """A batch's step, with what is kept from client to client: a module, buffers."""

    def enter(self, walk: Walk) -> None:
        """The next client."""

    def take(self, client: int, number: int, batch: Tensor) -> None:
        """Its step `number`, on the rows `batch`."""


class _PlainStep:
    def __init__(self, task: LocalTask, walk: Walk) -> None:
        self._task, self._walk = task, walk
        self._module = task.model.bind(walk.room[0])
        self._gradients = BatchGradients(task.model, self._module, factors=task.precision != "bf16")
        self._room = walk.room.new_empty(task.model.size)
        self._held = Held(task.start, task.model, self._module, task.loss)

    def enter(self, walk: Walk) -> None:
        self._walk = walk
        self._held.restore()
        self._task.model.rebind(self._module, walk.room[0])

    def take(self, client: int, number: int, batch: Tensor) -> None:
        task, walk = self._task, self._walk
        with torch.enable_grad():
            drawn = task.own_randomness(np.array([client]), number)
            with forward_pass(task.precision, batch.device), drawn:
                outputs = self._module(task.images(batch))
            loss = task.loss.mean(outputs.float(), task.labels[batch])
        if walk.rate is not None:
            self._gradients.descend(loss, walk.rate)
            return
        self._gradients.write(loss, self._room)
        walk.step(1, number, walk.slope(1, self._room[None]))


class _PrivateStep:
    def __init__(self, task: LocalTask, walk: Walk) -> None:
        self._task, self._walk = task, walk
        self._module = task.model.bind(walk.room[0])
        self._records = RecordGradients(self._module, loss=task.loss)
        self._held = Held(task.start, task.model, self._module, task.loss)

    def enter(self, walk: Walk) -> None:
        self._walk = walk
        self._held.restore()
        self._task.model.rebind(self._module, walk.room[0])

    def take(self, client: int, number: int, batch: Tensor) -> None:
        slope = _private_slope(self._task, self._walk, self._records, self._held, batch, client, number)
        self._walk.step(1, number, slope[None])


def _private_slope(
    task: LocalTask, walk: Walk, records: RecordGradients, held: Held, batch: Tensor, client: int, step: int
) -> Tensor:
    """[n], of the batch's records clipped one by one, with noise. No record bears on later ones through a state."""
    assert task.record is not None
    assert task.schedule.expected is not None

    def slopes(rows: Tensor) -> Tensor:
        held.restore()
        drawn = task.own_randomness(np.array([client]), step, records=rows.cpu().numpy())
        return walk.slope(1, records(task.inputs[rows], task.labels[rows], drawn))

    return task.record.slope(
        slopes,
        batch,
        size=task.course.size,
        expected=int(task.schedule.expected[client]),
        path=(task.round, int(task.clients[client]), step),
    )


def _batches(task: LocalTask, client: int) -> Iterator[Tensor]:
    """The client's batches in order, each an int64 tensor of its real rows; they go to the device together."""
    steps = int(task.schedule.steps[client])
    samples, real = task.schedule.samples[client, :steps], task.schedule.real[client, :steps]
    rows = torch.from_numpy(samples[real]).to(task.labels.device)
    yield from torch.split(rows, real.sum(axis=1).tolist())
