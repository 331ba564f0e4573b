"""Which samples are trained on, which are public, and which client holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from dpfed import data
from dpfed.config import Config
from dpfed.data.dataset import Dataset
from dpfed.data.partition import Partition
from dpfed.errors import ConfigError
from dpfed.seeds import Seeds

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, kw_only=True, eq=False)
class Public:
    inputs: torch.Tensor
    labels: torch.Tensor
    note: str


def public_samples(config: Config, whole: Dataset, seeds: Seeds, device: torch.device) -> tuple[Dataset, Public | None]:
    """The data set to train on, without its public samples, and those."""
    limits, draw = config.data, seeds.generator("data.at-most")
    whole = whole.at_most(train=limits.train_samples, test=limits.test_samples, generator=draw)
    count = limits.public
    if count == 0:
        return whole, None
    if config.data.public_from is None:
        rest, inputs, labels = whole.carve_public(count, seeds.generator("public.carve"))
        note = (
            f"{count} samples carved out of the training set of {whole.name} serve as public data: "
            "they are not protected by the stated epsilon"
        )
        if whole.natural_clients:
            note += ", nor is what they share with other samples of the clients they come from"
    else:
        other = data.load(config.data.public_from, config.data.root)
        if other.input_shape != whole.input_shape or other.classes > whole.classes:
            raise ConfigError(
                f"data.public_from={other.name!r}: its samples are {other.input_shape} in {other.classes} classes, "
                f"{whole.name} has {whole.input_shape} in {whole.classes}. Use a data set of the same form."
            )
        _, inputs, labels = other.carve_public(count, seeds.generator("public.carve"))
        rest, note = whole, f"{count} samples of {other.name} serve as public data: they are not protected"
    return rest, Public(
        inputs=torch.from_numpy(inputs).to(device), labels=torch.from_numpy(labels).to(device), note=note
    )


def partition_of(config: Config, dataset: Dataset, seeds: Seeds) -> Partition:
    """Who holds which row of the training half. ConfigError where the data cannot be divided so."""
    table, clients, generator = config.data, config.federation.clients, seeds.generator("partition")
    labels = dataset.train_labels
    match table.partition:
        case "iid":
            return data.iid(len(labels), clients, generator)
        case "dirichlet":
            return data.dirichlet(labels, clients, _given(table.alpha), generator)
        case "labels":
            return data.some_labels(labels, clients, _given(table.labels), generator)
        case "fedpm":
            return data.unbalanced(labels, clients, _given(table.labels), generator)
        case "natural":
            if dataset.train_clients is None:
                raise ConfigError(
                    f"data.partition='natural' with data.name={table.name!r}: nothing says who holds a sample there. "
                    "Use another partition, or data with roles or a column train_clients."
                )
            return data.natural(dataset.train_clients, clients, generator, available=dataset.natural_clients)


def _given(value: _Number | None) -> _Number:
    """What the configuration's checks have made sure of."""
    assert value is not None
    return value
