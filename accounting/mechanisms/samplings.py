"""Samplings of a cohort, as frozen descriptions."""

from dataclasses import dataclass
from typing import Any, ClassVar

from accounting import require
from accounting.errors import InvalidParameter
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class PoissonSampling:
    """Each client takes part in a round independently with this probability; the cohort size is secret."""

    probability: float
    name: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", require.probability(sampling_probability=self.probability))

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "probability": self.probability}


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampling:
    """A uniform random subset of exactly `cohort` of `clients`, drawn without replacement each round."""

    cohort: int
    clients: int
    name: ClassVar[str] = "fixed"

    def __post_init__(self) -> None:
        object.__setattr__(self, "cohort", require.count(cohort=self.cohort))
        object.__setattr__(self, "clients", require.count(clients=self.clients))
        if self.cohort > self.clients:
            raise InvalidParameter(
                f"cohort={self.cohort} of clients={self.clients}: a cohort without replacement can hold at "
                "most all clients. Lower the cohort or raise the number of clients."
            )

    @property
    def probability(self) -> float:
        """Chance of one client to be drawn, cohort / clients."""
        return self.cohort / self.clients

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "cohort": self.cohort, "clients": self.clients}


@dataclass(frozen=True, kw_only=True)
class FullParticipation:
    """Every client takes part in every round: no amplification."""

    name: ClassVar[str] = "all"

    @property
    def probability(self) -> float:
        return 1.0

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name}


Sampling = PoissonSampling | FixedSizeSampling | FullParticipation | Schedule


def shift_in_clips(sampling: Sampling, adjacency: Adjacency) -> float:
    """Largest shift of the sum of one round between neighbours, in clip norms.

    By the client that differs; 2 under fixed-size sampling, also where that client sends zeros, since another client is
    drawn in its place.
    """
    return 2.0 if isinstance(sampling, FixedSizeSampling) else adjacency.sensitivity_in_clips
