"""Scores of the model on test and validation samples, which metrics.jsonl and summary.json contain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpfed.records.metrics import MetricsLine
from dpfed.runs.evaluate import TestResult, evaluate
from dpfed.runs.experiment import Experiment
from dpfed.server.readout import AveragedReadout, Readout
from dpfed.server.state import ServerState

Scores = dict[str, float | None]


def scores_on_test_half(experiment: Experiment, state: ServerState) -> Scores:
    """Return the scores on the test half: test_accuracy (None for numeric targets), test_loss and test_NAME.

    If the evaluated model is a moving average, last_test_NAME are the scores of the last round's model.
    """
    dataset, device = experiment.dataset, experiment.device
    inputs = torch.from_numpy(dataset.test_inputs).to(device)
    targets = torch.from_numpy(dataset.test_labels).to(device)
    scores = _evaluate_readout(experiment, experiment.readout, state, inputs, targets).to_record("test")
    if isinstance(experiment.readout, AveragedReadout):
        scores |= _evaluate_readout(experiment, experiment.readout.readout, state, inputs, targets).to_record(
            "last_test"
        )
    return scores


def scores_on_validation(experiment: Experiment, state: ServerState) -> Scores:
    """Return the scores on the training samples that are set aside for validation; empty if there are none."""
    held = experiment.validation
    if held is None:
        return {}
    return _evaluate_readout(experiment, experiment.readout, state, held.inputs, held.labels).to_record("validation")


def majority_accuracy(experiment: Experiment) -> float | None:
    """Return the accuracy of always predicting the most frequent label of the public test half; None without
    classes."""
    if not experiment.objective.classes:
        return None
    _, counts = np.unique(experiment.dataset.test_labels, return_counts=True)
    return float(counts.max() / counts.sum())


def scores_of_summary(experiment: Experiment, state: ServerState, metrics: Sequence[MetricsLine]) -> Scores:
    """Return the scores of summary.json: those of the last round, and the best test accuracy over all rounds."""
    last: Scores = {}
    if metrics:
        line = metrics[-1].scores
        last = {name: value for name, value in line.items() if name.startswith(("test_", "last_test_"))}
        if last["test_loss"] is None:  # the last round was not evaluated, or its loss is not finite
            last = scores_on_test_half(experiment, state)
    found = [*(line.test_accuracy for line in metrics), last.get("test_accuracy")]
    accuracies = [one for one in found if one is not None]
    scores: Scores = {
        "test_accuracy": last.pop("test_accuracy", None),
        "best_test_accuracy": max(accuracies, default=None),
        **last,
    }
    return scores | {"validation_accuracy": None} | scores_on_validation(experiment, state)


def _evaluate_readout(
    experiment: Experiment, readout: Readout, state: ServerState, inputs: Tensor, targets: Tensor
) -> TestResult:
    return evaluate(experiment.model, readout.weights(state), inputs, targets, objective=experiment.objective)
