"""Conversion between an NVFlare model, which is arrays by name, and one vector of its floating-point numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.errors import ConfigError, WireError

Arrays = dict[str, NDArray[Any]]


def numpy_arrays_of(params: Mapping[str, object]) -> Arrays:
    """Return numpy arrays or torch tensors by name as numpy arrays, in their order; raises WireError for other
    values."""
    try:
        return {str(name): np.asarray(value) for name, value in params.items()}
    except Exception as error:  # numpy may raise anything on an untrusted object
        raise WireError(f"parameters cannot be read as arrays ({error}).") from None


def model_size(start: Arrays) -> int:
    """Return d, the number of floating-point numbers in the arrays. Raises ConfigError if d is 0."""
    size = sum(array.size for array in start.values() if _is_floating_point(array))
    if not size:
        raise ConfigError("the model has no floating-point parameters: there is nothing to train.")
    return size


def vector_of_arrays(start: Arrays, moves: Arrays) -> Tensor:
    """Return differences by name as float32 [d], in the order of the arrays of the model `start`.

    All floating-point arrays of the model are required; other names are ignored. Raises WireError unless shapes are
    those of the model.
    """
    parts = []
    for name, array in start.items():
        if not _is_floating_point(array):
            continue
        if name not in moves or moves[name].shape != array.shape or moves[name].dtype.kind not in "fiu":
            found = f"{moves[name].dtype} {moves[name].shape}" if name in moves else "missing"
            raise WireError(f"parameter {name!r}: {found}; must be numbers of shape {array.shape}, as the model's.")
        parts.append(moves[name].astype(np.float32).ravel())
    return torch.from_numpy(np.concatenate(parts))


def array_differences(start: Arrays, end: Arrays) -> Arrays:
    """Return the differences `end` - `start` of the floating-point arrays, by name.

    Raises WireError unless `end` has all of them, in the shapes of the model."""
    vector_of_arrays(start, end)
    return {
        name: (end[name].astype(np.float64) - array).astype(np.float32)
        for name, array in start.items()
        if _is_floating_point(array)
    }


def add_to_arrays(start: Arrays, move: Tensor) -> Arrays:
    """Return the arrays `start` after adding a float32 vector [d] to the floating-point arrays; others are
    unchanged."""
    values, place, ends = move.numpy(), 0, {}
    for name, array in start.items():
        ends[name] = array
        if _is_floating_point(array):
            part = values[place : place + array.size].reshape(array.shape)
            place += array.size
            ends[name] = (array + part).astype(array.dtype)
    return ends


def arrays_of_vector(start: Arrays, move: Tensor) -> Arrays:
    """Return a float32 vector [d] as arrays by name, in the shapes of the model's floating-point arrays."""
    nothing = {
        name: np.zeros(array.shape, dtype=np.float32) for name, array in start.items() if _is_floating_point(array)
    }
    return add_to_arrays(nothing, move)


def _is_floating_point(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f"
