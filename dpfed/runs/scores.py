"""Scores of the model on test and validation samples, for metrics.jsonl and summary.json."""

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


def tested(experiment: Experiment, state: ServerState) -> Scores:
    """Return test_accuracy (null without classes), test_loss and test_NAME of other metrics.

    If a moving average is the model, also last_test_NAME of the last round's model.
    """
    dataset, device = experiment.dataset, experiment.device
    inputs = torch.from_numpy(dataset.test_inputs).to(device)
    targets = torch.from_numpy(dataset.test_labels).to(device)
    scores = _measured(experiment, experiment.readout, state, inputs, targets).to_record("test")
    if isinstance(experiment.readout, AveragedReadout):
        scores |= _measured(experiment, experiment.readout.last, state, inputs, targets).to_record("last_test")
    return scores


def validated(experiment: Experiment, state: ServerState) -> Scores:
    """Return the scores on the training samples that were set aside; empty if none were."""
    held = experiment.validation
    if held is None:
        return {}
    return _measured(experiment, experiment.readout, state, held.inputs, held.labels).to_record("validation")


def majority_accuracy(experiment: Experiment) -> float | None:
    """Return the test accuracy of a constant, the most frequent label of the public test half; None without classes."""
    if not experiment.objective.classes:
        return None
    _, counts = np.unique(experiment.dataset.test_labels, return_counts=True)
    return float(counts.max() / counts.sum())


def scores_of(experiment: Experiment, state: ServerState, metrics: Sequence[MetricsLine]) -> Scores:
    """Return the scores of summary.json: after the last round, and the best accuracy over rounds."""
    last: Scores = {}
    if metrics:
        line = metrics[-1].scores
        last = {name: value for name, value in line.items() if name.startswith(("test_", "last_test_"))}
        if last["test_loss"] is None:  # the run ended between two evaluations, or the score is not finite
            last = tested(experiment, state)
    found = [*(line.test_accuracy for line in metrics), last.get("test_accuracy")]
    accuracies = [one for one in found if one is not None]
    scores: Scores = {
        "test_accuracy": last.pop("test_accuracy", None),
        "best_test_accuracy": max(accuracies, default=None),
        **last,
    }
    return scores | {"validation_accuracy": None} | validated(experiment, state)


def _measured(
    experiment: Experiment, readout: Readout, state: ServerState, inputs: Tensor, targets: Tensor
) -> TestResult:
    return evaluate(experiment.model, readout.weights(state), inputs, targets, objective=experiment.objective)
