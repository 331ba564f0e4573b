"""Loss and metrics on held-out public test data: post-processing of released weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpfed.clients.losses import CROSS_ENTROPY, Loss
from dpfed.clients.plan import takes_channels_last
from dpfed.models.flat import FlatModel
from dpfed.run.metrics import Metric, as_json, measured


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What is minimised, and what is measured. classes: whether targets are labels and outputs logits of them, so that
    there is an accuracy."""

    loss: Loss = CROSS_ENTROPY
    classes: bool = True
    metrics: Mapping[str, Metric] = field(default_factory=dict)


CLASSIFICATION = Objective()


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """Fraction of correct predictions (NaN without classes), mean loss, and other metrics by name."""

    __test__ = False  # not a pytest class

    accuracy: float
    loss: float
    others: Mapping[str, float] = field(default_factory=dict)

    def to_record(self, prefix: str) -> dict[str, float | None]:
        """{prefix}_accuracy, {prefix}_loss, {prefix}_NAME; null where a number is not finite."""
        named = {"accuracy": self.accuracy, "loss": self.loss, **self.others}
        return {f"{prefix}_{name}": as_json(value) for name, value in named.items()}


@torch.no_grad()
def evaluate(
    model: FlatModel,
    weights: Tensor,
    inputs: Tensor,
    labels: Tensor,
    *,
    objective: Objective = CLASSIFICATION,
) -> TestResult:
    """Test result of weights [d] on inputs [n, ...] and labels, or other targets, [n, ...].

    1000 rows at a time, or 100 images on a CPU, whose cache holds what their layers make. Evaluation runs on a copy of
    the weights: a forward pass that writes to its parameters (an embedding with max_norm) leaves `weights` unchanged.
    """
    weights = weights.clone()
    turned = takes_channels_last(model, inputs)
    batch = 100 if turned else 1000
    correct = loss = 0.0
    outputs: list[Tensor] = []
    for start in range(0, len(labels), batch):
        rows = inputs[start : start + batch]
        made = model.forward(weights, rows.clone(memory_format=torch.channels_last) if turned else rows)
        expected = labels[start : start + batch]
        if objective.classes:
            correct += float((made.argmax(dim=1) == expected).sum()) / max(1, expected[0].numel())
        loss += float(objective.loss.each(made, expected).sum())
        if objective.metrics:
            outputs.append(made)
    whole = torch.cat(outputs) if outputs else labels
    return TestResult(
        accuracy=correct / len(labels) if objective.classes else float("nan"),
        loss=loss / len(labels),
        others={name: measured(name, metric, whole, labels) for name, metric in objective.metrics.items()},
    )
