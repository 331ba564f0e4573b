"""What is measured on test data beside the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from dpfed.config.did_you_mean import did_you_mean
from dpfed.config.own_code import words_of
from dpfed.errors import ConfigError, TrainingFailed

Metric = Callable[[Tensor, Tensor], Tensor | float]
"""f(outputs [N, ...], targets [N, ...]) of all test samples -> a number, or one a sample [N], whose mean is taken."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of logits [n, classes, ...] and labels [n, ...]: the part of a sample's labels that has the largest logit."""
    right = (outputs.argmax(dim=1) == targets).double()
    return right.flatten(1).mean(dim=1) if right.dim() > 1 else right


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """[n, k], float64."""
    return (outputs.reshape(targets.shape).double() - targets.double()).reshape(len(targets), -1)


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error."""
    return _errors(outputs, targets).abs().mean()


def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Root of the mean squared error."""
    return _errors(outputs, targets).square().mean().sqrt()


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """Coefficient of determination: 1 - squared errors / squared deviations from the test targets' mean, both summed
    over all entries. Undefined (NaN) where all targets are equal."""
    rows = targets.double().reshape(len(targets), -1)
    return 1 - _errors(outputs, targets).square().sum() / (rows - rows.mean(dim=0)).square().sum()


METRICS: dict[str, Metric] = {"accuracy": accuracy, "mae": mae, "rmse": rmse, "r2": r2}
"""run.metrics."""

_TAKEN = ("loss", "accuracy")
"""Names that have a meaning of their own in metrics.jsonl."""


def metric_named(name: str) -> Metric:
    """The metric of this name; ConfigError with the nearest one otherwise."""
    if name not in METRICS:
        raise ConfigError(f"run.metrics={name!r}: known are {', '.join(METRICS)}.{did_you_mean(name, METRICS)}")
    return METRICS[name]


def check_own(metrics: Mapping[str, Metric]) -> None:
    """ConfigError for names that metrics.jsonl cannot have as test_NAME."""
    for name in metrics:
        if not (isinstance(name, str) and name.isidentifier() and len(name) <= 100) or name in _TAKEN:
            raise ConfigError(
                f"metrics: {name!r} is no name for one: it becomes test_NAME in metrics.jsonl, so letters, digits and "
                f"_, and not {' or '.join(_TAKEN)}. Choose another."
            )


def measured(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """The metric as one number. TrainingFailed where it fails, or is none."""
    try:
        value = torch.as_tensor(metric(outputs, targets))
        if value.dim() == 1 and len(value) == len(targets):
            value = value.double().mean()
        return float(value)
    except Exception as error:  # it may be the user's, and raise anything
        raise TrainingFailed(
            f"metric {name!r}: fails for outputs {list(outputs.shape)} and targets {list(targets.shape)}: "
            f"{words_of(error)}. It must give a number, or one a sample."
        ) from error


def as_json(value: float) -> float | None:
    """null where a metric is not finite."""
    return value if math.isfinite(value) else None
