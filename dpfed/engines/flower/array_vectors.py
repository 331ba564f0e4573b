"""A Flower model's arrays as one vector, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from dpfed.errors import ConfigError, WireError


def size_of(start: ArrayRecord) -> int:
    """d: numbers in the floating-point arrays. ConfigError for a model without any."""
    size = sum(int(np.prod(array.shape)) for array in start.values() if _trained(array))
    if not size:
        raise ConfigError("the model's ArrayRecord has no floating-point array: there is nothing to train.")
    return size


def update_of(start: ArrayRecord, end: ArrayRecord) -> Tensor:
    """float32 [d]: where the floating-point arrays went from `start`, in its order; counters such as
    num_batches_tracked are left out. WireError unless both have the same names and shapes."""
    if list(start.keys()) != list(end.keys()):
        raise WireError(f"arrays {list(end.keys())!r:.200}: must be the model's, {list(start.keys())!r:.200}.")
    parts = [
        _values(name, end[name], array).astype(np.float64).ravel() - array.numpy().astype(np.float64).ravel()
        for name, array in start.items()
        if _trained(array)
    ]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))


def moved(start: ArrayRecord, move: Tensor) -> ArrayRecord:
    """`start` with its floating-point arrays moved by float32 [d]; the others as they were."""
    values, place, arrays = move.numpy(), 0, {}
    for name, array in start.items():
        here = array.numpy()
        if _trained(array):
            part = values[place : place + here.size].reshape(here.shape)
            place += here.size
            here = (here + part).astype(here.dtype)
        arrays[name] = Array(np.asarray(here))
    return ArrayRecord(arrays)


def typed_as(start: ArrayRecord, arrays: ArrayRecord) -> ArrayRecord:
    """Arrays with the types that they have in `start`: Flower's weighted means make floats of integers."""
    return ArrayRecord(
        {
            name: Array(np.asarray(array.numpy().astype(start[name].dtype)))
            if name in start and start[name].dtype != array.dtype
            else array
            for name, array in arrays.items()
        }
    )


def _values(name: str, given: Array, like: Array) -> NDArray[Any]:
    """The numbers of a stranger's array; what it says of its own shape is not believed."""
    try:
        values = given.numpy()
    except Exception as error:  # whatever numpy makes of a stranger's bytes
        raise WireError(f"array {name!r}: cannot be read ({error}).") from None
    if values.shape != tuple(like.shape) or values.dtype != np.dtype(like.dtype):
        raise WireError(f"array {name!r} of {values.dtype} {values.shape}: must be {like.dtype} {tuple(like.shape)}.")
    return values


def _trained(array: Array) -> bool:
    return np.dtype(array.dtype).kind == "f"
