"""Base classes of samplers. A sampler is one file with two classes.

- Its distribution, a `Sampling` or `Schedule`: the record of a ledger line, with the answers that accounts read, and
  the draws.
- A `PlannedSampling`: name, options, refusals, and the distribution for a number of clients.

docs/participation.md compares the privacy of the samplers.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from accounting import require
from accounting.arrays import Ints
from accounting.cohorts import Cohorts, Draws, NamedClients
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency
from accounting.options import option

if TYPE_CHECKING:
    from accounting.mechanisms.samplings.correlated import CorrelatedRounds

SAMPLING_CLASSES: dict[str, type[Any]] = {}
"""Class of each sampling of clients, by name."""


class Sampling:
    """Base class of distributions of cohorts: draws, and answers that accounts read, by default for rounds that are
    drawn independently.

    A class with a `name` is registered under it in `kinds`, and is read from ledger lines of this name.

    >>> from accounting.mechanisms import Sampling
    >>> Sampling.kinds["poisson"](probability=0.1).independent
    True
    """

    kinds: ClassVar[dict[str, type["Sampling"]]] = {}
    name: ClassVar[str] = ""
    displaces: ClassVar[bool] = False
    """True if another client may take the place of the differing one, so that the sum moves by 2 clips."""
    independent: ClassVar[bool] = False
    """True if each client is drawn independently of other clients and rounds, so that cohort sizes vary."""
    fixed_size: ClassVar[bool] = False
    """True if each cohort is a uniform subset of a fixed size, drawn without replacement."""
    takes_all: ClassVar[bool] = False
    """True if every client takes part in every round."""
    is_schedule: ClassVar[bool] = False
    """True if participation depends on earlier rounds, so that all rounds have one account."""
    begins_as_poisson: ClassVar[bool] = False
    """True if each client takes part in the first round independently and secretly, with `probability`."""
    public_order: ClassVar[bool] = False
    """True if clients take part in turn, in an order that is public."""
    attack_is_weaker: ClassVar[bool] = False
    """True if no attack is known that reaches the account, which assumes a public order."""

    if TYPE_CHECKING:

        @property
        def probability(self) -> float:
            """Probability that one client takes part in a given round."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            Sampling.kinds[cls.name] = cls

    def sample(self, clients: int, randomness: Draws, number: int, ids: NamedClients | None = None) -> Ints:
        """Return the sorted ids, of 0 .. clients - 1, of the clients of round `number`, counted from 0.

        ids: names of the clients, from which public lanes and turns follow; None: they follow from 0 .. clients - 1.
        Errors: UnsupportedMechanism for a distribution that has an account only.
        """
        raise UnsupportedMechanism(f"sampling={self.name!r}: has an account, and no draws.")

    def base_adjacency(self, adjacency: Adjacency) -> Adjacency:
        """Return the adjacency of the release that this sampling amplifies: replace-one under fixed size, which covers
        zero-out, else the given one.
        """
        return Adjacency.REPLACE_ONE if self.fixed_size else adjacency

    @property
    def cohort_cap(self) -> int | None:
        """Cap of capped Poisson sampling, else None."""
        return None

    @property
    def rounds_apart(self) -> int:
        """Least number of rounds from one participation of a client to the next; 0 if none is stated."""
        return 0

    @property
    def turns_follow_ids(self) -> bool:
        """True if ids of clients determine a public order, so that an added client must not change ids of others."""
        return False

    @property
    def turns(self) -> int:
        """Number of public turns: lanes, or rounds of a public order; 1 without turns."""
        return 1

    def public_turns(self, clients: int, ids: NamedClients | None = None) -> Ints:
        """Return the public turn of each client: its lane, or its place in a public order. ids: as for `sample`."""
        return np.arange(clients) % self.turns if ids is None else ids.lanes(self.turns)

    @property
    def secret_in_lane(self) -> bool:
        """True if a client's round is secret from an attacker who knows its lane, which deterministic accounts
        assume.
        """
        return True

    @property
    def epoch(self) -> int | None:
        """Rounds after which participation is drawn anew; None: never."""
        return None

    def norm(self, count: int) -> float:
        """Return the shift by one participation relative to the fresh noise of `count` rounds, in clip norms."""
        return 1.0

    def participation_probability(self, adjacency: Adjacency) -> float:
        """Return the probability that one client takes part in a round."""
        return self.probability

    def binds(self, adjacency: Adjacency) -> bool:
        """Return True if a cap can be exceeded in one of the neighbours; False without a cap."""
        return False

    def full_rounds(self, adjacency: Adjacency) -> tuple[tuple[float, float], ...]:
        """Return (zeta, p) of rounds that are full under a cap (`CappedPoissonSampling`); none without a cap."""
        return ()

    @property
    def first_round_probability(self) -> float | None:
        """Probability that a client takes part in the first round, secretly; None if it is public, or if other
        clients depend on it. Public lanes: that of a client of the first lane.
        """
        return self.probability if self.begins_as_poisson else None

    def sets_of_first_rounds(self, count: int) -> tuple[float, ...] | None:
        """Return, for j = 0 to `count`, the probability that a client takes part, secretly, in exactly j given ones of
        the first `count` rounds; None if it is not known or differs between sets of j rounds.
        """
        return None

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        """Return notes on the conditions under which the account holds."""
        return ()

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of a ledger line."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]  # a dataclass


