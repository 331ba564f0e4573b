"""Probes: what a vector of a round looks like along one public direction of random signs.

A linear step shows in them as a linear step of numbers, so that an audit can work a round out again without its
vectors: what went into the sum, the sum, its noise, what was released, the model before and after. They depend on
private data: for diagnostics.jsonl, which the operator keeps to itself.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from dpfed.compress.counter import client_seeds, rademacher

_SEED = 2_718_281_828
"""Seed of the direction; no other stream starts from it."""


@lru_cache(maxsize=4)
def direction(size: int, device: torch.device) -> Tensor:
    """Signs [size], float32, the same in every run, round and place; not to be written to."""
    return rademacher(client_seeds([_SEED], 1).to(device), "audit.probe", size)[0]


def probe(rows: Tensor) -> Tensor:
    """Return the sum over rows [c, k] of their products with the direction, a scalar: int64 for integers (modulo 2^64),
    float64 for floats, rounded as sums in float32 are."""
    signs = direction(rows.shape[1], rows.device)
    if rows.is_floating_point():
        return (rows @ signs.to(rows.dtype)).double().sum()
    return (rows.to(torch.int64).sum(dim=0) * signs.to(torch.int64)).sum()


def probe_of(vector: Tensor) -> int | float:
    """Return the probe of one vector [k] as a number for JSON; floats are multiplied in float64."""
    rows = vector[None]
    return number(probe(rows.double() if vector.is_floating_point() else rows))


def number(value: Tensor) -> int | float:
    """Return a scalar as a number for JSON."""
    return float(value) if value.is_floating_point() else int(value)
