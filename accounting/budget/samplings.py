"""Samplers, one class each: name, options, refusals, and `cohorts`, the draws with their distribution.

docs/participation.md compares the privacy of these samplings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from accounting import require
from accounting.budget.options import option
from accounting.cohorts import (
    AllClients,
    AllocationCohorts,
    BallsAndBinsCohorts,
    CyclicCohorts,
    FixedSizeCohorts,
    MinSeparationCohorts,
    NamedClients,
    PoissonCohorts,
    Sampler,
    ShuffledCohorts,
)
from accounting.errors import InvalidParameter
from accounting.mechanisms import Adjacency, Composed, Sampling
from accounting.mechanisms.samplings import rarely_exceeded

SAMPLING_CLASSES: dict[str, type[Any]] = {}
"""Class of each sampling of clients, by name."""


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

    def cohort_size(self, clients: int) -> int:
        """Return the number of clients in a round, expected or exact."""
        return clients

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
        return False

    def details(self) -> dict[str, object]:
        """Return additional keys for the JSON of a budget."""
        return {}

    def cohorts(self, clients: int, stream: str, ids: NamedClients | None = None) -> Sampler:
        """Return the draws of the cohorts, with their distribution."""
        ...


@dataclass(frozen=True, kw_only=True)
class _CohortSampling(PlannedSampling):
    """Base class of samplings with a given cohort size, exact or expected."""

    cohort: int = option("Clients a round: the expected number under poisson, the exact number under fixed.")
    is_schedule: ClassVar[bool] = True

    def cohort_size(self, clients: int) -> int:
        return self.cohort

    def period(self, clients: int) -> int:
        """Return clients / cohort, rounded."""
        return max(round(clients / self.cohort), 1)


@dataclass(frozen=True, kw_only=True)
class Poisson(_CohortSampling):
    """Poisson sampling: each client takes part independently, with probability cohort / clients, in every round.

    cohort_cap: if more clients are drawn, `cohort_cap` of them take part, chosen secretly and uniformly. None: no cap,
    or a default cap for mechanisms whose sums hold a fixed number of uploads (`Plan.cohort_cap`).
    Claim: amplified as `PoissonSampling`, with a cap as `CappedPoissonSampling`.
    Source: docs/theory.md, Theorems 3, 4, 9.
    Adjacency: any.
    Errors: InvalidParameter for a count below 1.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.Poisson(cohort=15)).sampler
    PoissonSampling(probability=0.025)
    """

    cohort_cap: int | None = option(
        "poisson: largest number of clients in a round; if more are drawn, a random part is left out. With noise "
        "shares, secure sums and Bernoulli uploads it is the fixed number of uploads, and has a default. --slots is "
        "its old name.",
        None,
        alias="slots",
    )
    name: ClassVar[str] = "poisson"
    words: ClassVar[str] = "Poisson: every client with equal probability, independently"
    is_schedule: ClassVar[bool] = False
    takes_cap: ClassVar[bool] = True

    def cohorts(self, clients: int, stream: str, ids: NamedClients | None = None) -> PoissonCohorts:
        return PoissonCohorts(clients=clients, cohort=self.cohort, cap=self.cohort_cap)


@dataclass(frozen=True, kw_only=True)
class FixedSize(_CohortSampling):
    """Fixed-size sampling: exactly `cohort` clients are drawn without replacement in every round.

    Claim: amplified as `FixedSizeSampling`.
    Source: docs/theory.md, Theorems 1, 2 and 7.
    Adjacency: replace-one (the default) or zero-out.
    Errors: InvalidParameter for a cohort below 1.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.FixedSize(cohort=15)).sampler
    FixedSizeSampling(cohort=15, clients=600)
    """

    name: ClassVar[str] = "fixed"
    words: ClassVar[str] = "fixed size: exactly this number of clients, without replacement"
    is_schedule: ClassVar[bool] = False

    def cohorts(self, clients: int, stream: str, ids: NamedClients | None = None) -> FixedSizeCohorts:
        return FixedSizeCohorts(clients=clients, cohort=self.cohort)


@dataclass(frozen=True, kw_only=True)
class Everyone(PlannedSampling):
    """Full participation: all clients in every round.

    Claim: no amplification.
    Adjacency: any.
    Errors: none, because it has no options.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.Everyone()).cohort
    600
    """

    name: ClassVar[str] = "all"
    words: ClassVar[str] = "all clients in every round"

    def cohorts(self, clients: int, stream: str, ids: NamedClients | None = None) -> AllClients:
        return AllClients(clients=clients)


_PARTICIPATIONS = (
    "balls-and-bins, allocation: number of rounds in which a client takes part; the cohort then follows from the "
    "rounds. banded, blt: largest number of such rounds."
)
_SEPARATION = "min-separation, banded, blt: after a participation a client skips the next separation - 1 rounds."


@dataclass(frozen=True, kw_only=True)
class BallsAndBins(_CohortSampling):
    """Balls-and-bins: each client takes part in one secret, independently drawn round of every epoch of clients /
    cohort rounds.

    participations: largest number of epochs.
    Claim: accounted as `mechanisms.BallsAndBins`.
    Source: Chua et al. 2025; docs/theory-participation.md, Theorems 1 and 5.
    Adjacency: zero-out or add-remove.
    Errors: InvalidParameter for a count below 1.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.BallsAndBins(cohort=10)).sampler.bins
    60
    """

    participations: int | None = option(_PARTICIPATIONS, None)
    lanes: int | None = option(
        "balls-and-bins: number of public lanes (client id modulo lanes), which take turns; for noise with equally "
        "many bands. Default: 1; with --noise banded the number of lanes of smallest error.",
        None,
    )
    secret_lanes: bool = option(
        "balls-and-bins in lanes: a client's lane is drawn once for the run, and secret. The deterministic epsilon "
        "is that of public lanes; --certificate sampled has a smaller epsilon.",
        False,
    )
    name: ClassVar[str] = "balls-and-bins"
    words: ClassVar[str] = "balls and bins: once in every epoch, in a secret round"
    table_keys: ClassVar[tuple[str, ...]] = ("lanes", "lane_secrecy")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.secret_lanes and self.lanes == 1:
            raise InvalidParameter(
                "secret_lanes with lanes=1: there is only one lane, so no lane is drawn. Use more lanes."
            )

    def most_rounds(self, clients: int) -> int | None:
        """Return the length of the schedule in rounds; None if it is unbounded."""
        return None if self.participations is None else self.participations * self.period(clients)

    def in_turns(self, *, banded: bool) -> bool:
        in_lanes = banded or (self.lanes or 1) > 1
        if self.secret_lanes and not in_lanes:
            raise InvalidParameter(
                "secret_lanes without lanes: without lanes no lane is drawn. Give lanes, or noise='banded'."
            )
        return in_lanes and not self.secret_lanes  # a drawn lane does not depend on the other clients

    def cohorts(self, clients: int, stream: str, ids: NamedClients | None = None) -> BallsAndBinsCohorts:
        lanes, secret = self.lanes or 1, self.secret_lanes and self.lanes is not None
        bins = self.period(clients)
        return BallsAndBinsCohorts(clients=clients, bins=bins, lanes=lanes, secret_lanes=secret, stream=stream, ids=ids)


@dataclass(frozen=True, kw_only=True)
class Allocation(_CohortSampling):
    """Random allocation: each client takes part in `participations` secret rounds. The schedule has participations
    clients / cohort rounds.

    Claim: accounted as `mechanisms.Allocation`.
    Source: Feldman, Shenfeld 2025; docs/theory-participation.md, Theorems 2 and 6.
    Adjacency: zero-out or add-remove.
    Errors: InvalidParameter for a count below 1.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.Allocation(cohort=10, participations=3)).sampler.rounds
    180
    """

    participations: int = option(_PARTICIPATIONS)
    name: ClassVar[str] = "allocation"
    words: ClassVar[str] = "allocation: in a fixed number of secret rounds"

    def most_rounds(self, clients: int) -> int:
        """Return the length of the schedule in rounds."""
        return round(self.participations * clients / self.cohort)

    def cohorts(self, clients: int, stream: str, ids: NamedClients | None = None) -> AllocationCohorts:
        rounds = self.most_rounds(clients)
        return AllocationCohorts(clients=clients, participations=self.participations, rounds=rounds, stream=stream)


@dataclass(frozen=True, kw_only=True)
class MinSeparation(_CohortSampling):
    """Schedule with rests: a client skips separation - 1 rounds after a participation and joins each
    later round at random.

    Claim: accounted as `mechanisms.MinSeparation`.
    Source: docs/theory-participation.md, Theorem 3.
    Adjacency: zero-out or add-remove.
    Errors: InvalidParameter for a count below 1, or a separation above clients / cohort.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling=budget.MinSeparation(cohort=10, separation=20)).period
    60
    """

    separation: int = option(_SEPARATION)
    name: ClassVar[str] = "min-separation"
    words: ClassVar[str] = "min-separation: at random, then excluded for some rounds"
    table_keys: ClassVar[tuple[str, ...]] = ("separation",)

    def cohorts(self, clients: int, stream: str, ids: NamedClients | None = None) -> MinSeparationCohorts:
        return MinSeparationCohorts(clients=clients, cohort=self.cohort, separation=self.separation, stream=stream)


@dataclass(frozen=True, kw_only=True)
class Cyclic(_CohortSampling):
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

    def in_turns(self, *, banded: bool) -> bool:
        return True

    def cohorts(self, clients: int, stream: str, ids: NamedClients | None = None) -> CyclicCohorts:
        return CyclicCohorts(clients=clients, period=self.period(clients), stream=stream, ids=ids)


@dataclass(frozen=True, kw_only=True)
class Shuffled(_CohortSampling):
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
    run_instead: ClassVar[str | None] = "balls-and-bins"

    def period(self, clients: int) -> int:
        """Return the number of rounds of an epoch, without the last, smaller batch."""
        return clients // self.cohort

    def in_turns(self, *, banded: bool) -> bool:
        return True

    def cohorts(self, clients: int, stream: str, ids: NamedClients | None = None) -> ShuffledCohorts:
        return ShuffledCohorts(clients=clients, cohort=self.cohort, stream=stream)


@dataclass(frozen=True, kw_only=True)
class RecordBatches(PlannedSampling):
    """Poisson-sampled batches of one client's records, for record-level privacy. In each of `local_steps` steps of a
    round every record is drawn independently with probability batch_size / records.

    The number of rounds counts only those in which the client takes part. Numbers of records are public; the sampling
    probability is largest for the client with the fewest records. local_steps defaults to one pass, records /
    batch_size, rounded up.
    Adjacency: add-remove of one record.
    Errors: InvalidParameter for numbers below 1.

    >>> from accounting import Plan
    >>> plan = Plan(clients=10, unit="record", records=143, batch_size=32)
    >>> plan.sampling.steps
    5
    """

    records: int = option("record: number of records of a client; if clients differ, the smallest number.")
    batch_size: int = option("record: expected number of records in a batch.")
    local_steps: int | None = option("record: number of batches in a round. Default: one pass over the records.", None)
    name: ClassVar[str] = "poisson"
    words: ClassVar[str] = "Poisson: every record of a client with equal probability, independently"
    unit: ClassVar[Literal["client", "record"]] = "record"

    @property
    def steps(self) -> int:
        """Number of batches in a round."""
        return -(-self.records // min(self.batch_size, self.records)) if self.local_steps is None else self.local_steps

    def units(self, clients: int) -> int:
        return clients * self.records

    def details(self) -> dict[str, object]:
        return {"records": self.records, "batch_size": self.batch_size, "local_steps": self.steps}

    def cohorts(self, clients: int, stream: str, ids: NamedClients | None = None) -> Sampler:
        return PoissonCohorts(clients=self.records, cohort=min(self.batch_size, self.records))


@dataclass(frozen=True, kw_only=True)
class ShuffledRecords(RecordBatches):
    """Shuffled batches of records: a round is one pass over the records in a random order, in batches of exactly
    batch_size; the last, smaller batch is dropped.

    Adjacency: zero-out (the default) or replace-one of one record.
    Errors: InvalidParameter for numbers below 1, a batch larger than the records, or local_steps.

    >>> from accounting import Plan
    >>> Plan(clients=1, unit="record", records=60_000, batch_size=256, sampling="shuffled").sampling.steps
    234
    """

    name: ClassVar[str] = "shuffled"
    words: ClassVar[str] = "shuffled: every record once in a pass, in batches of exactly this size"
    run_instead: ClassVar[str | None] = "balls-and-bins"
    is_schedule: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_steps is not None:
            raise InvalidParameter(
                f"local_steps={self.local_steps} with shuffled batches: a round is one pass over the records. Remove "
                "local_steps."
            )

    @property
    def steps(self) -> int:
        """Number of batches in a round."""
        return self.records // self.batch_size

    def in_turns(self, *, banded: bool) -> bool:
        return True

    def cohorts(self, clients: int, stream: str, ids: NamedClients | None = None) -> ShuffledCohorts:
        return ShuffledCohorts(clients=self.records, cohort=self.batch_size, stream=stream)


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


class Setting(Protocol):
    """Properties of a plan that its mechanism depends on: population, sampling, neighbours and delta."""

    @property
    def clients(self) -> int: ...

    @property
    def sampling(self) -> PlannedSampling: ...

    @property
    def cohort(self) -> int:
        """Number of clients in a round, expected or exact."""
        ...

    @property
    def sampler(self) -> Sampling: ...

    @property
    def unit(self) -> Literal["client", "record"]:
        """Unit of privacy."""
        ...

    @property
    def cohort_cap(self) -> int | None:
        """Largest number of clients in a round under Poisson sampling; None without a cap."""
        ...

    @property
    def period(self) -> int: ...

    @property
    def stream(self) -> str: ...

    @property
    def adjacency(self) -> Adjacency: ...

    @property
    def delta(self) -> float: ...

    @property
    def before(self) -> Composed | None: ...


def most_uploads(setting: Setting) -> int:
    """Return the largest number of uploads in a round; under Poisson sampling without a cap a number that is rarely
    exceeded.
    """
    if setting.sampling.name in ("fixed", "all"):
        return setting.cohort
    return setting.cohort_cap or rarely_exceeded(setting.cohort, setting.clients, delta=setting.delta)
