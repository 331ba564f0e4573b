"""Local SGD with clients as a tensor dimension: one autograd pass trains them all."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpfed.local.schedule import Schedule
from dpfed.local.task import LocalTask
from dpfed.local.threads import one_thread
from dpfed.models.flat import FlatModel


def train_side_by_side(task: LocalTask, *, chunk: int) -> Tensor:
    """Updates [c, d], as a loop gives them up to rounding; `chunk` clients in memory at a time."""
    updates = torch.empty(len(task.schedule.steps), task.model.size, device=task.weights.device)
    longest_first = np.argsort(-task.schedule.steps, kind="stable")
    with one_thread():
        for start in range(0, len(longest_first), chunk):
            rows = longest_first[start : start + chunk]
            local = _train_group(task, task.schedule.of(rows))
            updates[torch.from_numpy(rows).to(updates.device)] = local.sub_(task.weights)
    return updates


def _train_group(task: LocalTask, group: Schedule) -> Tensor:
    """Trained weights [c, d] of clients sorted by falling steps: those still training come first."""
    local = task.weights.repeat(len(group.steps), 1)
    velocity = torch.zeros_like(local)
    samples = torch.from_numpy(group.samples).to(task.labels.device)
    shares = torch.from_numpy(_shares(group.real)).to(local.device)
    for step in range(int(group.steps.max(initial=0))):
        active = int(np.count_nonzero(group.steps > step))
        rows = samples[:active, step]
        inputs, labels = task.inputs[rows], task.labels[rows]
        gradient = _gradient(task.model, local[:active], inputs, labels, shares[:active, step])
        direction = velocity[:active].mul_(task.momentum).add_(gradient) if task.momentum else gradient
        local[:active].sub_(direction, alpha=task.learning_rate)
    return local


def _gradient(model: FlatModel, weights: Tensor, inputs: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """Gradients [c, d] of each client's mean loss: clients share no weights, so one sum has them all."""
    leaf = weights.detach().requires_grad_()
    with torch.enable_grad():
        logits = model.forward_clients(leaf, inputs)
        losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        total = torch.dot(losses, shares.flatten())
    return torch.autograd.grad(total, leaf)[0]


def _shares(real: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Weight of each sample in its batch's mean: 1/size where real, 0 where padded."""
    sizes = np.maximum(real.sum(axis=-1, keepdims=True), 1)
    shares: NDArray[np.float32] = (real / sizes).astype(np.float32)
    return shares
