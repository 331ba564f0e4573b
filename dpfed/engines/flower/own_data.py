"""Local samples of a node, used instead of its part of the configured data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from accounting.ledger.regular_file import LARGEST_ARRAYS, require_input
from dpfed.data.dataset import exact_floats
from dpfed.data.partition import Partition
from dpfed.data.samples import check_letters
from dpfed.errors import ConfigError, DataError
from dpfed.runs.experiment import Experiment
from dpfed.stages.clip import Weigh

LoadData = Callable[[Context], tuple[ArrayLike, ArrayLike]]
"""Function that returns the node's inputs [n, ...] and labels or targets [n, ...], n at least 1, in the format of
data.name's test samples.
"""

_ARRAYS = {"inputs", "labels"}
_WHOSE = "samples of this node"


def samples_of_file(context: Context) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Return the arrays `inputs` and `labels` of the safetensors file that is named in the node's configuration.

    For example `flower-supernode --node-config 'partition-id=0 data="/data/mine.safetensors"'`. Raises ConfigError or
    DataError.
    """
    path = context.node_config.get("data")
    if not isinstance(path, str) or not Path(path).is_absolute():
        raise ConfigError(
            f"data={path!r} of this node: must be the absolute path of a safetensors file. Start the node with "
            "--node-config 'partition-id=0 data=\"/data/mine.safetensors\"'."
        )
    try:
        require_input(path, at_most=LARGEST_ARRAYS)
        arrays = load_file(path)
    except (OSError, SafetensorError, TypeError, ValueError, AttributeError, KeyError, MemoryError) as error:
        raise DataError(f"{path}: cannot be read as safetensors ({error}).") from None
    if arrays.keys() != _ARRAYS:
        raise DataError(f"{path}: holds {', '.join(sorted(arrays))}; must hold inputs and labels, no others.")
    return arrays["inputs"], arrays["labels"]


def with_own_samples(experiment: Experiment, client: int, samples: tuple[ArrayLike, ArrayLike]) -> Experiment:
    """Return the experiment in which this client has the given samples, and the other clients have none.

    Raises DataError for samples that do not have the shape, type or classes of the configured data set. The message is
    sent to the server, so it contains no value of a sample.
    """
    try:
        inputs, labels = (np.asarray(one) for one in samples)
    except (TypeError, ValueError) as error:
        raise DataError(f"{_WHOSE}: must be (inputs, labels), arrays ({type(error).__name__}).") from None
    of_classes = experiment.dataset.classes is not None
    if inputs.dtype.kind not in "biuf" or labels.dtype.kind not in ("iu" if of_classes else "biuf"):
        raise DataError(f"{_WHOSE}: {inputs.dtype}, {labels.dtype}; must be numbers, and integers for classes.")
    own = replace(
        experiment.dataset,
        name=_WHOSE,
        train_inputs=_inputs_as(experiment.dataset.test_inputs.dtype, inputs),
        train_labels=labels.astype(experiment.dataset.test_labels.dtype),
        train_clients=None,
        natural_clients=0,
        client_ids=None,
    )
    if not (np.isfinite(own.train_inputs).all() and np.isfinite(own.train_labels).all()):
        raise DataError(f"{_WHOSE}: hold NaN or infinity. Fill or remove these samples.")
    check_letters(experiment.config.model.name, own)
    count = len(own.train_labels)
    offsets = np.zeros(experiment.config.federation.clients + 1, dtype=np.int64)
    offsets[client + 1 :] = count
    clients = replace(
        experiment.method.clients,
        inputs=torch.from_numpy(own.train_inputs).to(experiment.device),
        labels=torch.from_numpy(own.train_labels).to(experiment.device),
        partition=Partition(indices=np.arange(count, dtype=np.int64), offsets=offsets),
    )
    return replace(experiment, method=replace(experiment.method, clients=clients))


def _inputs_as(kind: np.dtype[np.generic], inputs: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return inputs in the type that the network requires. Raises DataError for numbers that it cannot represent."""
    if kind.kind == "f" and inputs.dtype.kind in "iu":
        return exact_floats(inputs, _WHOSE)
    with np.errstate(over="ignore", invalid="ignore"):
        made = inputs.astype(kind)
    if kind.kind == "i" and not np.array_equal(made, inputs):
        raise DataError(f"{_WHOSE}: {inputs.dtype}; the network takes integers, and these are not all whole numbers.")
    return made


def equal_weights(experiment: Experiment) -> Experiment:
    """Return the experiment with equal weights of clients if data.partition is "nodes", also without privacy."""
    if experiment.config.data.partition != "nodes":
        return experiment
    method = experiment.method
    return replace(experiment, method=replace(method, stages=method.stages.without(Weigh)))
