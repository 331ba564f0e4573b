"""Draws by client, on numpy alone: the parts that all samplers (`accounting.mechanisms.samplings`) share.

A draw belongs to a client's id, never to a position in a cohort or a list: one client added or removed changes no
other client's draw. Draws are made block by block of clients, so that memory does not grow with the population. The
cohort of a round of a schedule is recomputed from the clients' streams: a run resumes at any round, and every process
and engine draws equal cohorts. Whole numbers below n come from 53-bit uniforms: their distribution is exact to
n 2^-53 in total variation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accounting.arrays import Floats, Ints

BLOCK = 1 << 17
"""Number of clients in a block."""


class Draws(Protocol):
    """Random draws, each named by a purpose and integers (round, block); `dpfed.randomness` has two kinds."""

    def uniform(self, count: int, purpose: str, *path: int) -> Floats:
        """Independent uniforms in [0, 1), multiples of 2^-53. Shape: [count]."""

    def subset(self, size: int, population: int, purpose: str, *path: int) -> Ints:
        """Draw a uniform subset of 0..population-1 of exactly `size`, sorted, without replacement."""


class NamedClients(Protocol):
    """Public ids of clients, named by the data: lanes and turns follow from their hashes."""

    @property
    def hashes(self) -> NDArray[np.uint64]: ...

    def lanes(self, count: int) -> Ints: ...

    def to_json(self) -> bytes: ...


def uniform_threshold(probability: float) -> float:
    """Return the largest multiple of 2^-53 that is at most the probability: a bound for `uniform`.

    Claim: a draw of `uniform` lies below it with exactly this probability, never more than the probability charged.

    >>> uniform_threshold(0.25), uniform_threshold(1e-17)
    (0.25, 0.0)
    """
    return math.ldexp(math.floor(math.ldexp(probability, 53)), -53)


def clients_in_blocks(clients: int, takes_part: Callable[[Ints, int], NDArray[np.bool_]]) -> Ints:
    """Return the sorted ids of the clients for which `takes_part(ids of the block, block number)` is true."""
    found = []
    for block, first in enumerate(range(0, clients, BLOCK)):
        ids = np.arange(first, min(first + BLOCK, clients))
        found.append(ids[takes_part(ids, block)])
    return np.concatenate(found)


def uniforms_by_id(clients: int, randomness: Draws, purpose: str, number: int) -> Iterator[tuple[int, Floats]]:
    """Yield (first id, uniforms in [0, 1)) for each block of the ids 0 .. clients - 1 in a round.

    Claim: if draws are repeatable, a client's value depends on (randomness, purpose, round, its id) only; it does not
    depend on `clients`.
    """
    for block in range(-(-clients // BLOCK)):
        path = (number, block) if block else (number,)
        yield block * BLOCK, randomness.uniform(min(BLOCK, clients - block * BLOCK), purpose, *path)


def uniforms_of_ids(ids: Ints, clients: int, randomness: Draws, purpose: str, number: int) -> Floats:
    """Return the values of `uniforms_by_id` for the ids [c], each in 0 .. clients - 1; float64 [c]."""
    values = np.full(len(ids), np.nan)
    for first, drawn in uniforms_by_id(clients, randomness, purpose, number):
        here = (ids >= first) & (ids < first + len(drawn))
        values[here] = drawn[ids[here] - first]
    assert not np.isnan(values).any(), f"an id beyond the {clients} that values are drawn for"
    return values


def smallest_of_others(count: int, but: Ints, clients: int, randomness: Draws, purpose: str, number: int) -> Ints:
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


def clients_by_chance(probability: float, clients: int, randomness: Draws, number: int) -> Ints:
    """Return the ids of 0 .. clients - 1 that a round draws, each independently with this probability."""
    values, bound = uniforms_by_id(clients, randomness, "cohort", number), uniform_threshold(probability)
    return np.concatenate([first + np.flatnonzero(drawn < bound) for first, drawn in values])


def uniform_integers(uniforms: Floats, below: int) -> Ints:
    """Return uniform whole numbers from 0 to below - 1."""
    return np.minimum((uniforms * below).astype(np.int64), below - 1)
