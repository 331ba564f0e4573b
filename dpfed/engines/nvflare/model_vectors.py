"""Parameters of an NVFlare model, arrays by name, as one vector, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.errors import ConfigError, WireError

Arrays = dict[str, NDArray[Any]]


def arrays_of(params: Mapping[str, object]) -> Arrays:
    """Return parameters, numpy or torch, as numpy arrays in their order. WireError for anything else."""
    try:
        return {str(name): np.asarray(value) for name, value in params.items()}
    except Exception as error:  # numpy may raise anything on an untrusted object
        raise WireError(f"parameters cannot be read as arrays ({error}).") from None


def size_of(start: Arrays) -> int:
    """Return d, the number of floating-point numbers in the arrays. ConfigError for a model without any."""
    size = sum(array.size for array in start.values() if _trained(array))
    if not size:
        raise ConfigError("the model has no floating-point parameters: there is nothing to train.")
    return size


def vector_of(start: Arrays, moves: Arrays) -> Tensor:
    """Return differences by name as float32 [d], in the order of the model `start`.

    Names of its floating-point arrays are required, other names are left out. WireError unless shapes are the model's.
    """
    parts = []
    for name, array in start.items():
        if not _trained(array):
            continue
        if name not in moves or moves[name].shape != array.shape or moves[name].dtype.kind not in "fiu":
            found = f"{moves[name].dtype} {moves[name].shape}" if name in moves else "missing"
            raise WireError(f"parameter {name!r}: {found}; must be numbers of shape {array.shape}, as the model's.")
        parts.append(moves[name].astype(np.float32).ravel())
    return torch.from_numpy(np.concatenate(parts))


def difference(start: Arrays, end: Arrays) -> Arrays:
    """Return the moves of the floating-point arrays. WireError unless `end` has them in the model's shapes."""
    vector_of(start, end)
    return {
        name: (end[name].astype(np.float64) - array).astype(np.float32)
        for name, array in start.items()
        if _trained(array)
    }


def moved(start: Arrays, move: Tensor) -> Arrays:
    """Return the arrays `start`, floating-point ones moved by float32 [d], the others unchanged."""
    values, place, ends = move.numpy(), 0, {}
    for name, array in start.items():
        ends[name] = array
        if _trained(array):
            part = values[place : place + array.size].reshape(array.shape)
            place += array.size
            ends[name] = (array + part).astype(array.dtype)
    return ends


def apart(start: Arrays, move: Tensor) -> Arrays:
    """Return float32 [d] as arrays by name."""
    nothing = {name: np.zeros(array.shape, dtype=np.float32) for name, array in start.items() if _trained(array)}
    return moved(nothing, move)


def _trained(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f"
