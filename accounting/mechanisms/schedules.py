"""Participation over many rounds, as frozen descriptions: who takes part in a round depends on the rounds before.

Releases of one schedule are counted from its first round: `count` releases of equal schedules are its first `count`
rounds, none left out and none twice. Schedules that are drawn apart from each other have different `stream` names; so
have two runs on the same clients, and a run that was interrupted and draws anew.

Clients must be drawn independently of each other. Where the differing client moves the others (groups of exactly equal
size), no account here holds.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from accounting import require
from accounting.errors import InvalidParameter
from accounting.mechanisms.correlated import CorrelatedRounds


@dataclass(frozen=True, kw_only=True)
class BallsAndBins:
    """Epochs of `bins` rounds: every client takes part in exactly one round of each, uniform, drawn anew each epoch."""

    bins: int
    stream: str = ""
    name: ClassVar[str] = "balls-and-bins"
    secret: ClassVar[bool] = True
    ends_after: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", require.count(bins=self.bins))
        require.stream(self.stream)

    @property
    def probability(self) -> float:
        """Chance of one client to take part in a given round."""
        return 1 / self.bins

    def most_participations(self, count: int) -> int:
        """Return the most participations of one client in the first `count` rounds."""
        return -(-count // self.bins)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Every client takes part in exactly `participations` of `rounds` rounds, a uniform subset; then it is over."""

    participations: int
    rounds: int
    stream: str = ""
    name: ClassVar[str] = "allocation"
    secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", require.count(rounds=self.rounds))
        object.__setattr__(self, "participations", require.count(participations=self.participations))
        require.stream(self.stream)
        if self.participations > self.rounds:
            raise InvalidParameter(
                f"participations={self.participations} in rounds={self.rounds}: a client takes part at most once a "
                "round. Lower the participations or raise the rounds."
            )

    @property
    def probability(self) -> float:
        """Chance of one client to take part in a given round."""
        return self.participations / self.rounds

    @property
    def ends_after(self) -> int | None:
        """Rounds after which it is over; None where it goes on."""
        return self.rounds

    def most_participations(self, count: int) -> int:
        """Return the most participations of one client in the first `count` rounds."""
        return min(count, self.participations)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class MinSeparation:
    """A client that takes part rests for `separation` - 1 rounds; then a coin of its own decides in every round.

    `probability` is its chance to take part in a given round. It is the same in all of them: the schedule begins as if
    it had run for ever.
    """

    separation: int
    probability: float
    stream: str = ""
    name: ClassVar[str] = "min-separation"
    secret: ClassVar[bool] = True
    ends_after: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "separation", require.count(separation=self.separation))
        rate = require.probability(sampling_probability=self.probability)
        object.__setattr__(self, "probability", rate)
        require.stream(self.stream)
        if not 0 < rate * self.separation <= 1 + 1e-12:
            raise InvalidParameter(
                f"separation={self.separation} with probability={rate}: a client that takes part every "
                f"{1 / rate if rate else float('inf'):g} rounds cannot rest that long. The separation must be at most "
                "clients / cohort, and the probability above 0."
            )

    @property
    def coin(self) -> float:
        """Chance to take part of a client that does not rest: p / (1 - p (separation - 1))."""
        return min(self.probability / (1 - self.probability * (self.separation - 1)), 1.0)

    def most_participations(self, count: int) -> int:
        """Return the most participations of one client in the first `count` rounds."""
        return -(-count // self.separation)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Cyclic:
    """Every client takes part in every `period`-th round, in an order that is public: nothing is hidden."""

    period: int
    stream: str = ""
    name: ClassVar[str] = "cyclic"
    secret: ClassVar[bool] = False
    ends_after: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", require.count(period=self.period))
        require.stream(self.stream)

    @property
    def probability(self) -> float:
        """Share of the rounds that one client takes part in."""
        return 1 / self.period

    def most_participations(self, count: int) -> int:
        """Return the most participations of one client in the first `count` rounds."""
        return -(-count // self.period)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


Schedule = BallsAndBins | Allocation | MinSeparation | Cyclic | CorrelatedRounds

SCHEDULES: dict[str, type[Schedule]] = {
    one.name: one for one in (BallsAndBins, Allocation, MinSeparation, Cyclic, CorrelatedRounds)
}
"""Schedule of each name."""
