"""Samplers of the clients of a round. Each sampler holds the accountant's distribution object, so the distribution that
is charged is the distribution that is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accounting.mechanisms import CappedPoissonSampling, FixedSizeSampling, FullParticipation, PoissonSampling, Sampling
from accounting.mechanisms.samplings import cap_of
from dpfed import replayed
from dpfed.config.samples_tables import SeparatedFederation
from dpfed.config.tables import Config
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError
from dpfed.participation.blocks import smallest_of_others, uniforms_by_id, uniforms_of_ids
from dpfed.participation.lanes import has_secret_lanes, lanes_of
from dpfed.participation.schedules import AllocationCohorts, BallsAndBinsCohorts, CyclicCohorts, MinSeparationCohorts
from dpfed.randomness import Randomness, uniform_threshold


class Sampler(Protocol):
    """Sampler of a round's cohort; `expected` is the public cohort size that sums are divided by."""

    @property
    def clients(self) -> int: ...

    @property
    def law(self) -> Sampling: ...

    @property
    def expected(self) -> float: ...

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
        """Return sorted client ids without repeats; empty cohorts are possible under Poisson sampling."""


@dataclass(frozen=True, kw_only=True)
class PoissonCohorts:
    """Poisson sampling: every client is drawn independently with probability cohort / clients.

    cap: the largest number of clients that take part (`draw_cohort`); the others do not learn that they were drawn
    Claim: cohorts have the distribution of `accounting.PoissonSampling`, with a cap of `CappedPoissonSampling`.
    Source: docs/theory.md, Theorems 3, 4 and 9. Adjacency: any.

    >>> PoissonCohorts(clients=600, cohort=15).law
    PoissonSampling(probability=0.025)
    """

    clients: int
    cohort: int
    cap: int | None = None

    @cached_property
    def law(self) -> PoissonSampling | CappedPoissonSampling:
        q = self.cohort / self.clients
        if self.cap is None:
            return PoissonSampling(probability=q)
        return CappedPoissonSampling(probability=q, cap=self.cap, clients=self.clients)

    @cached_property
    def expected(self) -> float:
        return float(self.cohort)

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
        values, bound = (
            uniforms_by_id(self.clients, randomness, "cohort", number),
            uniform_threshold(self.law.probability),
        )
        return np.concatenate([first + np.flatnonzero(drawn < bound) for first, drawn in values])


@dataclass(frozen=True, kw_only=True)
class FixedSizeCohorts:
    """Fixed-size sampling: exactly `cohort` clients, uniformly without replacement.

    Ids are drawn from a population whose size is equal for all neighbours.
    Claim: cohorts have the distribution of `accounting.FixedSizeSampling`. Source: docs/theory.md, Theorems 1, 2 and 7.
    Adjacency: replace-one or zero-out.

    >>> FixedSizeCohorts(clients=600, cohort=15).law
    FixedSizeSampling(cohort=15, clients=600)
    """

    clients: int
    cohort: int

    @cached_property
    def law(self) -> FixedSizeSampling:
        return FixedSizeSampling(cohort=self.cohort, clients=self.clients)

    @cached_property
    def expected(self) -> float:
        return float(self.cohort)

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
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

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
        return np.arange(self.clients)


def sampler(name: str, *, clients: int, cohort: int, cap: int | None = None) -> Sampler:
    """Return the sampler `poisson` (with or without a cap), `fixed` or `all`; ConfigError for another name or an
    impossible cohort."""
    if not 1 <= cohort <= clients:
        raise ConfigError(f"federation.cohort={cohort}: must be from 1 to federation.clients={clients}.")
    match name:
        case "poisson":
            return PoissonCohorts(clients=clients, cohort=cohort, cap=cap)
        case "fixed":
            return FixedSizeCohorts(clients=clients, cohort=cohort)
        case "all":
            return AllClients(clients=clients)
    raise ConfigError(f"federation.sampling={name!r}: must be poisson, fixed or all.")


