"""Which clients take part in a round. The law is the accountant's own object, so what is charged is what is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accounting.mechanisms import FixedSizeSampling, FullParticipation, PoissonSampling, Sampling
from dpfed.errors import ConfigError
from dpfed.participation.blocks import in_blocks
from dpfed.randomness import Randomness


class Sampler(Protocol):
    """Draws the cohort of a round; `expected` is the public cohort size that sums are divided by."""

    @property
    def clients(self) -> int: ...

    @property
    def law(self) -> Sampling: ...

    @property
    def expected(self) -> float: ...

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
        """Sorted client ids, without repeats; may be empty under Poisson sampling."""


@dataclass(frozen=True, kw_only=True)
class PoissonCohorts:
    """Poisson sampling: every client takes part independently with probability cohort / clients."""

    clients: int
    cohort: int

    @cached_property
    def law(self) -> PoissonSampling:
        return PoissonSampling(probability=self.cohort / self.clients)

    @cached_property
    def expected(self) -> float:
        return float(self.cohort)

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
        def drawn(count: int, block: int) -> NDArray[np.bool_]:
            path = (number, block) if block else (number,)
            return randomness.uniform(count, "cohort", *path) < self.law.probability

        return in_blocks(self.clients, drawn)


@dataclass(frozen=True, kw_only=True)
class FixedSizeCohorts:
    """Exactly `cohort` clients, uniformly without replacement."""

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
    """All clients in every round."""

    clients: int

    @cached_property
    def law(self) -> FullParticipation:
        return FullParticipation()

    @cached_property
    def expected(self) -> float:
        return float(self.clients)

    def sample(self, randomness: Randomness, number: int) -> NDArray[np.int64]:
        return np.arange(self.clients)


def sampler(name: str, *, clients: int, cohort: int) -> Sampler:
    """The sampler `poisson`, `fixed` or `all`; ConfigError for another name or an impossible cohort."""
    if not 1 <= cohort <= clients:
        raise ConfigError(f"federation.cohort={cohort}: must be from 1 to federation.clients={clients}.")
    match name:
        case "poisson":
            return PoissonCohorts(clients=clients, cohort=cohort)
        case "fixed":
            return FixedSizeCohorts(clients=clients, cohort=cohort)
        case "all":
            return AllClients(clients=clients)
    raise ConfigError(f"federation.sampling={name!r}: must be poisson, fixed or all.")


def draw_cohort(who: Sampler, randomness: Randomness, slots: int | None, number: int) -> NDArray[np.int64]:
    """The sampler's clients, at most `slots` of them, the others left out by secret lot."""
    cohort = who.sample(randomness, number)
    if slots is not None and len(cohort) > slots:
        return cohort[randomness.subset(slots, len(cohort), "cohort.slots", number)]
    return cohort


def with_others(
    cohort: NDArray[np.int64], fill: int, clients: int, randomness: Randomness, number: int
) -> NDArray[np.int64]:
    """The cohort and as many others, by secret lot, as make `fill` clients of them."""
    drawn = int((cohort < clients).sum())
    if drawn >= fill:
        return cohort
    chosen = randomness.subset(fill - drawn, clients - drawn, "cohort.fill", number)
    passed = np.sort(cohort)[:drawn] - np.arange(drawn)  # for each of the cohort, how many others come before it
    others = chosen + np.searchsorted(passed, chosen, side="right")
    return np.sort(np.concatenate([cohort, others]))
