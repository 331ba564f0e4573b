"""Directions of the updates in which audits compare pairs of neighbouring inputs.

Some directions have entries of equal size, others of uneven size: code that treats entries by their size (quantising,
picking the largest, a norm of some entries) can keep its bound for equal entries and exceed it for uneven entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[str], object]

Direction = NDArray[np.float64]

LOUD_NORM = 1e3
"""Norm of loud updates as a multiple of the clip norm: so large that a missing or faulty clip is visible."""

_SMALL = 0.05

_FEW = 8  # "few coordinates" has one entry in 8 that is not zero


def fixed_signs(size: int) -> Direction:
    """Return [size] entries +1 and -1 from a fixed seed, so without a pattern that code might treat in a
    special way.
    """
    return np.where(np.random.default_rng(7).random(size) < 0.5, 1.0, -1.0)


def layerwise_direction(layers: Sequence[int]) -> Direction:
    """Return a direction [d] with norm 1 in every layer and entries of equal size within it. layers: sizes, sum d."""
    return np.asarray(fixed_signs(sum(layers)) / np.sqrt(np.repeat(np.asarray(layers, dtype=float), layers)))


def uneven_directions(layers: Sequence[int]) -> dict[str, Direction]:
    """Return directions [d] of norm 1 with entries of different size, by name. layers: sizes of the layers, sum d."""
    size = sum(layers)
    drawn = np.random.default_rng(11)
    order, normal = drawn.permutation(size), drawn.standard_normal(size)
    spike = np.full(size, _SMALL)
    spike[order[0]] = 1.0
    power, few = np.empty(size), np.zeros(size)
    power[order] = 1.0 / np.arange(1, size + 1)
    few[order[: max(2, size // _FEW)]] = 1.0
    first, last = np.zeros(size), np.zeros(size)
    first[: layers[0]], last[size - layers[-1] :] = 1.0, 1.0
    found = {
        "a spike beside small entries": fixed_signs(size) * spike,
        "Gaussian entries": normal,
        "entries by a power law": fixed_signs(size) * power,
        "few coordinates": fixed_signs(size) * few,
        "the first layer only": fixed_signs(size) * first,
        "the last layer only": fixed_signs(size) * last,
    }
    return {name: row / np.linalg.norm(row) for name, row in found.items()}
