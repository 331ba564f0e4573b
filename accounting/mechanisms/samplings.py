"""Samplings of a cohort, as frozen descriptions."""

from dataclasses import dataclass
from typing import Any, ClassVar

from accounting import require
from accounting.errors import InvalidParameter
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.schedules import Schedule

_ROUNDING = 1 + 1e-11
"""Relative error of binomial tails, with room."""


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
class CappedPoissonSampling:
    """Poisson sampling with a cap: of more than `cap` drawn clients a secret, uniformly random `cap` take part.

    clients: n, all clients there are; a client's chance to be left out follows from it.
    """

    probability: float
    cap: int
    clients: int
    name: ClassVar[str] = "capped-poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", require.probability(sampling_probability=self.probability))
        object.__setattr__(self, "cap", require.count(cohort_cap=self.cap))
        object.__setattr__(self, "clients", require.count(clients=self.clients))

    def binds(self, adjacency: Adjacency) -> bool:
        """Return True if more than `cap` clients can be drawn from one of the neighbours."""
        return self.cap < self.clients + (adjacency is Adjacency.ADD_REMOVE)

    def full_rounds(self, adjacency: Adjacency) -> tuple[tuple[float, float], ...]:
        """Return (zeta, p) for every number of other clients that neighbours can have: n - 1, under add-remove n too.

        zeta: the chance that at least `cap` others are drawn; p: the chance of the client to take part in such a round,
        cap / (m + 1) Pr[Bin(m + 1, q) > cap] / zeta with m others. Exact to rounding.
        """
        from scipy.special import bdtrc

        found = []
        for others in (self.clients - 1, self.clients)[: 1 + (adjacency is Adjacency.ADD_REMOVE)]:
            zeta = float(bdtrc(self.cap - 1, others, self.probability)) if self.cap <= others else 0.0
            joined = float(bdtrc(self.cap, others + 1, self.probability)) if self.cap <= others else 0.0
            p = self.cap / (others + 1) * joined / zeta if zeta > 0 else self.probability
            found.append((min(zeta * _ROUNDING, 1.0), min(p * _ROUNDING, self.probability)))
        return tuple(found)

    def taking_part(self, adjacency: Adjacency) -> float:
        """Return the chance of one client to take part in a round, rounded downwards."""
        zeta, p = self.full_rounds(adjacency)[-1]
        return ((1 - zeta) * self.probability + zeta * p) * (1 - 1e-9)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "probability": self.probability, "cap": self.cap, "clients": self.clients}


@dataclass(frozen=True, kw_only=True)
class CappedByPairs(CappedPoissonSampling):
    """Capped rounds of noise that is below a Gaussian for every pair of neighbours, where no more is known.

    full_noise_multiplier: of the Gaussian above the noise for cohorts in which one client takes another's place.
    """

    full_noise_multiplier: float


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


Sampling = PoissonSampling | CappedPoissonSampling | FixedSizeSampling | FullParticipation | Schedule


def cap_of(sampling: Sampling) -> int | None:
    """Return the most clients of a round of Poisson sampling; None without a cap."""
    return sampling.cap if isinstance(sampling, CappedPoissonSampling) else None


def shift_in_clips(sampling: Sampling, adjacency: Adjacency) -> float:
    """Largest shift of the sum of one round between neighbours, in clip norms.

    By the client that differs; 2 under fixed-size sampling and in full rounds under a cap, also where that client sends
    zeros, since another client takes part in its place.
    """
    return 2.0 if isinstance(sampling, FixedSizeSampling | CappedPoissonSampling) else adjacency.sensitivity_in_clips
