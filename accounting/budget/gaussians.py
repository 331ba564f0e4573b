"""Gaussian noise of a plan, added by the server or in shares by the clients, equal or by a schedule of factors.

A noise schedule has public factors of the noise multiplier, one for each of equal parts of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from accounting import require
from accounting.errors import InvalidParameter
from accounting.mechanisms import Adjacency, Composed, Gaussian, SingleRelease, repeated, schedule_of, subsample
from accounting.mechanisms.samplings.independent import default_cap, rarely_exceeded
from accounting.mechanisms.samplings.planned import PlannedSampling
from accounting.mechanisms.samplings.sampling import Sampling
from accounting.options import option
from accounting.rounding import downwards

MOST_PARTS = 1_000
LARGEST_FACTOR = 1e6
"""Largest factor, and largest inverse of a factor: the product with a noise multiplier must be a noise multiplier."""


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule:
    """Noise schedule: round t of `rounds` (from 0) has `factors[floor(t k / rounds)]` times the noise multiplier.

    k is the number of factors.
    Claim: the factors are fixed before the first round and public, so a run is the composition of `parts`, each round
    charged with its own noise. At equal epsilon the sum of the noise variances is smallest if all factors are equal.
    Direction of error: that of the account of the composition, an upper bound.
    Units: factors of the noise multiplier.
    Errors: InvalidParameter for factors that are not finite and above 0, for more factors than rounds, and for more
    than 1,000 factors.

    >>> from accounting.budget import NoiseSchedule
    >>> NoiseSchedule(factors=(1.2, 1.0), rounds=5).parts
    ((1.2, 3), (1.0, 2))
    """

    factors: tuple[float, ...]
    rounds: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", checked_factors(self.factors))
        object.__setattr__(self, "rounds", require.count(rounds=self.rounds))
        if len(self.factors) > self.rounds:
            raise InvalidParameter(
                f"noise_schedule of {len(self.factors)} parts in rounds={self.rounds}: each part must have a round. "
                "Use fewer factors, or more rounds."
            )

    def factor(self, number: int) -> float:
        """Return the factor of round `number`, counted from 0.

        A round beyond `rounds` has the smallest factor, so that its charge is an upper bound."""
        if not 0 <= number < self.rounds:
            return self.smallest_factor
        return self.factors[number * len(self.factors) // self.rounds]

    @property
    def smallest_factor(self) -> float:
        """Smallest factor: that of the rounds with the largest epsilon."""
        return min(self.factors)

    @property
    def parts(self) -> tuple[tuple[float, int], ...]:
        """Pairs (factor, number of rounds), in order."""
        ends = [math.ceil(part * self.rounds / len(self.factors)) for part in range(len(self.factors) + 1)]
        return tuple((factor, end - start) for factor, start, end in zip(self.factors, ends, ends[1:], strict=False))


def checked_factors(factors: object) -> tuple[float, ...]:
    """Return validated factors as a tuple of floats. Errors: InvalidParameter for anything but a list of positive
    factors.
    """
    if not isinstance(factors, tuple | list) or not 0 < len(factors) <= MOST_PARTS:
        raise InvalidParameter(
            f"noise_schedule={require.short_repr(factors)}: must be a list of 1 to {MOST_PARTS:,} factors of the noise "
            "multiplier, such as 1.2, 1.0, 0.8."
        )
    numbers = tuple(float(require.positive(noise_schedule=factor)) for factor in factors)
    for factor in numbers:
        if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
            raise InvalidParameter(
                f"noise_schedule: the factor {require.short_repr(factor)} must be from {1 / LARGEST_FACTOR:g} to "
                f"{LARGEST_FACTOR:g}. Use factors near 1, and the noise multiplier for the rest."
            )
    return numbers


class Setting:
    """Properties of a plan that its mechanism depends on: population, sampling, neighbours and delta."""

    clients: int
    sampling: PlannedSampling
    mechanism: PlannedMechanism
    delta: float
    adjacency: Adjacency
    before: Composed | None

    @property
    def unit(self) -> Literal["client", "record"]:
        """Unit of privacy."""
        return self.sampling.unit

    @property
    def units(self) -> int:
        """Number of all clients, or of all records."""
        return self.sampling.units(self.clients)

    @property
    def cohort(self) -> int:
        """Number of clients in a round: the expected number under Poisson sampling, else the exact number."""
        return self.sampling.cohort_size(self.clients)

    @property
    def period(self) -> int:
        """Average number of rounds from one participation of a client to the next: clients / cohort, rounded."""
        return self.sampling.period(self.clients)

    @property
    def stream(self) -> str:
        """Stream name of the plan's schedule. No schedule of `before` has this name, because the plan draws a new
        schedule.
        """
        parts = () if self.before is None else self.before.parts
        taken = {schedule.stream for part, _ in parts if (schedule := schedule_of(part)) is not None}
        return next(name for name in ("", *(f"plan {k}" for k in range(len(taken)))) if name not in taken)

    @property
    def cohort_cap(self) -> int | None:
        """Largest number of clients in a round under Poisson sampling, as given, or by default where sums hold a fixed
        number of uploads; None without a cap.
        """
        if not self.sampling.takes_cap:
            return None
        if self.sampling.cohort_cap is None and self.mechanism.sums_have_fixed_size(self.sampling.name):
            return self.mechanism.default_cap(self.cohort, self.clients, delta=self.delta)
        return self.sampling.cohort_cap

    @property
    def capped_sampling(self) -> PlannedSampling:
        """The sampling, with the default cap if there is one."""
        return self.sampling.with_cap(self.cohort_cap)

    @property
    def sampler(self) -> Sampling:
        """Sampling of the cohorts as a ledger line states it."""
        return self.capped_sampling.law(self.clients, self.stream)


def most_uploads(setting: Setting) -> int:
    """Return the largest number of uploads in a round; under Poisson sampling without a cap a number that is rarely
    exceeded.
    """
    if setting.sampling.name in ("fixed", "all"):
        return setting.cohort
    return setting.cohort_cap or rarely_exceeded(setting.cohort, setting.clients, delta=setting.delta)


DROPOUT = (
    "Fraction of noise shares that may be missing. distributed-gaussian: the noise is smaller by them. Integer noise: "
    "the shares are larger, so that the noise is not smaller."
)


@runtime_checkable
class PlannedMechanism(Protocol):
    """Base class of mechanisms of a plan. A subclass with a `name` is registered in `classes`."""

    classes: ClassVar[list[type[Any]]] = []
    name: ClassVar[str]
    words: ClassVar[str] = ""
    """Short description for forms."""
    noise: ClassVar[str] = "independent"
    has_noise_multiplier: ClassVar[bool] = True
    advice: ClassVar[str] = "Raise the noise multiplier or the target."
    most_rounds: ClassVar[int | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            PlannedMechanism.classes.append(cls)

    @property
    def needs_lanes(self) -> bool:
        """True if the number of lanes, which equals the number of bands, must be searched (`budget.advice`)."""
        return False

    def validated_for(self, setting: Setting) -> Self:
        """Return the mechanism with validated fields. Errors: InvalidParameter, UnsupportedMechanism if the setting
        has no account.
        """
        ...

    def for_records(self) -> PlannedMechanism:
        """Return the noise that one client adds to the sum of a batch of its records: in one draw, without rotation.

        Errors: InvalidParameter for noise that local steps do not support.
        """
        raise InvalidParameter(
            f"mechanism={self.name!r}, noise={self.noise!r} with unit='record': local steps have mechanism 'gaussian' "
            "or 'discrete-gaussian', with equal noise in all rounds. Use one of these mechanisms."
        )

    def with_lanes_and_bands(self, sampling: PlannedSampling, clients: int) -> tuple[PlannedSampling, Self]:
        """Return sampling and mechanism, with both lanes and bands set if one of the two is given."""
        return sampling, self

    def default_cap(self, cohort: int, clients: int, *, delta: float) -> int:
        """Return the default cap of a sum with a fixed number of uploads."""
        return default_cap(cohort, clients, delta=delta)

    def prefix_error(self, setting: Setting, noise_multiplier: float, rounds: int) -> float:
        """Return the root mean square over rounds of the noise in the model, in clip norms."""
        return noise_multiplier * math.sqrt((rounds + 1) / 2)

    def default_adjacency(self, sampling: str) -> Adjacency:
        """Return replace-one for fixed-size sampling, else add-remove."""
        return Adjacency.REPLACE_ONE if sampling == "fixed" else Adjacency.ADD_REMOVE

    def sums_have_fixed_size(self, sampling: str) -> bool:
        """Return True if the number of uploads in a sum does not depend on the number of drawn clients."""
        return False

    @property
    def noise_kept(self) -> float:
        """Fraction of the noise variance that the account assumes."""
        return 1.0

    def round(self, setting: Setting, noise_multiplier: float | None, rounds: int | None) -> SingleRelease:
        """Return the mechanism of one round, as a ledger line states it."""
        ...

    def run(self, setting: Setting, noise_multiplier: float | None, rounds: int) -> Composed:
        """Return the mechanism of all rounds and of earlier releases on the same clients. Direction of error: upper
        bound.
        """
        return repeated(self.round(setting, noise_multiplier, rounds), rounds, before=setting.before)

    def first(self, setting: Setting, noise_multiplier: float | None, count: int, *, of: int) -> Composed:
        """Return the mechanism of the first `count` of `of` rounds with a noise schedule. Errors: InvalidParameter
        without one.
        """
        raise InvalidParameter(
            "noise_schedule is missing: first() is for noise that differs between rounds. Use run()."
        )

    def details(self, setting: Setting, noise_multiplier: float | None, rounds: int) -> Mapping[str, object]:
        """Return additional keys for the JSON of a budget: none."""
        return {}

    def notes(self, setting: Setting, run: Composed, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """Return notes on the epsilon: none."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Noise(PlannedMechanism):
    """Base class of noise with a given multiplier on the sum of clipped uploads.

    noise_multiplier: standard deviation of the noise on the sum over the clip norm; None if it is solved for.
    """

    noise_multiplier: float | None = option("Noise standard deviation on the sum over the clip norm C.", None)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Noise):
    """Gaussian noise N(0, (z C)^2) on every coordinate of the sum, added by the server; z is the noise multiplier.

    noise_schedule: factors of z in equal parts of the run (`budget.gaussians`).
    Claim: each round is `mechanisms.Gaussian` of z times its factor, on the plan's sampling.
    Source: Balle, Wang 2018 for one release; docs/theory.md for sampled rounds.
    Units: z is the noise standard deviation over the clip norm C.
    Adjacency: default add-remove, replace-one for fixed-size sampling.
    Errors: InvalidParameter for a noise schedule under a participation schedule.

    >>> from accounting import Plan, budget
    >>> Plan(clients=600, sampling="all", mechanism=budget.GaussianNoise(noise_multiplier=1.4)).round().noise_multiplier
    1.4
    """

    noise_schedule: tuple[float, ...] | None = option(
        "Gaussian noise: factors of the noise multiplier in equal parts of the run, such as 1.2 1.0 0.8. Each round "
        "is charged with its own noise.",
        None,
    )
    name: ClassVar[str] = "gaussian"
    words: ClassVar[str] = "Gaussian noise from the server"

    def validated_for(self, setting: Setting) -> Self:
        """Return the noise with validated factors. Errors: InvalidParameter for a noise schedule under a participation
        schedule.
        """
        if self.noise_schedule is None:
            return self
        if setting.sampling.is_schedule:
            raise InvalidParameter(
                f"noise_schedule={require.short_repr(self.noise_schedule)} with sampling={setting.sampling.name!r}: "
                "rounds of a participation schedule must have equal noise. Remove noise_schedule, or use sampling "
                "'poisson', 'fixed' or 'all'."
            )
        return replace(self, noise_schedule=checked_factors(self.noise_schedule))

    def for_records(self) -> PlannedMechanism:
        return self if type(self) is GaussianNoise and self.noise_schedule is None else super().for_records()

    def round(self, setting: Setting, noise_multiplier: float | None, rounds: int | None) -> SingleRelease:
        """Return the mechanism of one round, as a ledger line states it."""
        z = require.positive(noise_multiplier=noise_multiplier) * math.sqrt(self.noise_kept)
        return subsample(Gaussian(noise_multiplier=z, adjacency=setting.adjacency), setting.sampler)

    def run(self, setting: Setting, noise_multiplier: float | None, rounds: int) -> Composed:
        """Return the mechanism of all rounds and of earlier releases on the same clients."""
        if self.noise_schedule is None:
            return super().run(setting, noise_multiplier, rounds)
        return self.first(setting, noise_multiplier, rounds, of=rounds)

    def first(self, setting: Setting, noise_multiplier: float | None, count: int, *, of: int) -> Composed:
        """Return the mechanism of the first `count` of `of` rounds with a noise schedule, and of earlier releases.

        Rounds beyond `of` are charged with the smallest noise (`NoiseSchedule.factor`).
        """
        if self.noise_schedule is None:
            return super().first(setting, noise_multiplier, count, of=of)
        run, remaining, z = setting.before, require.count(rounds=count), require.noise_multiplier(noise_multiplier)
        schedule = NoiseSchedule(factors=self.noise_schedule, rounds=of)
        for factor, rounds in (*schedule.parts, (schedule.smallest_factor, remaining)):
            if remaining > 0:
                run = repeated(self.round(setting, z * factor, of), min(rounds, remaining), before=run)
            remaining -= rounds
        assert run is not None
        return run


