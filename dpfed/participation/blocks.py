"""Random draws for client ids, made block by block, so that memory does not grow with the population.

A draw belongs to a client's id, never to a position in a cohort or a list: one client added or removed changes no
other client's draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from dpfed.randomness import Randomness

BLOCK = 1 << 17
"""Number of clients in a block."""


def clients_in_blocks(clients: int, takes_part: Callable[[int, int], NDArray[np.bool_]]) -> NDArray[np.int64]:
    """Return the sorted ids of the clients for which `takes_part(clients in the block, block number)` is true."""
    found = [
        block * BLOCK + np.flatnonzero(takes_part(min(BLOCK, clients - block * BLOCK), block))
        for block in range(-(-clients // BLOCK))
    ]
    return np.concatenate(found)


def uniforms_by_id(
    clients: int, randomness: Randomness, purpose: str, number: int
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield (first id, uniforms in [0, 1)) for each block of the ids 0 .. clients - 1 in a round.

    Claim: if draws are repeatable, a client's value depends on (randomness, purpose, round, its id) only; it does not
    depend on `clients`.
    """
    for block in range(-(-clients // BLOCK)):
        path = (number, block) if block else (number,)
        yield block * BLOCK, randomness.uniform(min(BLOCK, clients - block * BLOCK), purpose, *path)


def uniforms_of_ids(
    ids: NDArray[np.int64], clients: int, randomness: Randomness, purpose: str, number: int
) -> NDArray[np.float64]:
    """Return the values of `uniforms_by_id` for the ids [c], each in 0 .. clients - 1; float64 [c]."""
    values = np.full(len(ids), np.nan)
    for first, drawn in uniforms_by_id(clients, randomness, purpose, number):
        here = (ids >= first) & (ids < first + len(drawn))
        values[here] = drawn[ids[here] - first]
    assert not np.isnan(values).any(), f"an id beyond the {clients} that values are drawn for"
    return values


def smallest_of_others(
    count: int, but: NDArray[np.int64], clients: int, randomness: Randomness, purpose: str, number: int
) -> NDArray[np.int64]:
    """Return the `count` ids of 0 .. clients - 1, outside the ids `but`, with the smallest `uniforms_by_id`."""
    ids, values, bound = np.zeros(0, dtype=np.int64), np.zeros(0), 1.0
    for first, drawn in uniforms_by_id(clients, randomness, purpose, number):
        free = drawn < bound
        free[but[(but >= first) & (but < first + len(drawn))] - first] = False
        low = np.flatnonzero(free)
        ids, values = np.concatenate([ids, first + low]), np.concatenate([values, drawn[low]])
        if len(ids) > count:
            kept = np.argpartition(values, count)[:count]
            ids, values = ids[kept], values[kept]
            bound = float(values.max(initial=0.0))
    return ids
