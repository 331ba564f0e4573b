"""Local training with clients as a tensor dimension: one autograd pass trains them all."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpfed.local.task import LocalTask
from dpfed.local.threads import one_thread
from dpfed.models.flat import FlatModel


def train_side_by_side(task: LocalTask, *, chunk: int) -> Tensor:
    """Moves [c, n], as a loop gives them up to rounding; `chunk` clients in memory at a time."""
    moves = torch.empty(len(task.schedule.steps), task.course.size, device=task.broadcast.device)
    longest_first = np.argsort(-task.schedule.steps, kind="stable")
    with one_thread():
        for start in range(0, len(longest_first), chunk):
            rows = longest_first[start : start + chunk]
            moves[torch.from_numpy(rows).to(moves.device)] = _train_group(task, rows)
    return moves


def _train_group(task: LocalTask, places: NDArray[np.int64]) -> Tensor:
    """Moves [c, n] of the clients in `places`, sorted by falling steps: those still training come first."""
    group, walk = task.schedule.of(places), task.begin(places)
    samples = torch.from_numpy(group.samples).to(task.labels.device)
    shares = torch.from_numpy(_shares(group.real)).to(walk.room.device)
    for step in range(int(group.steps.max(initial=0))):
        active = int(np.count_nonzero(group.steps > step))
        rows = samples[:active, step]
        walk.place(active, step)
        inputs, labels = task.inputs[rows], task.labels[rows]
        gradient = _gradient(task.model, walk.room[:active], inputs, labels, shares[:active, step])
        walk.step(active, step, walk.slope(active, gradient))
    return walk.finish()


def _gradient(model: FlatModel, weights: Tensor, inputs: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """Gradients [c, d] of each client's mean loss: clients share no weights, so one sum has them all.

    Running statistics in `weights` are brought up to date; their gradient is 0.
    """
    leaf = weights.detach().requires_grad_()
    with torch.enable_grad():
        logits, statistics = model.train_clients(leaf, inputs, shares)
        losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        total = torch.dot(losses, shares.flatten())
    gradients = torch.autograd.grad(total, leaf)[0]
    if model.has_statistics:
        weights[:, model.parameters_size :] = statistics
    return gradients


def _shares(real: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Weight of each sample in its batch's mean: 1/size where real, 0 where padded."""
    sizes = np.maximum(real.sum(axis=-1, keepdims=True), 1)
    shares: NDArray[np.float32] = (real / sizes).astype(np.float32)
    return shares
