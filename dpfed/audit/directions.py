"""Directions of one client's update that audits of functions and of methods try: even ones, and uneven ones.

A rule that treats entries by their size (quantising, picking the largest, a norm of some entries only) can keep its
bound for entries of equal size and exceed it for others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Direction = NDArray[np.float64]

LOUD = 1e3
"""The norm of loud updates over the clip norm: far beyond any clip, so that the clip is under test."""

_SMALL = 0.05
_FEW = 8  # one entry in so many


def signs(size: int) -> Direction:
    """+1 and -1 in no pattern that a code might treat in a special way; the same in every call."""
    return np.where(np.random.default_rng(7).random(size) < 0.5, 1.0, -1.0)


def equal_in_every_layer(layers: Sequence[int]) -> Direction:
    """Entries of equal size within a layer, norm 1 in every layer. layers: their sizes, which sum to d."""
    return np.asarray(signs(sum(layers)) / np.sqrt(np.repeat(np.asarray(layers, dtype=float), layers)))


def uneven(layers: Sequence[int]) -> dict[str, Direction]:
    """Directions [d] of norm 1 whose entries differ in size, by name. layers: their sizes, which sum to d."""
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
        "a spike beside small entries": signs(size) * spike,
        "Gaussian entries": normal,
        "entries by a power law": signs(size) * power,
        "few coordinates": signs(size) * few,
        "the first layer only": signs(size) * first,
        "the last layer only": signs(size) * last,
    }
    return {name: row / np.linalg.norm(row) for name, row in found.items()}
