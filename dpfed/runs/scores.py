"""Scores of the model on test and validation samples, which metrics.jsonl and summary.json contain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.data.samples import Validation
from dpfed.models.flat import FlatModel
from dpfed.records.round import MetricsLine
from dpfed.runs.evaluate import Objective, TestResult, evaluate
from dpfed.runs.experiment import Experiment
from dpfed.server.rules import AveragedReadout, Readout, ServerState

Scores = dict[str, float | None]


def evaluated_weights(readout: Readout, state: ServerState) -> list[Tensor]:
    """Return the weights of the evaluated model; if it is a moving average, also those of the last round's model."""
    last = [readout.readout.weights(state)] if isinstance(readout, AveragedReadout) else []
    return [readout.weights(state), *last]


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Network, loss and metrics of a run with its test half and its validation samples, but no client's samples."""

    model: FlatModel
    objective: Objective
    test: tuple[NDArray[np.generic], NDArray[np.generic]]
    validation: Validation | None
    device: torch.device

    @classmethod
    def of(cls, experiment: Experiment) -> Evaluation:
        data = experiment.dataset
        return cls(
            model=experiment.model,
            objective=experiment.objective,
            test=(data.test_inputs, data.test_labels),
            validation=experiment.validation,
            device=experiment.device,
        )

    def scores(self, weights: Sequence[Tensor]) -> Scores:
        """Return the scores of the weights from `evaluated_weights`.

        They are test_accuracy (None for numeric targets), test_loss and test_NAME; last_test_NAME of the second weights
        if there are any; and validation_NAME if training samples are set aside for validation.
        """
        inputs, targets = (torch.from_numpy(half).to(self.device) for half in self.test)
        scores: Scores = {}
        for prefix, one in zip(("test", "last_test"), weights, strict=False):
            scores |= self._result(one, inputs, targets).to_record(prefix)
        held = self.validation
        if held is not None:
            scores |= self._result(weights[0], held.inputs, held.labels).to_record("validation")
        return scores

    def majority_accuracy(self) -> float | None:
        """Return the accuracy of always predicting the most frequent label of the public test half; None without
        classes."""
        return self.objective.majority_accuracy(self.test[1])

    def _result(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> TestResult:
        return evaluate(self.model, weights.to(self.device), inputs, targets, objective=self.objective)


def scores_of_summary(metrics: Sequence[MetricsLine], last_scores: Callable[[], Scores]) -> Scores:
    """Return the scores of summary.json: those of the last round, and the best test accuracy over all rounds.

    last_scores: computes the last round's scores, if the round was not evaluated or its loss is not finite
    """
    last = dict(metrics[-1].scores) if metrics else {}
    if last.get("test_loss") is None:
        last = last_scores()
    found = [*(line.test_accuracy for line in metrics), last.get("test_accuracy")]
    accuracies = [one for one in found if one is not None]
    validation = {name: last.pop(name) for name in list(last) if name.startswith("validation_")}
    scores: Scores = {
        "test_accuracy": last.pop("test_accuracy", None),
        "best_test_accuracy": max(accuracies, default=None),
        **last,
    }
    return scores | {"validation_accuracy": None} | validation
