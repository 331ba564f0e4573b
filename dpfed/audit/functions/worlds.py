"""Neighbouring inputs of a function of updates: updates of the client under test in both worlds, and of all others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting.mechanisms.adjacency import Adjacency
from dpfed.audit.trials import LOUD_NORM, fixed_signs, layerwise_direction, uneven_directions
from dpfed.errors import ConfigError

Floats = NDArray[np.float32]

_BARELY = 0.01  # relative change of an entry: it changes which entries are the largest, and hardly changes the norm
_PARTS = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Worlds:
    """Two neighbouring inputs of any kind that the function accepts.

    one: input with the client, or record, under test (world 1). other: its neighbour (world 0).
    screened: True if the pair gets trials only if a short pilot separates its worlds better than all other pairs.

    >>> import numpy as np, dpfed.audit
    >>> pair = dpfed.audit.Worlds(name="one record", one=np.ones((3, 2)), other=np.ones((2, 2)))
    >>> [len(world) for world in pair.both]
    [2, 3]
    """

    name: str
    one: object
    other: object
    screened: bool = False

    @cached_property
    def both(self) -> tuple[object, object]:
        """Inputs of worlds 0 and 1, always as the same tuple object, which is sent to the worker process once."""
        return self.other, self.one


def pairs_of_updates(
    adjacency: Adjacency, *, clients: int, dimension: int, clip_norm: float, layout: Sequence[int] | None = None
) -> list[Worlds]:
    """Return pairs of updates [clients, dimension] of two worlds that differ in one client.

    The row of that client is the last in the first pair, the first in the next pair, and a middle one in others. In
    world 0 its row is missing [clients - 1, dimension] (add-remove), zero (zero-out) or the opposite (replace-one).
    layout: sizes of a model's layers, by default four equal parts. Pairs of uneven entries are last and are screened.
    """
    sizes = _layer_sizes(layout, dimension)
    if clients < 2 or not clip_norm > 0:
        raise ConfigError(f"clients={clients}, clip_norm={clip_norm}: must be at least 2 clients, and a norm above 0.")
    even_signs = fixed_signs(dimension) / dimension**0.5
    loud = LOUD_NORM * clip_norm
    dense = loud * even_signs
    entry = np.zeros(dimension)
    entry[dimension // 2] = loud
    even = np.arange(dimension) % 2 == 0
    values = [clip_norm / dimension**0.5 * (1 + _BARELY * flag) for flag in (even, ~even)]

    places = itertools.cycle(_client_positions(clients))

    def pair(
        name: str, one: ArrayLike, rest: ArrayLike, other: ArrayLike | None = None, *, screened: bool = False
    ) -> Worlds:
        at = next(places)
        others = np.tile(np.asarray(rest, dtype=np.float32), (clients - 1, 1))
        own = np.asarray(one, dtype=np.float32)[None]
        if other is None:
            other = -own if adjacency is Adjacency.REPLACE_ONE else np.zeros_like(own)
        missing = adjacency is Adjacency.ADD_REMOVE and not np.any(other)
        instead = others[:0] if missing else np.asarray(other, dtype=np.float32).reshape(1, -1)
        rows = [np.concatenate([others[:at], of_it, others[at:]]) for of_it in (own, instead)]
        return Worlds(name=name, one=rows[0], other=rows[1], screened=screened)

    nothing = np.zeros(dimension)
    found = [
        pair("far beyond the clip norm", dense, nothing),
        pair("far beyond the clip norm, opposite direction", -dense, nothing),
        pair("one coordinate", entry, nothing),
        pair("equal norm in every layer", loud * layerwise_direction(sizes), nothing),
        pair("all others opposite", dense, -dense),
        pair("others opposite, at the clip norm", dense, -clip_norm * even_signs),
        pair("just inside the clip norm", 0.9999 * clip_norm * even_signs, nothing),
    ]
    if adjacency is Adjacency.REPLACE_ONE:
        found.append(pair("other entries on top", values[0], values[0], values[1]))
    else:
        found.append(pair("other entries on top", values[0], values[1] / (2 * (clients - 1))))
    rows = uneven_directions(sizes)
    return [*found, *(pair(name, loud * row, nothing, screened=True) for name, row in rows.items())]


def pair_with_nan(worlds: Worlds) -> Worlds:
    """Return the pair in which the last client of world 1 sends NaN."""
    one = np.array(worlds.one)
    one[-1] = np.nan
    return Worlds(name="not a number", one=one, other=worlds.other)


def _client_positions(clients: int) -> list[int]:
    """Return at most four positions of the client under test, which the pairs use in turn."""
    ends = [clients - 1, 0]
    return [*ends, *(at for at in (clients // 2, clients // 4) if at not in ends)]


def _layer_sizes(layout: Sequence[int] | None, dimension: int) -> list[int]:
    if layout is None:
        return [len(part) for part in np.array_split(np.arange(dimension), min(_PARTS, dimension))]
    if sum(layout) != dimension or min(layout) < 1:
        raise ConfigError(f"layout={list(layout)}: must be sizes above 0 that sum to dimension={dimension}.")
    return list(layout)
