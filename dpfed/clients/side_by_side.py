"""Local training with clients as a tensor dimension: one autograd pass trains all clients of a chunk."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpfed.clients.gradients import convolve_by_windows
from dpfed.clients.task import LocalTask, forward_pass, out_of_memory
from dpfed.compress.rotation import one_thread
from dpfed.errors import GroupTooLarge, TrainingFailed


def train_side_by_side(task: LocalTask, chunk: ChunkSize) -> Tensor:
    """Return moves [c, n], equal to those of a loop up to rounding; `chunk` gives the number of clients in memory."""
    moves = allocate_moves(len(task.schedule.steps), task.course.size, task.broadcast.device)
    # by falling number of steps, then of samples, so that chunks need little padding
    order = np.lexsort((-task.schedule.real.sum(axis=(1, 2)), -task.schedule.steps))

    def train(start: int, stop: int) -> None:
        places = order[start:stop]
        moves[torch.from_numpy(places).to(moves.device)] = _train_with_halving(task, places)

    with one_thread():
        chunk.train_in_chunks(len(order), train)
    return moves


def _train_with_halving(task: LocalTask, places: NDArray[np.int64]) -> Tensor:
    """Train a group as `_train_group`. If an exception is forgiven, halve the group, down to one client whose
    move is NaN."""
    try:
        return _train_group(task, places)
    except BaseException as error:
        if not task.forgives_error(error):
            raise
    if len(places) == 1:
        assert task.failed is not None
        task.failed.add((int(places[0]),))
        return torch.full((1, task.course.size), torch.nan, device=task.broadcast.device)
    halves = np.array_split(places, 2)
    return torch.cat([_train_with_halving(task, half) for half in halves])


def _train_group(task: LocalTask, places: NDArray[np.int64]) -> Tensor:
    """Return moves [c, n] of the clients in `places`, sorted by falling steps: clients still in training are first."""
    task.restore_shared_state()
    group, walk = task.schedule.of(places), task.begin(places)
    samples = torch.from_numpy(group.samples).to(task.labels.device)
    widths = group.real.sum(axis=2)
    shares = group.real / np.maximum(widths, 1)[:, :, None]  # in a batch's mean: 1/size if real, 0 if padded
    weights_of_samples = torch.from_numpy(shares.astype(np.float32)).to(walk.weights.device)
    for step in range(int(group.steps.max(initial=0))):
        active = int(np.count_nonzero(group.steps > step))
        width = int(widths[:active, step].max())  # real samples are first in a batch
        walk.place_weights(active, step)
        batch, real = samples[:active, step, :width], weights_of_samples[:active, step, :width]
        with task.own_randomness(places[:active], step):
            gradient = gradients_of_clients(task, walk.weights[:active], batch, real)
        walk.step(active, step, walk.slope(active, gradient))
    return walk.finish()


def gradients_of_clients(task: LocalTask, weights: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
    """Return gradients [c, d] of each client's loss on its batch, at its row of `weights` [c, d].

    rows: int64 [c, b], the samples of each batch; shares: [c, b], 1/size where real and 0 where padded. Running
    statistics in `weights` are updated; their gradient is 0. Clients share no weights, so the gradient of the summed
    loss holds all gradients.
    """
    model, leaf = task.model, weights.detach().requires_grad_()
    indexes = not (model.plain and task.loss.apart)
    with torch.enable_grad(), ClientCalls(task.windows) if indexes or task.windows else nullcontext():
        with forward_pass(task.precision, weights.device):
            random = task.random is not None
            outputs, statistics = model.train_clients(leaf, task.inputs[rows], shares, random=random)
        losses = task.loss.client_losses(outputs.float(), task.labels[rows])
        total = torch.dot(losses, shares.flatten())
    gradients = torch.autograd.grad(total, leaf)[0]
    if model.has_statistics:
        weights[:, model.parameters_size :] = statistics
    return gradients


class ClientCalls(TorchFunctionMode):
    """Context of a network's calls under torch.vmap: indices out of bounds raise IndexError, as without vmap, and
    convolutions are computed by windows if `windows`.

    For some operations torch.vmap concatenates the tensors of all clients and checks only the bounds of the whole. An
    index out of bounds, or -1, would read or train another client's weights.
    """

    def __init__(self, windows: bool) -> None:
        super().__init__()
        self._windows = windows

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if self._windows and func is torch.conv2d:
            convolved = convolve_by_windows(args, kwargs or {})
            if convolved is not None:
                return convolved
        if func in _INDEXING:
            rows, index, *dim = _INDEXING[func]
            given = {**dict(enumerate(args)), **(kwargs or {})}
            found = [next(given[key] for key in keys if key in given) for keys in (rows, index, *dim)]
            # index_select checks its bounds under torch.vmap, too.
            found[0].detach().index_select(found[2] if dim else 0, found[1].reshape(-1))
        return func(*args, **(kwargs or {}))


_FILLING = ((0, "input", "self"), (2, "index"), (1, "dim"))
_INDEXING: dict[object, tuple[tuple[int | str, ...], ...]] = {
    torch.nn.functional.embedding: ((1, "weight"), (0, "input")),
    torch.embedding: ((0, "weight"), (1, "indices")),
    torch.index_fill: _FILLING,
    Tensor.index_fill: _FILLING,
    Tensor.index_fill_: _FILLING,
}
"""Operations without bounds checks (torch 2.13), each with the positions of its rows, indices and dimension."""


class ChunkSize:
    """Number of clients trained at a time, which is halved whenever memory runs out."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def train_in_chunks(self, count: int, train: Callable[[int, int], None]) -> None:
        """Call train(start, stop) over 0 .. count; repeat a call with fewer clients after memory ran out.

        Raises TrainingFailed if one client alone does not fit. On Linux a process may be killed without a message if
        main memory runs out: then set a smaller `local.memory`.
        """
        start = 0
        while start < count:
            stop = min(start + self.clients, count)
            said = _memory_failure(train, start, stop)
            if said is None:
                start = stop
            else:
                self._halve(stop - start, said)

    def _halve(self, tried: int, said: str) -> None:
        if tried == 1:
            raise TrainingFailed(
                f"local training: not even one client fits into memory ({said}). Choose a smaller local.batch_size or "
                "model, or a device with more memory."
            )
        self.clients = tried // 2
        warnings.warn(
            f"local training: no memory for {tried} clients at a time ({said}); continuing with {self.clients}. Set "
            "local.chunk or local.memory to start with this number.",
            RuntimeWarning,
            stacklevel=2,
        )


def _memory_failure(train: Callable[[int, int], None], start: int, stop: int) -> str | None:
    """Return the message if memory ran out, else None. Tensors of the failed attempt are freed on return."""
    try:
        train(start, stop)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        said = str(error).strip().splitlines()
        return said[0][:200] if said else type(error).__name__
    return None


def allocate_moves(clients: int, size: int, device: torch.device) -> Tensor:
    """Return an uninitialised tensor [clients, size]. Raise GroupTooLarge if there is no memory for it."""
    try:
        return torch.empty(clients, size, device=device)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise GroupTooLarge(
            f"local training: the moves of {clients} clients, {size:,} numbers each, do not fit into memory. Choose a "
            "smaller run.group."
        ) from error
