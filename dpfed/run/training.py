"""The network and how clients train it."""

from __future__ import annotations

from typing import Any

import torch

from dpfed import models
from dpfed.clients.losses import LOSSES, Loss
from dpfed.clients.start import Start
from dpfed.clients.task import Course
from dpfed.clients.training import LocalTraining
from dpfed.clients.trial import SECONDS, tried, tried_together
from dpfed.config.tables import Config
from dpfed.config.training_tables import Mask
from dpfed.data.dataset import Dataset
from dpfed.data.samples import partition_of
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import FrozenNetwork, freeze
from dpfed.run.own import Maker, Own
from dpfed.seeds import Seeds

TRIAL_LIMITS = (
    "against state of the custom network or loss that passes between clients in ways that the trial before round 1 "
    f"({SECONDS} s of processor time for each group of synthetic clients) does not find: later, or for certain samples"
)
"""Limitation of the guarantee where a network or a loss does not come with dpfed."""


def network_of(config: Config, dataset: Dataset, seeds: Seeds, own: Maker | None = None) -> FlatModel:
    """Initial weights, and fixed ones where a part is not trained, are those of the run's seed."""
    name, shape, fixed_seed = config.model.name, dataset.input_shape, seeds.integer("weights")
    if own is not None:
        return models.build_own(name, own, shape, dataset.outputs, fixed_seed=fixed_seed)
    return models.build(name, shape, dataset.outputs, fixed_seed=fixed_seed, **model_options(config))


def model_options(config: Config) -> dict[str, Any]:
    return {} if config.model.hidden is None else {"hidden": list(config.model.hidden)}


def frozen_network(config: Config, model: FlatModel, seeds: Seeds, device: torch.device) -> FrozenNetwork:
    table = config.mask or Mask()
    return freeze(
        model, seeds, constant=table.constant, biases=table.biases, scale=table.scale, spread=table.spread
    ).to(device)


def group_of(config: Config, model: FlatModel) -> int:
    """Clients whose moves are in memory at a time."""
    return config.run.group if model.size > 100_000 else max(config.run.group, 100)


def local_training(
    config: Config, course: Course, loss: Loss, dataset: Dataset, model: FlatModel, seeds: Seeds, device: torch.device
) -> LocalTraining:
    return LocalTraining(
        model=model,
        course=course,
        inputs=torch.from_numpy(dataset.train_inputs).to(device),
        labels=torch.from_numpy(dataset.train_labels).to(device),
        partition=partition_of(config, dataset, seeds),
        epochs=config.local.epochs,
        steps=config.local.steps,
        batch_size=config.local.batch_size,
        loss=loss,
        strategy=config.local.strategy,
        chunk=config.local.chunk,
        memory=config.local.memory,
        at_once=min(config.federation.cohort, group_of(config, model)),
        precision=config.local.precision,
    )


def is_custom(config: Config, own: Own) -> bool:
    """True if the network or the loss does not come with dpfed."""
    given = own.model is not None or own.loss is not None
    return given or config.model.name not in models.MODELS or config.local.loss not in (None, *LOSSES)


def after_trial(
    config: Config, clients: LocalTraining, broadcast: torch.Tensor, dataset: Dataset, start: Start
) -> LocalTraining:
    """Local training of a custom network or loss, tried on test samples. ConfigError (`dpfed.clients.trial`)."""
    samples = torch.from_numpy(dataset.test_inputs), torch.from_numpy(dataset.test_labels)
    if config.privacy is None and config.local.record is None:
        return tried_together(clients, broadcast, samples, start)
    return tried(clients, broadcast, samples, start, cohort=config.federation.cohort)
