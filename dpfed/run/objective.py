"""What a run minimises and measures: by its configuration, its targets, or functions of one's own."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dpfed import models
from dpfed.clients.losses import CROSS_ENTROPY, LOSSES, OWN, Loss, OfSamples, check_loss, loss_named, own_loss
from dpfed.clients.network_randomness import draws_random_numbers
from dpfed.config.tables import Config
from dpfed.data.dataset import Dataset
from dpfed.errors import ConfigError
from dpfed.models.flat import FlatModel
from dpfed.run.evaluate import Objective
from dpfed.run.metrics import Metric, check_own, metric_named

_OF_NUMBERS = ("mae", "r2")
"""Measured where nobody says what."""


def with_own_loss(config: Config) -> Config:
    """The configuration of a run with a loss that is given in Python. ConfigError where it names another."""
    if config.local.loss not in (None, OWN):
        raise ConfigError(f"local.loss={config.local.loss!r} with a loss of your own: give one of them.")
    return config.model_copy(update={"local": config.local.model_copy(update={"loss": OWN})})


def objective_of(
    config: Config, dataset: Dataset, model: FlatModel, loss: OfSamples | None, metrics: Mapping[str, Metric]
) -> Objective:
    """Checked on two public test samples. ConfigError where network, loss and targets do not fit together."""
    check_own(metrics)
    chosen = own_loss(loss) if loss is not None else _configured(config, dataset)
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
