"""Local SGD one client at a time: for models too large to train side by side."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpfed.local.schedule import Schedule
from dpfed.models.flat import FlatModel


def train_in_turn(
    model: FlatModel,
    weights: Tensor,
    inputs: Tensor,
    labels: Tensor,
    schedule: Schedule,
    *,
    learning_rate: float,
    momentum: float,
) -> Tensor:
    """Updates [c, d] of the clients of `schedule`, each trained from weights [d] on its own batches.

    A client's update is bit for bit the same whichever others are in the schedule.
    """
    local, gradient, velocity = weights.clone(), torch.zeros_like(weights), torch.zeros_like(weights)
    module = model.bind(local, gradient)
    updates = torch.empty(len(schedule.steps), model.size, device=weights.device)
    for client, steps in enumerate(schedule.steps):
        local.copy_(weights)
        velocity.zero_()
        for step in range(steps):
            rows = torch.from_numpy(schedule.samples[client, step][schedule.real[client, step]]).to(
                labels.device
            )
            gradient.zero_()
            loss = cross_entropy(module(inputs[rows]), labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            velocity.mul_(momentum).add_(gradient)
            local.sub_(velocity, alpha=learning_rate)
        torch.sub(local, weights, out=updates[client])
    return updates