def draw_cohort(who: Sampler, randomness: Randomness, number: int) -> NDArray[np.int64]:
    """Return the clients of a round: the sampler's cohort or, under a cap, at most `cap` of its clients."""
    cohort, replay, cap = who.sample(randomness, number), replayed.current_replay(), cap_of(who.law)
    if replay is not None:
        cohort = replay.drawn(cohort, number)
    return cohort if cap is None else cap_cohort(cohort, cap, who.clients, randomness, number)


def cap_cohort(
    cohort: NDArray[np.int64], cap: int, clients: int, randomness: Randomness, number: int
) -> NDArray[np.int64]:
    """Return at most `cap` of the drawn clients: those with the smallest secret values.

    Claim: given the drawn clients, every subset of `cap` of them is equally likely. Removing one client of an overfull
    cohort admits one other client and changes nothing else.
    """
    if len(cohort) <= cap:
        return cohort
    values = uniforms_of_ids(cohort, clients, randomness, "cohort.slots", number)
    return np.sort(cohort[np.argsort(values, kind="stable")[:cap]])


def fill_cohort(
    cohort: NDArray[np.int64], fill: int, clients: int, randomness: Randomness, number: int
) -> NDArray[np.int64]:
    """Return the cohort and, up to `fill` clients in total, the other clients with the smallest secret values.

    Claim: given the cohort, every subset of the others of that size is equally likely. Removing one client of the
    cohort adds one other client and changes nothing else. Ids of canaries, from `clients` on, are kept and not counted.
    """
    missing = fill - int((cohort < clients).sum())
    if missing <= 0:
        return cohort
    others = smallest_of_others(missing, cohort, clients, randomness, "cohort.fill", number)
    return np.sort(np.concatenate([cohort, others]))


def sampler_of(config: Config, ids: ClientIds | None = None) -> Sampler:
    """Return the sampler of every round, or the schedule of all rounds. Raise ConfigError for contradicting numbers.

    ids: client ids that decide turns (`lanes.ids_of_turns`); None if client numbers do. The stream of a schedule is
    named by its seed, so that a ledger distinguishes two runs.
    """
    federation = config.federation
    clients, cohort, stream = federation.clients, federation.cohort, stream_of(config)
    name = federation.sampling
    if name in ("poisson", "fixed", "all"):
        return sampler(name, clients=clients, cohort=cohort, cap=config.cohort_cap)
    if not 1 <= cohort <= clients:
        raise ConfigError(f"federation.cohort={cohort}: must be from 1 to federation.clients={clients}.")
    period = max(round(clients / cohort), 1)
    if name == "balls-and-bins":
        return BallsAndBinsCohorts(
            clients=clients,
            bins=period,
            lanes=lanes_of(config),
            secret_lanes=has_secret_lanes(config),
            stream=stream,
            ids=ids,
        )
    if name == "cyclic":
        return CyclicCohorts(clients=clients, period=period, stream=stream, ids=ids)
    if name == "allocation":
        times = rounds_per_client(clients, cohort, federation.rounds)
        return AllocationCohorts(clients=clients, participations=times, rounds=federation.rounds, stream=stream)
    assert isinstance(federation, SeparatedFederation)
    separation = federation.separation
    if separation * cohort > clients:
        raise ConfigError(
            f"federation.separation={separation} with federation.sampling='min-separation': must be from 1 to clients "
            f"/ cohort = {clients / cohort:g}, the mean number of rounds from one participation to the next."
        )
    return MinSeparationCohorts(clients=clients, cohort=cohort, separation=separation, stream=stream)


def stream_of(config: Config) -> str:
    """Return the name of the random stream for a run's schedule or its correlated noise."""
    return f"seed {config.run.seed}"


def rounds_per_client(clients: int, cohort: int, rounds: int) -> int:
    """Return the number of rounds of each client under 'allocation'. Raise ConfigError if it is not an integer."""
    times = max(round(rounds * cohort / clients), 1)
    due = round(times * clients / cohort)
    if due != rounds:
        raise ConfigError(
            f"federation.rounds={rounds} with federation.sampling='allocation': each client takes part in a whole "
            f"number of rounds. With cohorts of {cohort} of {clients} {times} of them are {due} rounds."
        )
    return times
