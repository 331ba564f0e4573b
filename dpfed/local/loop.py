"""Local training one client at a time: for models too large to train side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfed.local.records import RecordGradients
from dpfed.local.task import LocalTask, Walk
from dpfed.local.threads import one_thread


def train_in_turn(task: LocalTask) -> Tensor:
    """Moves [c, n]; a client's is bit for bit the same whichever others the task has.

    On a CPU every core trains a client of its own, on one thread, so the number of cores does not matter either.
    """
    clients = len(task.schedule.steps)
    moves = torch.empty(clients, task.course.size, device=task.broadcast.device)
    if moves.device.type != "cpu":
        _train_clients(task, range(clients), moves)
        return moves
    # OpenMP keeps its setting per thread: made in the caller alone it would not reach the workers.
    with one_thread() as cores, ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        shares = [range(first, clients, cores) for first in range(cores)]
        for done in [pool.submit(_train_clients, task, share, moves) for share in shares]:
            done.result()
    return moves


def _train_clients(task: LocalTask, clients: Iterable[int], moves: Tensor) -> None:
    """Fill the rows `clients` of moves."""
    module: nn.Module | None = None
    records: RecordGradients | None = None
    for client in clients:
        walk = task.begin(np.array([client]))
        if module is None:
            module = task.model.bind(walk.room[0])
            records = RecordGradients(module) if task.record else None
        else:
            task.model.rebind(module, walk.room[0])
        for step, batch in enumerate(_batches(task, client)):
            walk.place(1, step)
            if records is None:
                slope = walk.slope(1, _gradient(task, module, batch)[None])
            else:
                slope = _private_slope(task, walk, records, batch, client, step)[None]
            walk.step(1, step, slope)
        moves[client] = walk.finish()[0]


def _gradient(task: LocalTask, module: nn.Module, batch: Tensor) -> Tensor:
    """[d], of the batch's mean loss; 0 for running statistics."""
    with torch.enable_grad():
        loss = cross_entropy(module(task.inputs[batch]), task.labels[batch])
    gradients = torch.autograd.grad(loss, list(module.parameters()), materialize_grads=True)
    still = task.broadcast.new_zeros(task.model.size - task.model.parameters_size)
    return torch.cat([*(gradient.reshape(-1) for gradient in gradients), still])


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
