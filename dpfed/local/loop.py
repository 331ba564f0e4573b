"""Local SGD one client at a time: for models too large to train side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfed.local.task import LocalTask
from dpfed.local.threads import one_thread


def train_in_turn(task: LocalTask) -> Tensor:
    """Updates [c, d]; a client's is bit for bit the same whichever others the task has.

    On a CPU every core trains a client of its own, on one thread, so the number of cores does not matter either.
    """
    clients = len(task.schedule.steps)
    updates = torch.empty(clients, task.model.size, device=task.weights.device)
    if updates.device.type != "cpu":
        _train_clients(task, range(clients), updates)
        return updates
    # OpenMP keeps its setting per thread: made in the caller alone it would not reach the workers.
    with one_thread() as cores, ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        shares = [range(first, clients, cores) for first in range(cores)]
        for done in [pool.submit(_train_clients, task, share, updates) for share in shares]:
            done.result()
    return updates


def _train_clients(task: LocalTask, clients: Iterable[int], updates: Tensor) -> None:
    """Fill the rows `clients` of updates."""
    local = torch.empty_like(task.weights)
    module = task.model.bind(local)
    velocities = [torch.empty_like(parameter) for parameter in module.parameters()]
    for client in clients:
        local.copy_(task.weights)
        for velocity in velocities:
            velocity.zero_()
        for batch in _batches(task, client):
            _step(task, module, velocities, batch)
        torch.sub(local, task.weights, out=updates[client])


def _step(task: LocalTask, module: nn.Module, velocities: list[Tensor], batch: Tensor) -> None:
    parameters = list(module.parameters())
    with torch.enable_grad():
        loss = cross_entropy(module(task.inputs[batch]), task.labels[batch])
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    with torch.no_grad():
        for parameter, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
            direction = velocity.mul_(task.momentum).add_(gradient) if task.momentum else gradient
            parameter.sub_(direction, alpha=task.learning_rate)


def _batches(task: LocalTask, client: int) -> Iterator[Tensor]:
    """The client's batches in order, each an int64 tensor of its real rows."""
    for step in range(task.schedule.steps[client]):
        real = task.schedule.real[client, step]
        yield torch.from_numpy(task.schedule.samples[client, step][real]).to(task.labels.device)
