"""Samples of a run: training samples, public samples, and the client of each.

`seeds` in this module are those of data.partition_seed, never those of run.seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dpfed import data
from dpfed.config.samples_tables import DataTable, DirichletData, LabelsData, ResampledData
from dpfed.config.tables import Config
from dpfed.data.dataset import Dataset, Numbers
from dpfed.data.partition import Holdings, Partition
from dpfed.data.population import Resampled
from dpfed.data.wavelets import with_scattering
from dpfed.errors import ConfigError, DataError
from dpfed.seeds import Seeds


@dataclass(frozen=True, kw_only=True, eq=False)
class Public:
    """Samples that no guarantee protects; `note` says so in the summary."""

    inputs: torch.Tensor
    labels: torch.Tensor
    note: str


_SHARED = "nor is the information that they share with other samples of their clients"

Validation = Public
"""Training samples without a client; hyperparameters are chosen on them instead of the test half."""


def validation_samples(
    config: Config, whole: Dataset, seeds: Seeds, device: torch.device
) -> tuple[Dataset, Validation | None]:
    """Return the data set without its validation samples, and those samples, chosen by data.partition_seed."""
    count, samples = config.data.validation, len(whole.train_labels)
    if count is None:
        return whole, None
    if count >= samples:
        raise ConfigError(
            f"data.validation={count}: {whole.name!r} has {samples} training samples, and some must be left to train "
            "on. Set fewer aside."
        )
    rest, inputs, labels = whole.carve_public(count, seeds.generator("validation.carve"))
    note = (
        f"{len(labels)} training samples are set aside for validation: their scores are published without "
        "noise, and so are choices made by these scores"
    )
    if whole.natural_clients:
        note += f"; they are not protected, {_SHARED}"
    return rest, _set_aside(inputs, labels, device, note)


def _set_aside(inputs: Numbers, labels: Numbers, device: torch.device, note: str) -> Public:
    return Public(inputs=torch.from_numpy(inputs).to(device), labels=torch.from_numpy(labels).to(device), note=note)


def whole_data(config: Config) -> Dataset:
    """Return the data set that the configuration names, with all samples."""
    return _load_dataset(config.data, config.data.name)


def _load_dataset(table: DataTable, name: str) -> Dataset:
    classes = table.classes if data.is_own(name) or name == table.name else None
    ignored, columns = table.ignored if data.is_own(name) else None, columns_of(table)
    return with_features(table, data.load(name, table.root, classes=classes, columns=columns, ignored=ignored))


def columns_of(table: DataTable) -> data.Columns | None:
    """Return the columns that the table [data] names, with their declarations; None if it names none."""
    if not table.inputs or table.label is None:
        return None
    return data.Columns(
        inputs=table.inputs, label=table.label, client=table.client, vocabulary=table.vocabulary or {},
        fill=table.fill or {}, range=table.range or {},
    )  # fmt: skip


def declaration_notes(columns: data.Columns | None) -> list[str]:
    """Return the limitation of a guarantee that declarations of columns are public; no text without a declaration."""
    if columns is None:
        return []
    parts = [f"{name} is one of {', '.join(words)}" for name, words in columns.vocabulary.items()]
    parts += [f"gaps of {name} are {number:g}" for name, number in columns.fill.items()]
    parts += [f"{name} is clipped to {low:g} to {high:g}" for name, (low, high) in columns.range.items()]
    return [f"declarations of columns, which must not come from the samples: {'; '.join(parts)}"] if parts else []


def with_features(table: DataTable, dataset: Dataset) -> Dataset:
    """Return the data set with inputs replaced by the features of data.features; unchanged if none are named."""
    return dataset if table.features is None else with_scattering(dataset, orientations=table.orientations)


def public_samples(config: Config, whole: Dataset, seeds: Seeds, device: torch.device) -> tuple[Dataset, Public | None]:
    """Return the data set to train on, without its public samples, and those samples."""
    limits, draw = config.data, seeds.generator("data.at-most")
    whole = whole.at_most(train=limits.train_samples, test=limits.test_samples, generator=draw)
    count = limits.public
    if count == 0:
        return whole, None
    if limits.public_from is None:
        rest, inputs, labels = whole.carve_public(count, seeds.generator("public.carve"))
        note = (
            f"{count} samples carved out of the training set of {whole.name} serve as public data: "
            "they are not protected by the stated epsilon"
        )
        if whole.natural_clients:
            note += f", {_SHARED}"
    else:
        other = _load_dataset(limits, limits.public_from)
        if other.has_integers != whole.has_integers:
            other, whole = other.as_floats(), whole.as_floats()
        if not _have_one_format(other, whole):
            raise ConfigError(
                f"data.public_from={other.name!r}: its samples are {_format_text(other)}, {whole.name} has "
                f"{_format_text(whole)}. Use a data set of the same form."
            )
        others, inputs, labels = other.carve_public(count, seeds.generator("public.carve"))
        _refuse_shared(count, other, others, whole)
        rest, note = whole, f"{count} samples of {other.name} serve as public data: they are not protected"
    return rest, _set_aside(inputs, labels, device, note)


def _refuse_shared(count: int, other: Dataset, others: Dataset, whole: Dataset) -> None:
    """Raise ConfigError for public samples that clients have, even under another name of the data set.

    `others` is the data set `other` without its `count` public samples. Samples are compared as they were before
    data.features, whose last bits depend on the number of samples.
    """
    held = {row.tobytes() for row in whole.identifying_inputs}
    shared = sum(row.tobytes() in held for row in other.identifying_inputs)
    shared -= sum(row.tobytes() in held for row in others.identifying_inputs)
    if shared:
        raise ConfigError(
            f"data.public_from={other.name!r}: {shared} of its {count} public samples are samples of clients, in "
            f"the training set of {whole.name}, and no epsilon would cover them. Use other data, or remove "
            "data.public_from: then data.public samples are removed from the clients."
        )


def _have_one_format(other: Dataset, whole: Dataset) -> bool:
    targets = other.target_shape == whole.target_shape and other.train_labels.dtype == whole.train_labels.dtype
    if other.classes is None or whole.classes is None:
        return other.classes is whole.classes and targets and other.input_shape == whole.input_shape
    return targets and other.input_shape == whole.input_shape and other.classes <= whole.classes


def _format_text(dataset: Dataset) -> str:
    several = f" {dataset.target_shape}" if dataset.target_shape else ""
    kind = f"targets{several}" if dataset.classes is None else f"{dataset.classes} classes{several}"
    return f"{dataset.input_shape} in {kind}"


def partition_of(config: Config, dataset: Dataset, seeds: Seeds) -> Holdings:
    """Return the clients' rows of the training half. Raise ConfigError if the data cannot be divided in this way."""
    table, clients, generator = config.data, config.federation.clients, seeds.generator("partition")
    labels = dataset.train_labels
    one_class_each = dataset.classes is not None and labels.ndim == 1 and dataset.ignored is None
    if isinstance(table, DirichletData | LabelsData) and not one_class_each:
        raise ConfigError(
            f"data.partition={table.partition!r} with data.name={table.name!r}: divides samples by their class, but "
            "these samples do not have one class each. Use 'iid', 'natural' or 'resampled'."
        )
    match table:
        case DirichletData():
            return data.dirichlet(labels, clients, table.alpha, generator)
        case LabelsData():
            divide = data.some_labels if table.partition == "labels" else data.unbalanced
            return divide(labels, clients, table.labels, generator)
        case ResampledData():
            if config.local.record is not None:
                raise ConfigError(
                    "[local.record] with data.partition='resampled': one record may belong to several clients, and no "
                    "account adds up their releases of it. Use [privacy], whose unit is the client, or another "
                    "data.partition."
                )
            return Resampled(samples=len(labels), clients=clients, samples_per_client=table.samples, seeds=seeds)
    match table.partition:
        case "iid":
            return data.iid(len(labels), clients, generator)
        case "natural":
            if dataset.train_clients is None:
                raise ConfigError(
                    f"data.partition='natural' with data.name={table.name!r}: the data do not name the client of a "
                    "sample. Use another partition, or data with roles or a column train_clients."
                )
            return data.natural(
                dataset.train_clients,
                clients,
                generator,
                available=dataset.natural_clients,
                ids=dataset.client_ids,
            )
        case "nodes":
            _check_nodes(config)
            nothing = np.zeros(clients + 1, dtype=np.int64)
            return Partition(indices=nothing[:0], offsets=nothing)


