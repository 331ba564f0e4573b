"""Samplers as plans state them, and the cohorts of a population that they give."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from accounting import require
from accounting.arrays import Ints
from accounting.cohorts import Draws, NamedClients
from accounting.errors import InvalidParameter
from accounting.mechanisms.samplings.sampling import Sampling
from accounting.options import option

SAMPLING_CLASSES: dict[str, type[Any]] = {}
"""Class of each sampling of clients, by name."""


class Sampler(Protocol):
    """Sampler of a round's cohort; `expected` is the public cohort size that sums are divided by."""

    @property
    def clients(self) -> int: ...

    @property
    def law(self) -> Sampling: ...

    @property
    def expected(self) -> float: ...

    @property
    def ids(self) -> NamedClients | None:
        """Names of the clients, if they decide public lanes or turns; None if numbers decide them, or no id does."""

    def sample(self, randomness: Draws, number: int) -> Ints:
        """Return sorted client ids without repeats; empty cohorts are possible under Poisson sampling."""


@dataclass(frozen=True, kw_only=True)
class Cohorts:
    """Cohorts of the clients 0 .. clients - 1, drawn by the distribution that is charged.

    Claim: cohorts have the charged distribution, whose object draws them itself.
    Source: that of the distribution.
    Adjacency: that of the distribution.
    Errors: InvalidParameter for a distribution of another number of clients.

    >>> from accounting.budget import Poisson
    >>> Poisson(cohort=15).cohorts(600).expected
    15.0
    """

    law: Sampling
    clients: int
    expected: float
    ids: NamedClients | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        charged = getattr(self.law, "clients", self.clients)
        if charged != self.clients:
            raise InvalidParameter(f"{self.law!r} for {self.clients} clients: its account is of {charged} clients.")

    def sample(self, randomness: Draws, number: int) -> Ints:
        return self.law.sample(self.clients, randomness, number, self.ids)


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
