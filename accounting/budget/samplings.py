"""Samplings of a plan: the clients of a round, and how often a client takes part in a run.

docs/participation.md has what each of them hides, and for whom it is.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, get_args

from accounting import require
from accounting.budget.options import option
from accounting.mechanisms import (
    CappedPoissonSampling,
    Composed,
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
    Sampling,
    schedules,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.cohort_caps import rarely_exceeded


@dataclass(frozen=True, kw_only=True)
class _Cohorts:
    """Cohorts of a given size, or expected size."""

    cohort: int = option("Clients a round: the expected number under poisson, the exact one under fixed.")
    name: ClassVar[str]
    is_schedule: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require.count(cohort=self.cohort)

    def period(self, clients: int) -> int:
        """Rounds from one participation of a client to the next, on average: clients / cohort, rounded."""
        return max(round(clients / self.cohort), 1)

    def most_rounds(self, clients: int) -> int | None:
        """Length of the schedule in rounds; None if it is unbounded."""
        return None


@dataclass(frozen=True, kw_only=True)
class Poisson(_Cohorts):
    """Each client independently, with probability cohort / clients, in every round.

    cohort_cap: if more are drawn, a secret, uniformly random part of that size takes part. None: no cap, or a default
    one for mechanisms whose sums hold a fixed number of uploads (`Plan.cohort_cap`).
    """

    cohort_cap: int | None = option(
        "poisson: the most clients of a round; if more are drawn, some are left out by lot. With noise shares, secure "
        "sums and coins it is the fixed number of uploads, and has a default. --slots is its old name.",
        None,
        alias="slots",
    )
    name: ClassVar[str] = "poisson"
    is_schedule: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort_cap is not None:
            require.count(cohort_cap=self.cohort_cap)

    def sampler(self, clients: int, stream: str) -> Sampling:
        q = self.cohort / clients
        if self.cohort_cap is None:
            return PoissonSampling(probability=q)
        return CappedPoissonSampling(probability=q, cap=self.cohort_cap, clients=clients)


@dataclass(frozen=True, kw_only=True)
class FixedSize(_Cohorts):
    """Exactly `cohort` clients without replacement in every round."""

    name: ClassVar[str] = "fixed"
    is_schedule: ClassVar[bool] = False

    def sampler(self, clients: int, stream: str) -> Sampling:
        return FixedSizeSampling(cohort=self.cohort, clients=clients)


@dataclass(frozen=True, kw_only=True)
class Everyone:
    """All clients in every round."""

    name: ClassVar[str] = "all"
    is_schedule: ClassVar[bool] = False

    def period(self, clients: int) -> int:
        """Rounds from one participation of a client to the next: 1."""
        return 1

    def most_rounds(self, clients: int) -> int | None:
        """Length of the schedule in rounds: None, it is unbounded."""
        return None

    def sampler(self, clients: int, stream: str) -> Sampling:
        return FullParticipation()


_PARTICIPATIONS = (
    "balls-and-bins, allocation: in how many rounds a client takes part. With it the cohort follows from the rounds. "
    "banded, blt: in how many at most."
)
_SEPARATION = "min-separation, banded, blt: a client that took part stays away from the next separation - 1 rounds."


@dataclass(frozen=True, kw_only=True)
class BallsAndBins(_Cohorts):
    """One secret round of every clients / cohort, drawn anew in every such epoch; at most `participations` epochs."""

    participations: int | None = option(_PARTICIPATIONS, None)
    lanes: int | None = option(
        "balls-and-bins: public lanes (client id modulo lanes), whose clients take turns; for noise in as many bands. "
        "Default: 1; with --noise banded the lanes of least error.",
        None,
    )
    name: ClassVar[str] = "balls-and-bins"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lanes is not None:
            require.count(lanes=self.lanes)
        if self.participations is not None:
            require.count(participations=self.participations)

    def most_rounds(self, clients: int) -> int | None:
        """Length of the schedule in rounds; None if it is unbounded."""
        return None if self.participations is None else self.participations * self.period(clients)

    def sampler(self, clients: int, stream: str) -> Sampling:
        return schedules.BallsAndBins(bins=self.period(clients), lanes=self.lanes or 1, stream=stream)


@dataclass(frozen=True, kw_only=True)
class Allocation(_Cohorts):
    """`participations` secret rounds of participations clients / cohort rounds, which are all of them."""

    participations: int = option(_PARTICIPATIONS)
    name: ClassVar[str] = "allocation"

    def __post_init__(self) -> None:
        super().__post_init__()
        require.count(participations=self.participations)

    def most_rounds(self, clients: int) -> int:
        """Length of the schedule in rounds."""
        return round(self.participations * clients / self.cohort)

    def sampler(self, clients: int, stream: str) -> Sampling:
        return schedules.Allocation(participations=self.participations, rounds=self.most_rounds(clients), stream=stream)


@dataclass(frozen=True, kw_only=True)
class MinSeparation(_Cohorts):
    """A client that took part rests for separation - 1 rounds; then it takes part at random in every round."""

    separation: int = option(_SEPARATION)
    name: ClassVar[str] = "min-separation"

    def __post_init__(self) -> None:
        super().__post_init__()
        require.count(separation=self.separation)

    def sampler(self, clients: int, stream: str) -> Sampling:
        return schedules.MinSeparation(separation=self.separation, probability=self.cohort / clients, stream=stream)


@dataclass(frozen=True, kw_only=True)
class Cyclic(_Cohorts):
    """Every client in every clients / cohort-th round, in a public order."""

    name: ClassVar[str] = "cyclic"

    def sampler(self, clients: int, stream: str) -> Sampling:
        return schedules.Cyclic(period=self.period(clients), stream=stream)


PlannedSampling = Poisson | FixedSize | Everyone | BallsAndBins | Allocation | MinSeparation | Cyclic

SAMPLING_CLASSES: dict[str, type[PlannedSampling]] = {one.name: one for one in get_args(PlannedSampling)}
"""Sampling of each name."""


class Setting(Protocol):
    """Population, sampling, neighbours and delta of a plan: all that its mechanism depends on besides itself."""

    @property
    def clients(self) -> int: ...

    @property
    def sampling(self) -> PlannedSampling: ...

    @property
    def cohort(self) -> int:
        """Clients of a round, expected or exact."""
        ...

    @property
    def sampler(self) -> Sampling: ...

    @property
    def cohort_cap(self) -> int | None:
        """The most clients of a round under Poisson sampling; None without a cap."""
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
    """Return the most uploads of a round; without a cap a number that Poisson cohorts hardly ever exceed."""
    if setting.sampling.name in ("fixed", "all"):
        return setting.cohort
    return setting.cohort_cap or rarely_exceeded(setting.cohort, setting.clients, delta=setting.delta)
