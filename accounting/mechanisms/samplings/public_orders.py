"""Public orders: clients in turn (cyclic), and shuffled epochs, which are accounted as if their order were public."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from accounting import require
from accounting.arrays import Ints
from accounting.cohorts import Draws, NamedClients, uniforms_by_id
from accounting.errors import InvalidParameter
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.planned import CohortSampling
from accounting.mechanisms.samplings.sampling import Schedule


@dataclass(frozen=True, kw_only=True)
class CyclicSchedule(Schedule):
    """Each client takes part in every `period`-th round, in a public order.

    Claim: T rounds compose as ceil(T / period) unsampled releases, without amplification.
    Source: docs/theory-participation.md, Theorem 5 with as many lanes as bins.
    Adjacency: any.
    Errors: InvalidParameter for a period below 1.

    >>> from accounting.mechanisms import Cyclic
    >>> Cyclic(period=60).most_participations(180)
    3
    """

    period: int
    stream: str = ""
    name: ClassVar[str] = "cyclic"
    secret: ClassVar[bool] = False
    turns_follow_ids: ClassVar[bool] = True
    public_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", require.count(period=self.period))
        require.stream_name(self.stream)

    @property
    def rounds_apart(self) -> int:
        """Number of rounds from one participation of a client to the next."""
        return self.period

    turns = rounds_apart
    separation = rounds_apart  # its name up to version 0.3

    @property
    def probability(self) -> float:
        """Share of the rounds that one client takes part in."""
        return 1 / self.period

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        turns = "cyclic: holds if a client's turn depends only on its id, not on other clients"
        return (turns,) if adjacency is Adjacency.ADD_REMOVE else ()

    def sample(self, clients: int, randomness: Draws, number: int, ids: NamedClients | None = None) -> Ints:
        if ids is None:
            return np.arange(number % self.period, clients, self.period)
        return np.flatnonzero(self.public_turns(clients, ids) == number % self.period)


@dataclass(frozen=True, kw_only=True)
class Cyclic(CohortSampling):
    """Public order: each client takes part in every (clients / cohort)-th round.

    Claim: no amplification; T rounds compose as ceil(T cohort / clients) releases. Source:
    docs/theory-participation.md, Theorem 5 with as many lanes as bins.
    Adjacency: any.
    Errors: InvalidParameter for a cohort below 1.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.Cyclic(cohort=10)).sampler.most_participations(180)
    3
    """

    name: ClassVar[str] = "cyclic"
    words: ClassVar[str] = "public order: clients take part in turn"
    has_turns: ClassVar[bool] = True

    def expected(self, clients: int) -> float:
        return clients / self.period(clients)

    def description(self, clients: int) -> str:
        return f"a public order, each of {clients} clients in every {self.period(clients)}th round"

    def law(self, clients: int, stream: str) -> CyclicSchedule:
        return CyclicSchedule(period=self.period(clients), stream=stream)


@dataclass(frozen=True, kw_only=True)
class ShuffledSchedule(Schedule):
    """Epochs of a uniformly random order of all clients, drawn anew for each epoch and cut into batches of exactly
    `cohort`; the last, smaller batch is dropped.

    Claim: T rounds compose as ceil(T / period) unsampled releases: given the orders, a client takes part at most once
    an epoch, and the orders do not depend on its data. No smaller bound is known for usual deltas.
    Source: Chua et al. 2024, arXiv 2411.04205 (lower bound: `compose.lower_bound`).
    Adjacency: zero-out or replace-one. One client added would move others to other batches.
    Errors: InvalidParameter for a cohort larger than the population.

    >>> from accounting.mechanisms import Shuffled
    >>> Shuffled(cohort=256, clients=60_000).most_participations(2340)
    10
    """

    cohort: int
    clients: int
    stream: str = ""
    name: ClassVar[str] = "shuffled"
    secret: ClassVar[bool] = False
    attack_is_weaker: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require.replace_fields(self, require.count, "cohort", "clients")
        require.stream_name(self.stream)
        if self.cohort > self.clients:
            raise InvalidParameter(f"cohort={self.cohort} of clients={self.clients}: must be at most all clients.")

    @property
    def period(self) -> int:
        """Number of rounds of an epoch, after which participation is drawn anew."""
        return self.clients // self.cohort

    epoch = period

    @property
    def probability(self) -> float:
        """Probability that one client takes part in a given round."""
        return self.cohort / self.clients

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        return (
            "shuffled: a client takes part once in an epoch of a random order, which has no known amplification at "
            "this delta; the epsilon of Poisson sampling does not hold (lower bound: arXiv 2411.04205)",
        )

    def sample(self, clients: int, randomness: Draws, number: int, ids: NamedClients | None = None) -> Ints:
        epoch, place = divmod(number, self.period)
        drawn = [values for _, values in uniforms_by_id(clients, randomness, "participation.order", epoch)]
        order = np.argsort(np.concatenate(drawn), kind="stable")
        return np.sort(order[place * self.cohort : (place + 1) * self.cohort])


@dataclass(frozen=True, kw_only=True)
class Shuffled(CohortSampling):
    """Shuffled epochs: a random order of all clients, cut into batches of exactly `cohort`; the last, smaller batch is
    dropped.

    Claim: accounted as `mechanisms.Shuffled`, without amplification. Only for planning.
    Source: Chua et al. 2024, arXiv 2411.04205.
    Adjacency: zero-out (the default) or replace-one.
    Errors: InvalidParameter for a cohort below 1.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.Shuffled(cohort=256)).sampler.most_participations(10)
    5
    """

    name: ClassVar[str] = "shuffled"
    words: ClassVar[str] = "shuffled epochs: once in every epoch, in batches of exactly this size"
    has_turns: ClassVar[bool] = True
    run_instead: ClassVar[str | None] = "balls-and-bins"

    def period(self, clients: int) -> int:
        """Return the number of rounds of an epoch, without the last, smaller batch."""
        return clients // self.cohort

    def description(self, clients: int) -> str:
        batches = f"{self.period(clients)} batches of exactly {self.cohort}"
        return f"shuffled epochs, each of {clients} clients once in {batches}, the last one dropped"

    def law(self, clients: int, stream: str) -> ShuffledSchedule:
        return ShuffledSchedule(cohort=self.cohort, clients=clients, stream=stream)
