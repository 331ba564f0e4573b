"""What was released, as frozen descriptions: no numerics here.

A description says everything that a stated epsilon must name: the noise relative to the clip norm, the
adjacency (from which the sensitivity follows; it is never asked for) and the sampler that really ran.
`compose.rdp` and `compose.pld` say what a description costs.
"""

import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from accounting import require
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.integers import DiscreteGaussian, Skellam


@dataclass(frozen=True, kw_only=True)
class PoissonSampling:
    """Each client takes part in a round by its own coin of this probability; the cohort size is secret."""

    probability: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", require.probability(sampling_probability=self.probability))

    @property
    def name(self) -> str:
        return "poisson"


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampling:
    """A uniform random subset of exactly `cohort` of `clients`, drawn without replacement each round."""

    cohort: int
    clients: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "cohort", require.count(cohort=self.cohort))
        object.__setattr__(self, "clients", require.count(clients=self.clients))
        if self.cohort > self.clients:
            raise InvalidParameter(
                f"cohort={self.cohort} of clients={self.clients}: a cohort without replacement can hold at "
                "most all clients. Lower the cohort or raise the number of clients."
            )

    @property
    def name(self) -> str:
        return "fixed"

    @property
    def probability(self) -> float:
        """Chance of one client to be drawn, cohort / clients."""
        return self.cohort / self.clients


@dataclass(frozen=True, kw_only=True)
class FullParticipation:
    """Every client takes part in every round: no amplification."""

    @property
    def name(self) -> str:
        return "all"

    @property
    def probability(self) -> float:
        return 1.0


Sampling = PoissonSampling | FixedSizeSampling | FullParticipation


class Mechanism(Protocol):
    """A release whose cost is known: everything under one adjacency."""

    @property
    def adjacency(self) -> Adjacency: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """A sum of vectors of L2 norm at most C plus N(0, (noise_multiplier C)^2) on every coordinate.

    Equivalent to one Gaussian of mean shift `mu` = sensitivity / noise standard deviation
    (Dong, Roth, Su 2022: mu-Gaussian DP, tight).
    """

    noise_multiplier: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        # A Python float, never an int or a float32: dp-accounting misreads those inside composed events.
        object.__setattr__(self, "noise_multiplier", require.noise_multiplier(self.noise_multiplier))
        object.__setattr__(self, "adjacency", Adjacency.of(self.adjacency))

    @property
    def mu(self) -> float:
        """Sensitivity over noise standard deviation."""
        return self.adjacency.sensitivity_in_clips / self.noise_multiplier

    def least_noise_std(self, clip_norm: float, steps_per_unit: float) -> float:
        """Standard deviation of the noise that is charged for, on a sum of vectors of norm at most `clip_norm`."""
        return self.noise_multiplier * clip_norm

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "gaussian",
            "noise_multiplier": self.noise_multiplier,
            "adjacency": str(self.adjacency),
        }


SampledSum = Gaussian | BernoulliAggregate | DiscreteGaussian | Skellam
"""A sum over a cohort."""

Unsampled = SampledSum | BernoulliChannel


@dataclass(frozen=True, kw_only=True)
class Subsampled:
    """`mechanism` run on a random cohort that stays secret.

    A sum of coins keeps its number of coins whatever the cohort: under Poisson sampling the server pads to K slots with
    coins of the public probabilities (zero-out), under fixed-size sampling K is the cohort. So does integer noise in
    shares: under Poisson sampling, clients that were not drawn send noise alone until K uploads are together.
    """

    mechanism: SampledSum
    sampling: Sampling

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, SampledSum) or not isinstance(self.sampling, Sampling):
            raise InvalidParameter(
                f"mechanism={reprlib.repr(self.mechanism)}, sampling={reprlib.repr(self.sampling)}: must be a Gaussian "
                "or BernoulliAggregate, DiscreteGaussian, Skellam and one of PoissonSampling, FixedSizeSampling, "
                "FullParticipation."
            )
        if isinstance(self.mechanism, BernoulliAggregate):
            self.mechanism.check_sampling(self.sampling.name, getattr(self.sampling, "cohort", None))
        if isinstance(self.sampling, FixedSizeSampling) and self.adjacency is Adjacency.ADD_REMOVE:
            raise UnsupportedMechanism(
                "adjacency='add-remove' with fixed-size sampling: adding a client changes everybody's chance to "
                "be drawn, and no bound is implemented. Use adjacency 'replace-one' (the default for fixed-size "
                "sampling) or 'zero-out', or Poisson sampling."
            )

    @property
    def adjacency(self) -> Adjacency:
        return self.mechanism.adjacency

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "subsampled",
            "mechanism": self.mechanism.to_dict(),
            "sampling": _sampling_dict(self.sampling),
        }


