"""Accuracy on held-out public test data: post-processing of released weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpfed.models.flat import FlatModel


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """Fraction of correct predictions, and mean cross-entropy."""

    __test__ = False  # not a pytest class

    accuracy: float
    loss: float


@torch.no_grad()
def evaluate(model: FlatModel, weights: Tensor, inputs: Tensor, labels: Tensor, *, batch: int = 1000) -> TestResult:
    """Test result of weights [d] on inputs [n, ...] and labels [n]."""
    correct = loss = 0.0
    for start in range(0, len(labels), batch):
        logits = model.forward(weights, inputs[start : start + batch])
        expected = labels[start : start + batch]
        correct += float((logits.argmax(dim=1) == expected).sum())
        loss += float(cross_entropy(logits, expected, reduction="sum"))
    return TestResult(accuracy=correct / len(labels), loss=loss / len(labels))