@dataclass(frozen=True, kw_only=True)
class DistributedGaussianNoise(GaussianNoise):
    """Gaussian noise in shares for cohorts of a fixed size r: each upload carries N(0, (z C)^2 / r).

    dropout: fraction of the shares that may be missing.
    Claim: the account assumes the worst case, noise multiplier z sqrt(1 - dropout).
    Source: independent Gaussians add their variances.
    Units: z is the noise standard deviation on the full sum over the clip norm C.
    Adjacency: default zero-out if all clients take part, because an added client would add a share; else replace-one.
    Errors: InvalidParameter for a dropout outside [0, 1), a secret cohort size, or add-remove.

    >>> from accounting import Plan, budget
    >>> noise = budget.DistributedGaussianNoise(noise_multiplier=1.0, dropout=0.19)
    >>> Plan(clients=600, sampling="all", mechanism=noise).round().noise_multiplier
    0.9
    """

    dropout: float = option(DROPOUT, 0.0)
    name: ClassVar[str] = "distributed-gaussian"
    words: ClassVar[str] = "Gaussian noise in shares of the clients"

    def default_adjacency(self, sampling: str) -> Adjacency:
        """Return replace-one for fixed-size sampling, zero-out for full participation."""
        return Adjacency.ZERO_OUT if sampling == "all" else super().default_adjacency(sampling)

    def validated_for(self, setting: Setting) -> Self:
        """Return the noise with validated factors. Errors: InvalidParameter for cohorts of secret size, and for
        add-remove.
        """
        require.fraction(dropout=self.dropout)
        if setting.sampling.name not in ("fixed", "all"):
            raise InvalidParameter(
                f"mechanism='distributed-gaussian' with sampling={setting.sampling.name!r}: the noise of the sum would "
                "depend on the secret cohort size. Use sampling 'fixed' or 'all', or let the server add the noise."
            )
        if setting.adjacency is Adjacency.ADD_REMOVE:
            raise InvalidParameter(
                "mechanism='distributed-gaussian' with adjacency='add-remove': one client added or removed "
                "changes the noise by a share, which no account covers. Use 'zero-out' or 'replace-one'."
            )
        return super().validated_for(setting)

    @property
    def noise_kept(self) -> float:
        """Fraction of the noise variance that remains if the fraction `dropout` of the shares is missing."""
        return 1 - self.dropout

    def notes(self, setting: Setting, run: Composed, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """Return a note on missing shares."""
        return (f"at most {downwards(100 * self.dropout)}% of the noise shares missing",) if self.dropout else ()
