"""One round's local training, stated before anyone decides how to compute it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpfed.local.schedule import Schedule
from dpfed.models.flat import FlatModel


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalTask:
    """Train each client of `schedule` from the same weights [d], on the rows of (inputs, labels) it names.

    Step: v = momentum * v + g; w = w - learning_rate * v, g being the gradient of the batch's mean loss;
    v starts at 0. The answer is the matrix of updates [c, d], trained minus given weights.
    """

    model: FlatModel
    weights: Tensor
    inputs: Tensor
    labels: Tensor
    schedule: Schedule
    learning_rate: float
    momentum: float
