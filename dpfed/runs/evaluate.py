"""Loss and metrics of a run, chosen by the configuration or given as functions, and their evaluation on test data.

The test data are public, and evaluation is post-processing of released weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed import models
from dpfed.clients.losses import (
    BINARY,
    CROSS_ENTROPY,
    LOSSES,
    OWN,
    Loss,
    OfSamples,
    check_loss,
    cross_entropy_without,
    custom_loss,
    loss_named,
)
from dpfed.clients.network_randomness import draws_random_numbers
from dpfed.clients.plan import takes_channels_last
from dpfed.compress.rotation import tf32
from dpfed.config.own_code import error_text, errors_of_user_code
from dpfed.config.tables import Config
from dpfed.data.dataset import Dataset
from dpfed.errors import ConfigError, TrainingFailed, require_name
from dpfed.models.flat import FlatModel
from dpfed.records.reading import LARGEST

Metric = Callable[[Tensor, Tensor], Tensor | float]
"""Metric: a function of the outputs [N, ...] and targets [N, ...] of all N test samples.

It returns a number, or one number per sample [N], which are averaged.
"""


def _prediction_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the differences of outputs and targets [n, k], float64."""
    return (outputs.reshape(targets.shape).double() - targets.double()).reshape(len(targets), -1)


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean absolute error over all entries."""
    return _prediction_errors(outputs, targets).abs().mean()


def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the square root of the mean squared error over all entries."""
    return _prediction_errors(outputs, targets).square().mean().sqrt()


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the coefficient of determination R^2; NaN if all targets are equal.

    It is 1 - (sum of squared errors) / (sum of squared deviations of the test targets from their mean).
    """
    rows = targets.double().reshape(len(targets), -1)
    return 1 - _prediction_errors(outputs, targets).square().sum() / (rows - rows.mean(dim=0)).square().sum()


METRICS: dict[str, Metric] = {"mae": mae, "rmse": rmse, "r2": r2}
"""Built-in metrics, by their name in run.metrics; "accuracy" is `Objective.accuracies`."""

_OF_NUMBERS = ("mae", "r2")
"""Default of run.metrics for numeric targets."""

_TAKEN = ("loss", "accuracy")
"""Names that a user-defined metric cannot have, because metrics.jsonl uses them."""


def check_metric_names(metrics: Mapping[str, Metric]) -> None:
    """Raise ConfigError for a metric whose name cannot be used in the key test_NAME of metrics.jsonl."""
    for name in metrics:
        if not (isinstance(name, str) and name.isidentifier() and len(name) <= 100) or name in _TAKEN:
            raise ConfigError(
                f"metrics: {name!r} cannot be the name of a metric, which becomes the key test_NAME in metrics.jsonl. "
                f"Use letters, digits and _, but not {' or '.join(_TAKEN)}."
            )


def metric_value(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """Return the value of the metric as one number. Raises TrainingFailed if it raises, or does not return numbers."""
    try:
        value = torch.as_tensor(metric(outputs, targets), dtype=torch.float64)
        return float(value.mean() if value.dim() == 1 and len(value) == len(targets) else value)
    except Exception as error:  # a user's metric may raise anything
        raise TrainingFailed(
            f"metric {name!r}: fails for outputs {list(outputs.shape)} and targets {list(targets.shape)}: "
            f"{error_text(error)}. It must return one number, or one number per sample."
        ) from error


def finite_or_none(value: float) -> float | None:
    """Return the value of a metric for JSON: None (null) if it is not finite, or too large for a record."""
    return value if abs(value) < LARGEST else None


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Loss that is minimised, and metrics that are evaluated.

    classes: True if targets are labels and outputs are logits, so that an accuracy is defined
    binary:  True if targets are 0 and 1 and outputs are logits of probabilities; the accuracy is that at 1/2
    ignored: label that neither the loss nor the accuracy counts
    """

    loss: Loss = CROSS_ENTROPY
    classes: bool = True
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    binary: bool = False
    ignored: int | None = None

    @property
    def has_accuracy(self) -> bool:
        """True if an accuracy is defined."""
        return self.classes or self.binary

    def accuracies(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the fraction of right labels of each sample [n]; NaN for a sample without a counted label."""
        if self.binary:
            right = (outputs.reshape(targets.shape) > 0) == (targets > 0.5)
        else:
            right = outputs.argmax(dim=1) == targets
        counted = torch.ones_like(right) if self.ignored is None else targets != self.ignored
        sums = [one.reshape(len(targets), -1).sum(dim=1).double() for one in (right & counted, counted)]
        return sums[0] / sums[1]

    def majority_accuracy(self, targets: NDArray[np.generic]) -> float | None:
        """Return the accuracy of always predicting the most frequent label of these targets; None without accuracy, and
        if no label counts."""
        if not self.has_accuracy:
            return None
        if self.binary:
            shares = targets.reshape(len(targets), -1).astype(float).mean(axis=0)
            return float(np.maximum(shares, 1 - shares).mean())
        _, counts = np.unique(targets[targets != self.ignored], return_counts=True)
        return float(counts.max() / counts.sum()) if len(counts) else None


CLASSIFICATION = Objective()


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """Results on samples: accuracy (NaN for numeric targets), mean loss, and other metrics by their name."""

    __test__ = False  # pytest must not collect this class as a test

    accuracy: float
    loss: float
    others: Mapping[str, float] = field(default_factory=dict)

    def to_record(self, prefix: str) -> dict[str, float | None]:
        """Return the scores {prefix}_accuracy, {prefix}_loss and {prefix}_NAME; None for a number that is not
        finite."""
        named = {"accuracy": self.accuracy, "loss": self.loss, **self.others}
        return {f"{prefix}_{name}": finite_or_none(value) for name, value in named.items()}


@torch.no_grad()
def evaluate(
    model: FlatModel,
    weights: Tensor,
    inputs: Tensor,
    labels: Tensor,
    *,
    objective: Objective = CLASSIFICATION,
) -> TestResult:
    """Return the results of weights [d] on inputs [n, ...] with labels or numeric targets [n, ...].

    Samples are evaluated 1000 at a time, but images on a CPU 100 at a time, so that activations fit into its cache.
    Evaluation uses copies: a forward pass that writes to its parameters (an embedding with max_norm) or its inputs, and
    a metric that writes to its targets, leave all arguments unchanged. A GPU computes in float32, too: torch's
    convolutions there are in TF32 by default, which an audit on a CPU cannot repeat.
    """
    weights, labels = weights.clone(), labels.clone()
    turned = takes_channels_last(model, inputs)
    layout = torch.channels_last if turned else torch.preserve_format
    batch = 100 if turned else 1000
    correct = loss = 0.0
    counted = 0
    outputs: list[Tensor] = []
    with tf32(False, inputs.device):
        for start in range(0, len(labels), batch):
            rows = inputs[start : start + batch]
            made = model.forward(weights, rows.clone(memory_format=layout))
            expected = labels[start : start + batch]
            if objective.has_accuracy:
                found = objective.accuracies(made, expected)
                correct, counted = correct + float(found.nansum()), counted + int(found.isfinite().sum())
            loss += float(objective.loss.each(made, expected).sum())
            if objective.metrics:
                outputs.append(made)
    whole = torch.cat(outputs) if outputs else labels
    return TestResult(
        accuracy=correct / counted if counted else float("nan"),
        loss=loss / len(labels),
        others={name: metric_value(name, metric, whole, labels) for name, metric in objective.metrics.items()},
    )


def with_own_loss(config: Config) -> Config:
    """Return the configuration with local.loss = "own", for a loss given in Python.

    Raises ConfigError if local.loss names a different loss.
    """
    if config.local.loss not in (None, OWN):
        raise ConfigError(f"local.loss={config.local.loss!r} with a loss given in Python: give only one of the two.")
    return config.model_copy(update={"local": config.local.model_copy(update={"loss": OWN})})


def objective_of(
    config: Config, dataset: Dataset, model: FlatModel, loss: OfSamples | None, metrics: Mapping[str, Metric]
) -> Objective:
    """Return the loss and metrics of a run, after a check on two public test samples.

    Raises ConfigError if the shapes or types of network outputs, loss and targets do not match.
    """
    check_metric_names(metrics)
    chosen = custom_loss(loss) if loss is not None else _configured_loss(config, dataset)
    of_classes = dataset.classes is not None and chosen.name in (CROSS_ENTROPY.name, OWN)
    form = (dataset.outputs, *dataset.target_shape) if chosen.name == CROSS_ENTROPY.name else None
    inputs, targets = (torch.from_numpy(half[:2].copy()) for half in (dataset.test_inputs, dataset.test_labels))
    outputs = models.check_outputs(config.model.name, model, inputs, form)
    with errors_of_user_code(f"model={config.model.name!r}: fails on {len(inputs)} test samples"):
        drawn = draws_random_numbers(model, inputs, training=False)
    if drawn:
        raise ConfigError(
            f"model.name={config.model.name!r}: draws random numbers in evaluation mode, so that test results "
            "are not reproducible. Draw them only if self.training is true."
        )
    if dataset.ignored is not None and chosen.name == CROSS_ENTROPY.name:
        chosen = cross_entropy_without(dataset.ignored)
    if len(inputs) > 1:
        check_loss(chosen, outputs, targets)
    classes = of_classes and outputs.shape[1:] == (dataset.outputs, *dataset.target_shape)
    of_logits = chosen.name == BINARY
    binary = of_logits and bool(np.isin(dataset.test_labels, (0, 1)).all())
    names = [name for name in _metric_names(config, dataset, outputs, binary=binary) if name != "accuracy"]
    for name in names:
        require_name(f"run.metrics={name!r}: known are", name, ("accuracy", *METRICS))
    named: dict[str, Metric] = {name: METRICS[name] for name in names}
    if of_logits:
        named = {name: partial(_of_probabilities, metric) for name, metric in named.items()}
    objective = Objective(
        loss=chosen, classes=classes, metrics=named | dict(metrics), binary=binary, ignored=dataset.ignored
    )
    if metrics:
        _try_metrics(objective, model, dataset)
    return objective


def _try_metrics(objective: Objective, model: FlatModel, dataset: Dataset) -> None:
    """Raise ConfigError if a custom metric fails for a network with first weights on the test half."""
    half = torch.from_numpy(dataset.test_inputs), torch.from_numpy(dataset.test_labels)
    try:
        with errors_of_user_code("metrics: evaluation of the test half fails before round 1"):
            evaluate(model, model.initial(0), *half, objective=objective)
    except TrainingFailed as error:
        raise ConfigError(str(error)) from error


def _of_probabilities(metric: Metric, logits: Tensor, targets: Tensor) -> Tensor | float:
    """Return the metric of the probabilities of these logits."""
    return metric(logits.sigmoid(), targets)


def _configured_loss(config: Config, dataset: Dataset) -> Loss:
    name = config.local.loss or ("mse" if dataset.classes is None else CROSS_ENTROPY.name)
    chosen = loss_named(name)
    if (name == CROSS_ENTROPY.name) != (dataset.classes is not None) and name in LOSSES:
        what = "numbers, no classes" if dataset.classes is None else f"labels of {dataset.classes} classes"
        able = [one for one in LOSSES if (one == CROSS_ENTROPY.name) == (dataset.classes is not None)]
        raise ConfigError(
            f"local.loss={name!r} with data.name={config.data.name!r}: its targets are {what}. Use {', '.join(able)}, "
            "or one of your own."
        )
    return chosen


def _metric_names(config: Config, dataset: Dataset, outputs: torch.Tensor, *, binary: bool) -> tuple[str, ...]:
    if config.run.metrics is not None:
        if dataset.classes is not None and set(config.run.metrics) - {"accuracy"}:
            raise ConfigError(
                f"run.metrics={list(config.run.metrics)}: are for numeric targets; for labels the accuracy is "
                "always computed. Remove the key."
            )
        if dataset.classes is None and "accuracy" in config.run.metrics and not binary:
            raise ConfigError(
                "run.metrics 'accuracy': is for labels of classes, and for targets 0 and 1 under "
                "binary-cross-entropy. Use mae, rmse or r2."
            )
        return config.run.metrics
    comparable = dataset.classes is None and outputs.shape[0] * dataset.outputs == outputs.numel()
    return _OF_NUMBERS if comparable else ()
