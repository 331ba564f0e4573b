"""Loss and metrics of a run: chosen by configuration or user functions, evaluated on held-out public test data.

Evaluation is post-processing of released weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpfed import models
from dpfed.clients.losses import CROSS_ENTROPY, LOSSES, OWN, Loss, OfSamples, check_loss, custom_loss, loss_named
from dpfed.clients.network_randomness import draws_random_numbers
from dpfed.clients.plan import takes_channels_last
from dpfed.config.did_you_mean import did_you_mean
from dpfed.config.own_code import error_text
from dpfed.config.tables import Config
from dpfed.data.dataset import Dataset
from dpfed.errors import ConfigError, TrainingFailed
from dpfed.models.flat import FlatModel

Metric = Callable[[Tensor, Tensor], Tensor | float]
"""Metric of outputs [N, ...] and targets [N, ...] of all test samples: a number, or one a sample [N], which are
averaged.
"""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return, for each sample, the fraction of its labels [n, ...] that have the largest logit [n, classes, ...]."""
    right = (outputs.argmax(dim=1) == targets).double()
    return right.flatten(1).mean(dim=1) if right.dim() > 1 else right


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return errors [n, k], float64."""
    return (outputs.reshape(targets.shape).double() - targets.double()).reshape(len(targets), -1)


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean absolute error."""
    return _errors(outputs, targets).abs().mean()


def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the root of the mean squared error."""
    return _errors(outputs, targets).square().mean().sqrt()


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the coefficient of determination, NaN if all targets are equal.

    It is 1 - squared errors / squared deviations from the test targets' mean, both summed over all entries.
    """
    rows = targets.double().reshape(len(targets), -1)
    return 1 - _errors(outputs, targets).square().sum() / (rows - rows.mean(dim=0)).square().sum()


METRICS: dict[str, Metric] = {"accuracy": accuracy, "mae": mae, "rmse": rmse, "r2": r2}
"""Metrics by their name in run.metrics."""

_OF_NUMBERS = ("mae", "r2")
"""Metrics of numeric targets if run.metrics is not given."""

_TAKEN = ("loss", "accuracy")
"""Names that already have a meaning in metrics.jsonl."""


def metric_named(name: str) -> Metric:
    """Return the metric of this name; ConfigError with the nearest name if there is none."""
    if name not in METRICS:
        raise ConfigError(f"run.metrics={name!r}: known are {', '.join(METRICS)}.{did_you_mean(name, METRICS)}")
    return METRICS[name]


def check_own(metrics: Mapping[str, Metric]) -> None:
    """Raise ConfigError for names that metrics.jsonl cannot have as test_NAME."""
    for name in metrics:
        if not (isinstance(name, str) and name.isidentifier() and len(name) <= 100) or name in _TAKEN:
            raise ConfigError(
                f"metrics: {name!r} is no name for one: it becomes test_NAME in metrics.jsonl, so letters, digits and "
                f"_, and not {' or '.join(_TAKEN)}. Choose another."
            )


def measured(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """Return the metric as one number. TrainingFailed if it fails, or returns no number."""
    try:
        value = torch.as_tensor(metric(outputs, targets))
        if value.dim() == 1 and len(value) == len(targets):
            value = value.double().mean()
        return float(value)
    except Exception as error:  # a user's metric may raise anything
        raise TrainingFailed(
            f"metric {name!r}: fails for outputs {list(outputs.shape)} and targets {list(targets.shape)}: "
            f"{error_text(error)}. It must give a number, or one a sample."
        ) from error


def as_json(value: float) -> float | None:
    """Return a metric for JSON: null if it is not finite."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Loss that is minimised, and metrics. classes: True if targets are labels and outputs are their logits, so that
    there is an accuracy."""

    loss: Loss = CROSS_ENTROPY
    classes: bool = True
    metrics: Mapping[str, Metric] = field(default_factory=dict)


CLASSIFICATION = Objective()


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """Fraction of correct predictions (NaN without classes), mean loss, and other metrics by name."""

    __test__ = False  # marks for pytest that this is no test class

    accuracy: float
    loss: float
    others: Mapping[str, float] = field(default_factory=dict)

    def to_record(self, prefix: str) -> dict[str, float | None]:
        """Return {prefix}_accuracy, {prefix}_loss, {prefix}_NAME; null if a number is not finite."""
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
    """Return the test result of weights [d] on inputs [n, ...] and labels, or other targets, [n, ...].

    Rows are evaluated 1000 at a time, or 100 images on a CPU, whose cache holds their activations. Evaluation runs on a
    copy of the weights: a forward pass that writes to its parameters (an embedding with max_norm) leaves `weights`
    unchanged.
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


def with_own_loss(config: Config) -> Config:
    """Return the configuration of a run with a loss given in Python. ConfigError if it names another loss."""
    if config.local.loss not in (None, OWN):
        raise ConfigError(f"local.loss={config.local.loss!r} with a loss of your own: give one of them.")
    return config.model_copy(update={"local": config.local.model_copy(update={"loss": OWN})})


def objective_of(
    config: Config, dataset: Dataset, model: FlatModel, loss: OfSamples | None, metrics: Mapping[str, Metric]
) -> Objective:
    """Return the loss and metrics, checked on two public test samples.

    ConfigError if network, loss and targets do not fit together.
    """
    check_own(metrics)
    chosen = custom_loss(loss) if loss is not None else _configured(config, dataset)
    of_classes = dataset.classes is not None and chosen.name in (CROSS_ENTROPY.name, OWN)
    form = (dataset.outputs, *dataset.target_shape) if chosen.name == CROSS_ENTROPY.name else None
    inputs, targets = (torch.from_numpy(half[:2]) for half in (dataset.test_inputs, dataset.test_labels))
    outputs = models.check_outputs(config.model.name, model, inputs, form)
    if draws_random_numbers(model, inputs, training=False):
        raise ConfigError(
            f"model.name={config.model.name!r}: draws random numbers when it is evaluated, too, so that no test result "
            "could be repeated. Draw them where self.training is true."
        )
    if len(inputs) > 1:
        check_loss(chosen, outputs, targets)
    classes = of_classes and outputs.shape[1:] == (dataset.outputs, *dataset.target_shape)
    named = {name: metric_named(name) for name in _names(config, dataset, outputs) if name != "accuracy"}
    return Objective(loss=chosen, classes=classes, metrics=named | dict(metrics))


def _configured(config: Config, dataset: Dataset) -> Loss:
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


def _names(config: Config, dataset: Dataset, outputs: torch.Tensor) -> tuple[str, ...]:
    if config.run.metrics is not None:
        if dataset.classes is not None and set(config.run.metrics) - {"accuracy"}:
            raise ConfigError(
                f"run.metrics={list(config.run.metrics)}: are for targets that are no classes; labels have their "
                "accuracy. Remove the key."
            )
        if dataset.classes is None and "accuracy" in config.run.metrics:
            raise ConfigError("run.metrics 'accuracy': is for labels of classes. Use mae, rmse or r2.")
        return config.run.metrics
    comparable = dataset.classes is None and outputs.shape[0] * dataset.outputs == outputs.numel()
    return _OF_NUMBERS if comparable else ()
