"""Probes: products of a round's vectors with one public direction of random signs.

A linear step on vectors is the equal linear step on their probes, so an audit can recompute a round without its
vectors. Probed are the rows in the sum, the sum, its noise, the released sum, and the model before and after. Probes
depend on private data, so they are in diagnostics.jsonl, which only the operator may read.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from dpfed.compress.counter import client_seeds, rademacher

_SEED = 2_718_281_828
"""Seed of the direction, which no other stream starts from."""


@lru_cache(maxsize=4)
def direction(size: int, device: torch.device) -> Tensor:
    """Return signs [size], float32, equal in every run, round and process; the tensor must not be written to."""
    return rademacher(client_seeds([_SEED], 1).to(device), "audit.probe", size)[0]


def probe(rows: Tensor) -> Tensor:
    """Return the sum over rows [c, k] of their products with the direction, a scalar: int64 for integers (modulo 2^64),
    float64 for floats, with the rounding of sums in float32."""
    signs = direction(rows.shape[1], rows.device)
    if rows.is_floating_point():
        return (rows @ signs.to(rows.dtype)).double().sum()
    return (rows.to(torch.int64).sum(dim=0) * signs.to(torch.int64)).sum()


def probe_of(vector: Tensor) -> int | float:
    """Return the probe of one vector [k] as a number for JSON; products of floats are computed in float64."""
    rows = vector[None]
    return json_number(probe(rows.double() if vector.is_floating_point() else rows))


def json_number(value: Tensor) -> int | float:
    """Return a scalar as a number for JSON."""
    return float(value) if value.is_floating_point() else int(value)
