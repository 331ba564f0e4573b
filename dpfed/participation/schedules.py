"""Cohorts of schedules over many rounds; each client's rounds are drawn from a counter stream of that client.

The cohort of a round is recomputed from the streams, block by block of clients. No table of all clients is kept or
saved, a run resumes at any round, and every process and engine draws equal cohorts. Memory: one block.
Whole numbers below n come from 53-bit uniforms: their distribution is exact to n 2^-53 in total variation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from accounting.mechanisms import Allocation, BallsAndBins, Cyclic, MinSeparation
from dpfed.data.client_ids import ClientIds
from dpfed.participation import blocks
from dpfed.randomness import Randomness


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
    ids: ClientIds | None = field(default=None, repr=False)

    @cached_property
    def law(self) -> BallsAndBins:
        return BallsAndBins(bins=self.bins, lanes=self.lanes, secret_lanes=self.secret_lanes, stream=self.stream)

    @cached_property
    def expected(self) -> float:
        return self.clients / self.bins

    @cached_property
    def public_lanes(self) -> NDArray[np.int64]:
        """Public lane of each client."""
        return np.arange(self.clients) % self.lanes if self.ids is None else self.ids.lanes(self.lanes)

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
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
            lanes = (block * blocks.BLOCK + np.arange(count)) % self.lanes
            if self.secret_lanes:
                lanes = _uniform_integers(randomness.uniform(count, "participation.lane", block), self.lanes)
            return np.asarray((drawn == turn) & (lanes == lane))

        return blocks.clients_in_blocks(self.clients, takes_part)


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

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
        def takes_part(count: int, block: int) -> NDArray[np.bool_]:
            chosen = np.full((self.participations, count), -1, dtype=np.int64)
            for place, last in enumerate(range(self.rounds - self.participations, self.rounds)):
                drawn = _uniform_integers(randomness.uniform(count, "participation.allocation", place, block), last + 1)
                chosen[place] = np.where((chosen[:place] == drawn).any(axis=0), last, drawn)
            return np.asarray((chosen == number).any(axis=0))

        return blocks.clients_in_blocks(self.clients, takes_part)


@dataclass(frozen=True, kw_only=True)
class MinSeparationCohorts:
    """Minimum separation: after a participation a client skips `separation` - 1 rounds, then each round is random.

    Cohorts are stationary.
    Claim: they have the distribution of `accounting.mechanisms.MinSeparation`.
    Source: docs/theory-participation.md, Theorem 3.
    Adjacency: zero-out or add-remove.

    >>> MinSeparationCohorts(clients=600, cohort=10, separation=20, stream="").expected
    10.0
    """

    clients: int
    cohort: int
    separation: int
    stream: str

    @cached_property
    def law(self) -> MinSeparation:
        return MinSeparation(separation=self.separation, probability=self.cohort / self.clients, stream=self.stream)

    @cached_property
    def expected(self) -> float:
        return float(self.cohort)

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
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

        return blocks.clients_in_blocks(self.clients, takes_part)


@dataclass(frozen=True, kw_only=True)
class CyclicCohorts:
    """Public order: client i takes part in the rounds i, i + period, i + 2 period, ...

    ids: names of the clients; i then follows from a client's name and not from its number.
    Claim: no amplification; anyone can compute the order. Source: docs/theory-participation.md, Theorem 5.
    Adjacency: any; add-remove only if i does not depend on other clients.

    >>> from dpfed.randomness import Secure
    >>> CyclicCohorts(clients=6, period=3, stream="").sample(Secure(), 1).tolist()
    [1, 4]
    """

    clients: int
    period: int
    stream: str
    ids: ClientIds | None = field(default=None, repr=False)

    @cached_property
    def law(self) -> Cyclic:
        return Cyclic(period=self.period, stream=self.stream)

    @cached_property
    def expected(self) -> float:
        return self.clients / self.period

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
        if self.ids is not None:
            return np.flatnonzero(self.ids.lanes(self.period) == number % self.period)
        return np.arange(number % self.period, self.clients, self.period)


TurnSchedule = BallsAndBinsCohorts | CyclicCohorts
"""Schedules in which ids of clients may decide their turns."""


def _uniform_integers(uniforms: NDArray[np.float64], below: int) -> NDArray[np.int64]:
    """Return uniform whole numbers from 0 to below - 1."""
    return np.minimum((uniforms * below).astype(np.int64), below - 1)


def _geometric(uniforms: NDArray[np.float64], coin: float) -> NDArray[np.float64]:
    """Return the number of failures before the first success of Bernoulli trials, `coin` their probability."""
    if coin >= 1:
        return np.zeros(len(uniforms))
    return np.asarray(np.floor(np.log1p(-uniforms) / np.log1p(-coin)))
