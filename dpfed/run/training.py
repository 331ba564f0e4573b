"""The network and how clients train it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from dpfed import models
from dpfed.clients.masked_noise import MaskedNoise
from dpfed.clients.masks import MaskTraining
from dpfed.clients.pruned import PrunedSgd
from dpfed.clients.sgd import Sgd
from dpfed.clients.task import Course
from dpfed.clients.training import LocalTraining
from dpfed.compress.masked_noise import FedMrn, FedMrnSigned, random_noise
from dpfed.config.tables import Config, Mask
from dpfed.data.dataset import Dataset
from dpfed.data.samples import partition_of
from dpfed.methods.catalogue import method
from dpfed.methods.facts import MethodFacts
from dpfed.methods.schemes import scheme, sparsity_schedule
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import FrozenNetwork, freeze
from dpfed.run.own import Maker
from dpfed.seeds import Seeds


def network_of(config: Config, dataset: Dataset, own: Maker | None = None) -> FlatModel:
    if own is not None:
        return models.build_own(config.model.name, own, dataset.input_shape, dataset.classes)
    return models.build(config.model.name, dataset.input_shape, dataset.classes, **model_options(config))


def model_options(config: Config) -> dict[str, Any]:
    return {} if config.model.hidden is None else {"hidden": list(config.model.hidden)}


def frozen_network(config: Config, model: FlatModel, seeds: Seeds, device: torch.device) -> FrozenNetwork:
    table = config.mask or Mask()
    return freeze(
        model, seeds, constant=table.constant, biases=table.biases, scale=table.scale, spread=table.spread
    ).to(device)


def course(config: Config, model: FlatModel, network: FrozenNetwork | None, device: torch.device) -> Course:
    local, table = config.local, config.mask or Mask()
    descent = {
        "learning_rate": local.learning_rate,
        "learning_rate_decay": local.learning_rate_decay,
        "momentum": local.momentum,
    }
    chosen = method(config.method.name)
    if chosen.local_training == "masked noise":
        return _masked_noise(config, chosen, model, descent, device)
    if network is None:
        sgd = Sgd(size=model.size, **descent)
        if chosen.local_training != "pruned":
            return sgd
        purged = sparsity_schedule(config) if config.method.purge == "clients" else None
        return PrunedSgd(sgd=sgd, prunable=model.indices("weight").to(device), sparsity=purged)
    return MaskTraining(
        network=network,
        **descent,
        optimizer=local.optimizer,
        gradient=table.gradient,
        forward="threshold" if config.method.name == "fedmask" else table.forward,
        edge=table.edge,
    )


def _masked_noise(
    config: Config, chosen: MethodFacts, model: FlatModel, descent: dict[str, float], device: torch.device
) -> MaskedNoise:
    table, made = config.method, scheme(config, chosen, model.size)
    assert isinstance(made, FedMrn | FedMrnSigned)
    return MaskedNoise(
        size=model.size,
        masked=model.compressible.to(device),
        noise=partial(random_noise, noise=made.noise, alpha=made.alpha),
        signed=isinstance(made, FedMrnSigned),
        shared_noise=table.shared,
        progressive=table.progressive,
        stochastic=table.stochastic,
        train_masked=table.train_masked,
        **descent,
    )


def group_of(config: Config, model: FlatModel) -> int:
    """Clients whose moves are in memory at a time."""
    return config.run.group if model.size > 100_000 else max(config.run.group, 100)


def local_training(
    config: Config, course: Course, dataset: Dataset, model: FlatModel, seeds: Seeds, device: torch.device
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
        strategy=config.local.strategy,
        chunk=config.local.chunk,
        memory=config.local.memory,
        at_once=min(config.federation.cohort, group_of(config, model)),
        precision=config.local.precision,
    )