def require_samples_here(config: Config) -> None:
    """Raise ConfigError if the clients' samples are on nodes, so that no client can train in this process."""
    if config.data.partition == "nodes":
        raise ConfigError(
            "data.partition='nodes': the samples are on the nodes of a deployment, none here. Use `dpfed deploy` "
            "(docs/deploy.md), or another data.partition."
        )


def _check_nodes(config: Config) -> None:
    """Raise ConfigError for server computations that need the samples on the nodes, or their number."""
    if config.data.features is not None:
        raise ConfigError(
            f"data.features={config.data.features!r} with data.partition='nodes': the nodes' samples are used "
            "unchanged. Give nodes and data.name files of features (dpfed.data.scattering), and remove data.features."
        )
    if config.local.steps is None:
        raise ConfigError(
            f"local.epochs={config.local.epochs} with data.partition='nodes': the steps of an epoch reveal "
            "a node's number of samples, which only the node knows. Give local.steps instead."
        )
    if config.local.record is not None:
        raise ConfigError(
            "[local.record] with data.partition='nodes': its epsilon depends on clients' numbers of records, which "
            "the server does not know. Use [privacy], whose unit is the client, or another data.partition."
        )


OF_LETTERS = "char-lstm"
"""Name of the network whose inputs are numbers of letters."""


def check_letters(model: str, dataset: Dataset) -> None:
    """Raise DataError for inputs of the letter network that are not numbers of letters.

    The check is before any round: a run that stopped at such a sample would reveal that it was drawn.
    """
    if model != OF_LETTERS:
        return
    for half in (dataset.train_inputs, dataset.test_inputs):
        if half.size and not (half.min() > -1 and half.max() < dataset.outputs):
            raise DataError(
                f"an input of {dataset.name!r} is not among the {dataset.outputs} declared letters, 0 to "
                f"{dataset.outputs - 1}, that model.name='{OF_LETTERS}' reads. Number the letters, or declare more."
            )