SingleRelease = Unsampled | Subsampled
"""One release: what a composition is made of."""


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Adaptive composition: each part `count` times, in any order."""

    parts: tuple[tuple[SingleRelease, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(_part(part) for part in _sequence(self.parts)))
        if not self.parts:
            raise InvalidParameter("parts=(): a composition needs at least one mechanism.")
        adjacencies = {part.adjacency for part, _ in self.parts}
        if len(adjacencies) > 1:
            raise UnsupportedMechanism(
                f"adjacencies {sorted(adjacencies)} in one composition: an epsilon holds for one adjacency. "
                "State all parts under the same one."
            )

    @classmethod
    def of(cls, mechanisms: Iterable[SingleRelease]) -> "Composed":
        """The composition of a sequence of releases, equal ones counted together."""
        counts: Counter[SingleRelease] = Counter()
        for mechanism, alike in groupby(mechanisms):  # a million equal ones in a row are hashed once
            counts[mechanism] += sum(1 for _ in alike)
        return cls(parts=tuple(counts.items()))

    def then(self, release: SingleRelease, count: int) -> "Composed":
        """All this, and `count` releases more on the same clients; equal ones are counted together."""
        counts: Counter[SingleRelease] = Counter()
        for part, times in (*self.parts, (release, require.count(count=count))):
            counts[part] += times
        return Composed(parts=tuple(counts.items()))

    @property
    def adjacency(self) -> Adjacency:
        return self.parts[0][0].adjacency

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "composed", "parts": [[part.to_dict(), count] for part, count in self.parts]}


def subsample(mechanism: SampledSum, sampling: Sampling) -> SingleRelease:
    """`mechanism` on a sampled cohort; full participation leaves it as it is."""
    if isinstance(sampling, FullParticipation) or sampling.probability == 1.0:
        if isinstance(sampling, FixedSizeSampling):
            Subsampled(mechanism=mechanism, sampling=sampling)  # refuses an adjacency that it cannot have
        return mechanism
    return Subsampled(mechanism=mechanism, sampling=sampling)


def repeated(release: SingleRelease, rounds: int, *, before: Composed | None = None) -> Composed:
    """`rounds` rounds of `release`, after all that was released `before` on the same clients."""
    run = Composed(parts=((release, require.count(rounds=rounds)),))
    return run if before is None else before.then(release, rounds)


def simultaneous(noise_multipliers: Iterable[float], adjacency: Adjacency) -> Gaussian:
    """Several Gaussian releases about the same cohort in the same round, as one Gaussian (tight).

    The shifts add in squares, mu^2 = sum mu_i^2, so 1 / z^2 = sum 1 / z_i^2 with every z_i in units of that
    release's own norm bound. Sampled together, they must be charged together: charging each part as its own
    subsampled release would let the cohort be drawn afresh between them.
    """
    if isinstance(noise_multipliers, str) or not isinstance(noise_multipliers, Iterable):
        raise InvalidParameter(f"noise_multipliers={noise_multipliers!r}: must be a list of numbers.")
    inverse_squares = sum(require.noise_multiplier(z) ** -2 for z in noise_multipliers)
    if not inverse_squares:
        raise InvalidParameter("noise_multipliers=(): a joint release needs at least one.")
    return Gaussian(noise_multiplier=inverse_squares**-0.5, adjacency=adjacency)


def _sequence(parts: Any) -> tuple[Any, ...]:
    if not isinstance(parts, tuple | list):
        raise InvalidParameter(f"parts={reprlib.repr(parts)}: must be a sequence of (mechanism, count).")
    return tuple(parts)


def _part(part: Any) -> tuple[SingleRelease, int]:
    match part:
        case (mechanism, count) if isinstance(mechanism, SingleRelease):
            return mechanism, require.count(count=count)
    raise InvalidParameter(
        f"parts: {reprlib.repr(part)} must be (mechanism, count), the mechanism a Gaussian, coins or integer noise, "
        "sampled or not."
    )


def _sampling_dict(sampling: Sampling) -> dict[str, Any]:
    if isinstance(sampling, FixedSizeSampling):
        return {"name": sampling.name, "cohort": sampling.cohort, "clients": sampling.clients}
    if isinstance(sampling, PoissonSampling):
        return {"name": sampling.name, "probability": sampling.probability}
    return {"name": sampling.name}


def _unknown(name: str, record: object) -> InvalidParameter:
    return InvalidParameter(f"{name}={reprlib.repr(record)}: not a {name} that this version knows.")


def _sampling_from(record: Any) -> Sampling:
    match record:
        case {"name": "poisson", "probability": probability, **rest} if not rest:
            return PoissonSampling(probability=probability)
        case {"name": "fixed", "cohort": cohort, "clients": clients, **rest} if not rest:
            return FixedSizeSampling(cohort=cohort, clients=clients)
        case {"name": "all", **rest} if not rest:
            return FullParticipation()
    raise _unknown("sampling", record)


_BY_KIND: dict[str, Callable[..., Unsampled]] = {
    "bernoulli-channel": BernoulliChannel,
    "bernoulli-aggregate": BernoulliAggregate,
    DiscreteGaussian.kind: DiscreteGaussian,
    Skellam.kind: Skellam,
}


def _unsampled_from(record: Any) -> Unsampled:
    match record:
        case {"kind": "gaussian", "noise_multiplier": z, "adjacency": adjacency, **rest} if not rest:
            return Gaussian(noise_multiplier=z, adjacency=adjacency)
        case {"kind": str(kind), **rest} if kind in _BY_KIND:
            fields: Any = rest
            try:
                return _BY_KIND[kind](**fields)
            except TypeError:
                raise _unknown("mechanism", record) from None
    raise _unknown("mechanism", record)


def _round_from(record: Any) -> SingleRelease:
    match record:
        case {"kind": "subsampled", "mechanism": inner, "sampling": sampling, **rest} if not rest:
            mechanism = _unsampled_from(inner)
            if not isinstance(mechanism, BernoulliChannel):
                return Subsampled(mechanism=mechanism, sampling=_sampling_from(sampling))
    return _unsampled_from(record)


def from_dict(record: Mapping[str, Any]) -> SingleRelease | Composed:
    """The mechanism that `to_dict` wrote. Whatever else is there is an error, never a guess."""
    match record:
        case {"kind": "composed", "parts": [*parts], **rest} if not rest:
            return Composed(parts=tuple(_counted_from(part) for part in parts))
    return _round_from(record)


def _counted_from(record: Any) -> tuple[SingleRelease, int]:
    match record:
        case [part, count]:
            return _round_from(part), count
    raise _unknown("mechanism", record)
