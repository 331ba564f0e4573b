"""Samplers of cohorts: draws of the clients of a round, with the distribution that is charged, on numpy alone.

A draw belongs to a client's id, never to a position in a cohort or a list: one client added or removed changes no
other client's draw. Draws are made block by block of clients, so that memory does not grow with the population. The
cohort of a round of a schedule is recomputed from the clients' streams: a run resumes at any round, and every process
and engine draws equal cohorts. Whole numbers below n come from 53-bit uniforms: their distribution is exact to
n 2^-53 in total variation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accounting.arrays import Floats, Ints
from accounting.mechanisms import (
    Allocation,
    BallsAndBins,
    CappedPoissonSampling,
    Cyclic,
    FixedSizeSampling,
    FullParticipation,
    MinSeparation,
    PoissonSampling,
    Sampling,
    Shuffled,
)

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


class Sampler(Protocol):
    """Sampler of a round's cohort; `expected` is the public cohort size that sums are divided by."""

    @property
    def clients(self) -> int: ...

    @property
    def law(self) -> Sampling: ...

    @property
    def expected(self) -> float: ...

    def sample(self, randomness: Draws, number: int) -> Ints:
        """Return sorted client ids without repeats; empty cohorts are possible under Poisson sampling."""


def uniform_threshold(probability: float) -> float:
    """Return the largest multiple of 2^-53 that is at most the probability: a bound for `uniform`.

    Claim: a draw of `uniform` lies below it with exactly this probability, never more than the probability charged.

    >>> uniform_threshold(0.25), uniform_threshold(1e-17)
    (0.25, 0.0)
    """
    return math.ldexp(math.floor(math.ldexp(probability, 53)), -53)