class Schedule(Sampling):
    """Base class of schedules over many rounds, in which participation depends on earlier rounds.

    In a composition `count` releases of equal schedules are the first `count` rounds of that schedule, each exactly
    once. Independently drawn schedules have different `stream` names. This includes two runs on the same clients, and
    an interrupted run that draws again.

    Clients must be drawn independently of each other. If the differing client changes the participation of other
    clients (as with groups of exactly equal size), no account of these schedules holds.

    >>> from accounting.mechanisms import Schedule
    >>> issubclass(Schedule.kinds["cyclic"], Schedule)
    True
    """

    lanes: int = 1
    is_schedule: ClassVar[bool] = True

    if TYPE_CHECKING:

        @property
        def stream(self) -> str:
            """Name of the random stream of this schedule."""

    @property
    def secret(self) -> bool:
        """True if a client's rounds are secret."""
        return True

    @property
    def secret_in_lane(self) -> bool:
        return self.secret

    @property
    def lane_schedule(self) -> "Schedule":
        """Schedule of the rounds of one lane, with independent noise."""
        return self

    @property
    def ends_after(self) -> int | None:
        """Length of the schedule in rounds; None if it is unbounded."""
        return None

    @property
    def matrix(self) -> "CorrelatedRounds | None":
        """Matrix of the noise over rounds; None for independent noise."""
        return None

    def most_participations(self, count: int) -> int:
        """Return the largest number of participations of one client in the first `count` rounds: one in each epoch, or
        in each `rounds_apart` rounds.
        """
        return -(-count // (self.epoch or self.rounds_apart or 1))

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        if not self.secret:
            return ()
        return (f"{self.name}: holds if clients are drawn independently of each other, and participation stays secret",)


def turns_follow_ids(schedule: object) -> bool:
    """Return True if the clients' ids determine a public order of participation, in lanes or client by client.

    Then adding a client must not change the id of another client, so an id must not be a position in a list.

    >>> from accounting.mechanisms import Cyclic, turns_follow_ids
    >>> turns_follow_ids(Cyclic(period=3))
    True
    """
    return isinstance(schedule, Sampling) and schedule.turns_follow_ids


@runtime_checkable
class PlannedSampling(Protocol):
    """Base class of samplings of a plan. A subclass that samples clients and has `words` is registered by its name."""

    name: ClassVar[str]
    words: ClassVar[str]
    """Short description for forms."""
    run_instead: ClassVar[str | None] = None
    """Sampler that runs in place of this one, which has an account only; None if this one runs."""
    unit: ClassVar[Literal["client", "record"]] = "client"
    is_schedule: ClassVar[bool] = False
    takes_cap: ClassVar[bool] = False
    cohort_cap: int | None = None
    has_turns: ClassVar[bool] = False
    table_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of [federation] for this sampling alone, in a table of its own."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "words" in vars(cls) and cls.unit == "client":
            SAMPLING_CLASSES[cls.name] = cls

    def __post_init__(self) -> None:
        """Validate the fields, which are counts or switches."""
        for each in fields(self):  # type: ignore[arg-type]  # every sampling is a dataclass
            if each.type is not bool:
                check = require.count if each.type is int else require.or_none(require.count)
                require.replace_fields(self, check, each.name)

    @property
    def steps(self) -> int:
        """Number of releases in a round."""
        return 1

    def with_cap(self, cohort_cap: int | None) -> "PlannedSampling":
        """Return the sampling with this cap; a sampling other than Poisson is returned unchanged."""
        return self

    def cohort_size(self, clients: int) -> int:
        """Return the number of clients in a round, expected or exact."""
        return clients

    def expected(self, clients: int) -> float:
        """Return the expected number of clients in a round, by which sums are divided."""
        return float(self.cohort_size(clients))

    def units(self, clients: int) -> int:
        """Return the number of all clients, or of all records."""
        return clients

    def period(self, clients: int) -> int:
        """Return the average number of rounds from one participation of a client to the next."""
        return 1

    def most_rounds(self, clients: int) -> int | None:
        """Return the length of the schedule in rounds; None if it is unbounded."""
        return None

    def in_turns(self, *, banded: bool) -> bool:
        """Return True if an added client may change the turns of others. banded: the noise is banded.

        Errors: InvalidParameter for secret lanes without lanes.
        """
        return self.has_turns

    def details(self) -> dict[str, object]:
        """Return additional keys for the JSON of a budget."""
        return {}

    def description(self, clients: int) -> str:
        """Return the sampling of these clients as text."""
        return f"{self.name} sampling, {self.cohort_size(clients)} of {clients} clients"

    def law(self, clients: int, stream: str) -> Sampling:
        """Return the distribution of a round's cohort. stream: name of a schedule's random stream."""
        ...

    def cohorts(self, clients: int, stream: str = "", ids: NamedClients | None = None) -> Cohorts:
        """Return the cohorts of these clients, drawn by that distribution. ids: names, if they decide turns."""
        law = self.law(clients, stream)
        named = ids if law.turns_follow_ids else None
        return Cohorts(law=law, clients=clients, expected=self.expected(clients), ids=named)


@dataclass(frozen=True, kw_only=True)
class CohortSampling(PlannedSampling):
    """Base class of samplings with a given cohort size, exact or expected."""

    cohort: int = option("Clients a round: the expected number under poisson, the exact number under fixed.")
    is_schedule: ClassVar[bool] = True

    def cohort_size(self, clients: int) -> int:
        return self.cohort

    def period(self, clients: int) -> int:
        """Return clients / cohort, rounded."""
        return max(round(clients / self.cohort), 1)


def without_runs_text(name: str) -> str:
    """Return the sentence for a sampling that has an account only, else an empty text."""
    swap = SAMPLING_CLASSES[name].run_instead if name in SAMPLING_CLASSES else None
    return f" {name} has an account (`dpfed budget`) and no runs: use {swap}." if swap else ""


def sampling_of_keys(name: str, keys: Mapping[str, object]) -> PlannedSampling:
    """Return the sampling of this name; keys that its class does not have, or that are None, are ignored."""
    chosen: Any = SAMPLING_CLASSES[name]
    given = {each.name: keys[each.name] for each in fields(chosen) if keys.get(each.name) is not None}
    made: PlannedSampling = chosen(**given)
    return made
