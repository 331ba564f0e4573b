"""Values that a replay audit compares: arrays of numbers and tensors, digests, norms of differences."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.replayed import Norm

Floats = NDArray[np.float64]


def as_array(value: Any) -> NDArray[Any]:
    """Return a number, an array or a tensor as an array; a sequence of these is concatenated."""
    if isinstance(value, list | tuple):
        parts = [as_array(one).reshape(-1) for one in value]
        return np.concatenate(parts) if parts else np.zeros(0)
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.atleast_1d(np.array(value))


def in_form_of(array: NDArray[Any], value: Any) -> Any:
    """Return the entries of `array` as an object of the type, shape and dtype of `value`."""
    if isinstance(value, list | tuple):
        made, start = [], 0
        for one in value:
            size = as_array(one).size
            made.append(in_form_of(array[start : start + size], one))
            start += size
        return type(value)(made)
    if hasattr(value, "detach"):
        import torch

        return torch.from_numpy(array.reshape(tuple(value.shape))).to(value)
    if isinstance(value, np.ndarray):
        return array.reshape(value.shape).astype(value.dtype)
    return type(value)(array.reshape(-1)[0])


def digest(value: object) -> str:
    """Return a digest of the value; arrays are compared by their bits.

    Digests of different values are equal with probability 2^-128. SHA-256 is used since processors have instructions
    for it: rows of millions of numbers are hashed after every stage.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        found = hashlib.sha256(f"{value.dtype}{value.shape}".encode())
        whole = np.ascontiguousarray(value).reshape(-1)
        found.update(whole.tobytes() if value.dtype == object else whole.view(np.uint8).data)
        return "#" + found.hexdigest()[:32]
    if isinstance(value, list | tuple) and any(hasattr(one, "dtype") for one in value):
        return "#" + hashlib.sha256("".join(map(digest, value)).encode()).hexdigest()[:32]
    return repr(value)


def norm_of(moved: Floats, norm: Norm) -> float:
    """Return the norm of a difference; NaN if the difference has a NaN."""
    with np.errstate(all="ignore"):
        flat = moved.reshape(-1)
        order: float = {"l1": 1, "l2": 2, "linf": math.inf}[norm]
        return float(np.linalg.norm(flat, order)) if flat.size else 0.0