def clients_in_blocks(clients: int, takes_part: Callable[[int, int], NDArray[np.bool_]]) -> Ints:
    """Return the sorted ids of the clients for which `takes_part(clients in the block, block number)` is true."""
    found = [
        block * BLOCK + np.flatnonzero(takes_part(min(BLOCK, clients - block * BLOCK), block))
        for block in range(-(-clients // BLOCK))
    ]
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


@dataclass(frozen=True, kw_only=True)
class _CohortsOfSize:
    clients: int
    cohort: int

    @cached_property
    def expected(self) -> float:
        return float(self.cohort)


@dataclass(frozen=True, kw_only=True)
class PoissonCohorts(_CohortsOfSize):
    """Poisson sampling: every client is drawn independently with probability cohort / clients.

    cap: the largest number of clients that take part (`draw_cohort`); the others do not learn that they were drawn
    Claim: cohorts have the distribution of `accounting.PoissonSampling`, with a cap of `CappedPoissonSampling`.
    Source: docs/theory.md, Theorems 3, 4 and 9. Adjacency: any.

    >>> PoissonCohorts(clients=600, cohort=15).law
    PoissonSampling(probability=0.025)
    """

    cap: int | None = None

    @cached_property
    def law(self) -> PoissonSampling | CappedPoissonSampling:
        q = self.cohort / self.clients
        if self.cap is None:
            return PoissonSampling(probability=q)
        return CappedPoissonSampling(probability=q, cap=self.cap, clients=self.clients)

    def sample(self, randomness: Draws, number: int) -> Ints:
        values, bound = (
            uniforms_by_id(self.clients, randomness, "cohort", number),
            uniform_threshold(self.law.probability),
        )
        return np.concatenate([first + np.flatnonzero(drawn < bound) for first, drawn in values])


@dataclass(frozen=True, kw_only=True)
class FixedSizeCohorts(_CohortsOfSize):
    """Fixed-size sampling: exactly `cohort` clients, uniformly without replacement.

    Ids are drawn from a population whose size is equal for all neighbours.
    Claim: cohorts have the distribution of `accounting.FixedSizeSampling`. Source: docs/theory.md, Theorems 1, 2 and 7.
    Adjacency: replace-one or zero-out.

    >>> FixedSizeCohorts(clients=600, cohort=15).law
    FixedSizeSampling(cohort=15, clients=600)
    """

    @cached_property
    def law(self) -> FixedSizeSampling:
        return FixedSizeSampling(cohort=self.cohort, clients=self.clients)

    def sample(self, randomness: Draws, number: int) -> Ints:
        return randomness.subset(self.cohort, self.clients, "cohort", number)


@dataclass(frozen=True, kw_only=True)
class AllClients:
    """Full participation: all clients in every round.

    Claim: no amplification. Adjacency: any.

    >>> AllClients(clients=600).expected
    600.0
    """

    clients: int

    @cached_property
    def law(self) -> FullParticipation:
        return FullParticipation()

    @cached_property
    def expected(self) -> float:
        return float(self.clients)

    def sample(self, randomness: Draws, number: int) -> Ints:
        return np.arange(self.clients)


@dataclass(frozen=True, kw_only=True)
class BallsAndBinsCohorts:
    """Balls-and-bins: every client in one uniform round of each epoch of `bins` rounds, drawn anew for every epoch.

    With lanes, a client's round is one of the rounds of its lane: those with round modulo lanes, from the run's start,
    equal to the lane. A public lane is id modulo lanes. A secret lane is drawn once for the client's id and kept for
    the run. ids: names of the clients; public lanes, and rounds in them, then follow from names and not from numbers.
    Claim: cohorts have the distribution of `accounting.mechanisms.BallsAndBins`. Source: Chua et al. 2025;
    docs/theory-participation.md, Theorems 1 and 5. Adjacency: zero-out or add-remove.

    >>> BallsAndBinsCohorts(clients=600, bins=60, stream="").expected
    10.0
    """

    clients: int
    bins: int
    stream: str
    lanes: int = 1
    secret_lanes: bool = False
    ids: NamedClients | None = field(default=None, repr=False)

    @cached_property
    def law(self) -> BallsAndBins:
        return BallsAndBins(bins=self.bins, lanes=self.lanes, secret_lanes=self.secret_lanes, stream=self.stream)

    @cached_property
    def expected(self) -> float:
        return self.clients / self.bins

    @cached_property
    def public_lanes(self) -> Ints:
        """Public lane of each client."""
        return np.arange(self.clients) % self.lanes if self.ids is None else self.ids.lanes(self.lanes)

    def sample(self, randomness: Draws, number: int) -> Ints:
        epoch, place = divmod(number, self.bins)
        lane, turn = number % self.lanes, place // self.lanes
        if self.ids is not None:
            mine = np.flatnonzero(self.public_lanes == lane)
            names = self.ids.hashes[mine].tolist()
            drawn = [randomness.uniform(1, "participation.bin.id", epoch, name)[0] for name in names]
            return np.asarray(
                mine[_uniform_integers(np.array(drawn, dtype=np.float64), self.bins // self.lanes) == turn]
            )

        def takes_part(count: int, block: int) -> NDArray[np.bool_]:
            drawn = _uniform_integers(
                randomness.uniform(count, "participation.bin", epoch, block), self.bins // self.lanes
            )
            lanes = (block * BLOCK + np.arange(count)) % self.lanes
            if self.secret_lanes:
                lanes = _uniform_integers(randomness.uniform(count, "participation.lane", block), self.lanes)
            return np.asarray((drawn == turn) & (lanes == lane))

        return clients_in_blocks(self.clients, takes_part)


@dataclass(frozen=True, kw_only=True)
class AllocationCohorts:
    """Random allocation: every client in `participations` of `rounds` rounds, a uniform subset (Floyd's algorithm).

    Claim: cohorts have the distribution of `accounting.mechanisms.Allocation`. Source: Feldman, Shenfeld 2025;
    docs/theory-participation.md, Theorems 2 and 6. Adjacency: zero-out or add-remove.

    >>> AllocationCohorts(clients=600, participations=3, rounds=180, stream="").expected
    10.0
    """

    clients: int
    participations: int
    rounds: int
    stream: str

    @cached_property
    def law(self) -> Allocation:
        return Allocation(participations=self.participations, rounds=self.rounds, stream=self.stream)

    @cached_property
    def expected(self) -> float:
        return self.clients * self.participations / self.rounds

    def sample(self, randomness: Draws, number: int) -> Ints:
        def takes_part(count: int, block: int) -> NDArray[np.bool_]:
            chosen = np.full((self.participations, count), -1, dtype=np.int64)
            for place, last in enumerate(range(self.rounds - self.participations, self.rounds)):
                drawn = _uniform_integers(randomness.uniform(count, "participation.allocation", place, block), last + 1)
                chosen[place] = np.where((chosen[:place] == drawn).any(axis=0), last, drawn)
            return np.asarray((chosen == number).any(axis=0))

        return clients_in_blocks(self.clients, takes_part)


@dataclass(frozen=True, kw_only=True)
class MinSeparationCohorts(_CohortsOfSize):
    """Minimum separation: after a participation a client skips `separation` - 1 rounds, then each round is random.

    Cohorts are stationary.
    Claim: they have the distribution of `accounting.mechanisms.MinSeparation`.
    Source: docs/theory-participation.md, Theorem 3.
    Adjacency: zero-out or add-remove.

    >>> MinSeparationCohorts(clients=600, cohort=10, separation=20, stream="").expected
    10.0
    """

    separation: int
    stream: str

    @cached_property
    def law(self) -> MinSeparation:
        return MinSeparation(separation=self.separation, probability=self.cohort / self.clients, stream=self.stream)

    def sample(self, randomness: Draws, number: int) -> Ints:
        rate, coin = self.law.probability, self.law.coin

        def takes_part(count: int, block: int) -> NDArray[np.bool_]:
            begun = randomness.uniform(count, "participation.rest", block)
            resting = begun < rate * (self.separation - 1)
            at = np.where(resting, np.floor(begun / rate) + 1, 0.0)
            at += _geometric(randomness.uniform(count, "participation.gap", 0, block), coin)
            times = 1
            while (at < number).any():
                gap = self.separation + _geometric(randomness.uniform(count, "participation.gap", times, block), coin)
                at, times = np.where(at < number, at + gap, at), times + 1
            return np.asarray(at == number)

        return clients_in_blocks(self.clients, takes_part)


@dataclass(frozen=True, kw_only=True)
class CyclicCohorts:
    """Public order: client i takes part in the rounds i, i + period, i + 2 period, ...

    ids: names of the clients; i then follows from a client's name and not from its number.
    Claim: no amplification; anyone can compute the order. Source: docs/theory-participation.md, Theorem 5.
    Adjacency: any; add-remove only if i does not depend on other clients.

    >>> CyclicCohorts(clients=6, period=3, stream="").sample(None, 1).tolist()
    [1, 4]
    """

    clients: int
    period: int
    stream: str
    ids: NamedClients | None = field(default=None, repr=False)

    @cached_property
    def law(self) -> Cyclic:
        return Cyclic(period=self.period, stream=self.stream)

    @cached_property
    def expected(self) -> float:
        return self.clients / self.period

    def sample(self, randomness: Draws, number: int) -> Ints:
        if self.ids is not None:
            return np.flatnonzero(self.ids.lanes(self.period) == number % self.period)
        return np.arange(number % self.period, self.clients, self.period)


@dataclass(frozen=True, kw_only=True)
class ShuffledCohorts(_CohortsOfSize):
    """Shuffled epochs: batches of exactly `cohort` of a random order of all clients, drawn anew for each epoch.

    Claim: cohorts have the distribution of `accounting.mechanisms.Shuffled`. Adjacency: zero-out or replace-one.

    >>> ShuffledCohorts(clients=600, cohort=256, stream="").law.period
    2
    """

    stream: str

    @cached_property
    def law(self) -> Shuffled:
        return Shuffled(cohort=self.cohort, clients=self.clients, stream=self.stream)

    def sample(self, randomness: Draws, number: int) -> Ints:
        epoch, place = divmod(number, self.law.period)
        drawn = [values for _, values in uniforms_by_id(self.clients, randomness, "participation.order", epoch)]
        order = np.argsort(np.concatenate(drawn), kind="stable")
        return np.sort(order[place * self.cohort : (place + 1) * self.cohort])


def ids_of_turns(who: Sampler) -> NamedClients | None:
    """Return the named ids that decide lanes or turns; None if numbers decide them, or no id does."""
    found: NamedClients | None = getattr(who, "ids", None)
    return found


def _uniform_integers(uniforms: Floats, below: int) -> Ints:
    """Return uniform whole numbers from 0 to below - 1."""
    return np.minimum((uniforms * below).astype(np.int64), below - 1)


def _geometric(uniforms: Floats, coin: float) -> Floats:
    """Return the number of failures before the first success of Bernoulli trials, `coin` their probability."""
    if coin >= 1:
        return np.zeros(len(uniforms))
    return np.asarray(np.floor(np.log1p(-uniforms) / np.log1p(-coin)))
