"""Local SGD with clients as a tensor dimension: one autograd pass trains them all."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpfed.local.schedule import Schedule
from dpfed.models.flat import FlatModel


def train_side_by_side(
    model: FlatModel,
    weights: Tensor,
    inputs: Tensor,
    labels: Tensor,
    schedule: Schedule,
    *,
    learning_rate: float,
    momentum: float,
    chunk: int,
) -> Tensor:
    """Updates [c, d] as `train_in_turn` gives them, up to rounding; `chunk` clients in memory at a time."""
    updates = torch.empty(len(schedule.steps), model.size, device=weights.device)
    longest_first = np.argsort(-schedule.steps, kind="stable")
    for start in range(0, len(longest_first), chunk):
        rows = longest_first[start : start + chunk]
        group = Schedule(samples=schedule.samples[rows], real=schedule.real[rows], steps=schedule.steps[rows])
        local = _train_group(model, weights, inputs, labels, group, learning_rate, momentum)
        updates[torch.from_numpy(rows).to(weights.device)] = local.sub_(weights)
    return updates


def _train_group(
    model: FlatModel,
    weights: Tensor,
    inputs: Tensor,
    labels: Tensor,
    group: Schedule,
    learning_rate: float,
    momentum: float,
) -> Tensor:
    """Trained weights [c, d] of clients sorted by falling steps: those still training come first."""
    local = weights.repeat(len(group.steps), 1)
    velocity = torch.zeros_like(local)
    samples = torch.from_numpy(group.samples).to(labels.device)
    shares = torch.from_numpy(_shares(group.real)).to(weights.device)
    for step in range(int(group.steps.max(initial=0))):
        active = int(np.count_nonzero(group.steps > step))
        rows = samples[:active, step]
        gradient = _gradient(model, local[:active], inputs[rows], labels[rows], shares[:active, step])
        velocity[:active].mul_(momentum).add_(gradient)
        local[:active].sub_(velocity[:active], alpha=learning_rate)
    return local


def _gradient(model: FlatModel, weights: Tensor, inputs: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """Gradients [c, d] of each client's mean loss: clients share no weights, so one sum has them all."""
    leaf = weights.detach().requires_grad_()
    logits = model.forward_clients(leaf, inputs)
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return torch.autograd.grad(torch.dot(losses, shares.flatten()), leaf)[0]


def _shares(real: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Weight of each sample in its batch's mean: 1/size where real, 0 where padded."""
    sizes = real.sum(axis=-1, keepdims=True)
    return (real / np.maximum(sizes, 1)).astype(np.float32)
