"""The plan of a run: one class for every mechanism."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from accounting import require
from accounting.budget.coins import CoinRounds
from accounting.budget.correlated import MOST_ROUNDS, NOISES, CorrelatedPlan, refuse_idle
from accounting.budget.gaussians import GaussianRounds
from accounting.budget.integers import IntegerRounds
from accounting.budget.noise_schedule import NoiseSchedule, checked
from accounting.budget.rounds_of import RoundsOf
from accounting.caveats import default_delta
from accounting.errors import InvalidParameter
from accounting.mechanisms import (
    Composed,
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
    Sampling,
    SingleRelease,
    repeated,
    schedule_of,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.schedules import SCHEDULES, Allocation, BallsAndBins, Cyclic, MinSeparation

SAMPLINGS = ("poisson", "fixed", "all")
"""Every round drawn by itself; besides them the schedules of `mechanisms.schedules`, over many rounds."""

Placement = Literal["clients", "server"]

_ROUNDS: dict[str, type[RoundsOf]] = {
    "gaussian": GaussianRounds,
    "distributed-gaussian": GaussianRounds,
    "discrete-gaussian": IntegerRounds,
    "skellam": IntegerRounds,
    "bernoulli-channel": CoinRounds,
    "bernoulli-aggregate": CoinRounds,
}
MECHANISMS = tuple(_ROUNDS)
"""Names of the mechanisms that a plan can have."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Rounds of a federated run as the accountant sees them.

    `delta` defaults to the smaller of clients^-1.1 and 1e-4.
    `adjacency` defaults to replace-one for fixed; for poisson and all to add-remove, but to
    zero-out where a client more or less would be an upload, or a share of noise, more or less. `before` is what was
    released on the same clients already: every epsilon is then of that and the plan together. The plan's schedule is
    drawn anew, under a `stream` of its own: it does not go on with one of `before`.

    A schedule (balls-and-bins, allocation, min-separation, cyclic) lets a client take part once in clients / cohort
    rounds, which is rounded to whole rounds for all but min-separation. participations: of a client, at most
    (balls-and-bins), or exactly in participations clients / cohort rounds (allocation). separation: min-separation's B,
    a client that took part rests for B - 1 rounds.

    noise: correlated over rounds (`budget.correlated`), "banded" in `bands` bands or "blt" with `buffers` buffers, the
    matrix "optimised" or the "square-root", for a server of this momentum whose learning rate decays by `server_decay`
    a round. participations and separation: what clients keep to.

    noise_schedule: of Gaussian noise, factors of the noise multiplier in equal parts of the run
    (`budget.noise_schedule`).

    Of Gaussian noise (`gaussian`, `distributed-gaussian`): `budget.gaussians` says what dropout is.
    Of integer noise (`discrete-gaussian`, `skellam`): dimension, scale, rotate, placement, dropout, slots, secure,
    wrap_probability, as `budget.integers` says.
    Of coins (`bernoulli-aggregate`, `bernoulli-channel`): dimension, edge, clip_norm, linf_clip, noise_std, slots,
    clip_metric, others, reference, as `budget.coins` says; they have no noise multiplier.

    Errors: InvalidParameter for a field outside its domain, or one that the mechanism does not look at;
    UnsupportedMechanism for a combination of fields that has no account.
    """

    clients: int
    cohort: int
    mechanism: str = "gaussian"
    sampling: str = "poisson"
    adjacency: Adjacency | None = None
    delta: float | None = None
    before: Composed | None = None
    noise: str = "independent"
    bands: int | None = None
    buffers: int | None = None
    factorisation: str = "optimised"
    server_momentum: float = 0.0
    server_decay: float = 1.0
    participations: int | None = None
    separation: int | None = None
    noise_schedule: tuple[float, ...] | None = None
    dropout: float = 0.0
    dimension: int | None = None
    scale: float | None = None
    rotate: bool = True
    placement: Placement = "clients"
    slots: int | None = None
    secure: bool = False
    wrap_probability: float = 1e-6
    edge: float | None = None
    clip_norm: float | None = None
    linf_clip: float | None = None
    noise_std: float = 0.0
    clip_metric: str = "euclidean"
    others: str = "anywhere"
    reference: float | None = None

    def __post_init__(self) -> None:
        clients, cohort = require.count(clients=self.clients), require.count(cohort=self.cohort)
        if cohort > clients:
            raise InvalidParameter(f"cohort={cohort} of clients={clients}: must be at most the number of clients.")
        for name, value, allowed in (
            ("sampling", self.sampling, (*SAMPLINGS, *SCHEDULES)),
            ("mechanism", self.mechanism, MECHANISMS),
            ("noise", self.noise, NOISES),
        ):
            if value not in allowed:
                raise InvalidParameter(f"{name}={value!r}: must be one of {', '.join(allowed)}.")
        object.__setattr__(self, "delta", default_delta(clients) if self.delta is None else self.delta)
        require.open_probability(delta=self.delta)
        self._check_schedule()
        self._check_noise_schedule()
        refuse_idle(self)
        if self.correlated is not None:
            self.correlated.check()
        self._refuse_foreign_fields()
        for name, value in self.rounds_of.resolved().items():
            object.__setattr__(self, name, value)
        self.rounds_of.round(1.0 if self.has_noise_multiplier else None)  # refuses what has no account

    def _refuse_foreign_fields(self) -> None:
        looked_at = self.rounds_of.takes
        for field in dataclasses.fields(self):
            takers = [name for name, kind in _ROUNDS.items() if field.name in kind.takes]
            value = getattr(self, field.name)
            if takers and field.name not in looked_at and value != field.default:
                raise InvalidParameter(
                    f"{field.name}={require.shown(value)} with mechanism={self.mechanism!r}: is for "
                    f"{', '.join(takers)}. Remove it."
                )

    def _check_schedule(self) -> None:
        """Refuse what the sampling does not look at, and what it lacks."""
        for name, takers in (("participations", ("allocation", "balls-and-bins")), ("separation", ("min-separation",))):
            value = getattr(self, name)
            if value is None and takers[0] == self.sampling:
                raise InvalidParameter(f"{name} is missing: sampling={self.sampling!r} needs it.")
            public = self.noise != "independent" and self.sampling in ("cyclic", "min-separation")
            if value is not None and self.sampling not in takers and not public:
                raise InvalidParameter(
                    f"{name}={require.shown(value)} with sampling={self.sampling!r}: is for {', '.join(takers)}. "
                    "Remove it."
                )
            if value is not None:
                require.count(**{name: value})

    def _check_noise_schedule(self) -> None:
        """Refuse it where rounds do not stand for themselves."""
        if self.noise_schedule is None:
            return
        object.__setattr__(self, "noise_schedule", checked(self.noise_schedule))
        if self.noise != "independent" or self.sampling not in SAMPLINGS:
            raise InvalidParameter(
                f"noise_schedule={require.shown(self.noise_schedule)} with noise={self.noise!r} and sampling="
                f"{self.sampling!r}: rounds that are accounted together have equal noise. Remove it, or use "
                f"noise='independent' and a sampling of {', '.join(SAMPLINGS)}."
            )

    @property
    def correlated(self) -> CorrelatedPlan | None:
        """The rounds where their noise is correlated; None where it is independent."""
        return None if self.noise == "independent" else CorrelatedPlan(plan=self)

    @property
    def period(self) -> int:
        """Rounds from one participation of a client to the next, on average: clients / cohort, rounded."""
        return max(round(self.clients / self.cohort), 1)

    @property
    def most_rounds(self) -> int | None:
        """Rounds after which the schedule is over; None where it goes on."""
        if self.correlated is not None:
            return MOST_ROUNDS
        if self.participations is None:
            return None
        return self.participations * self.period if self.sampling == "balls-and-bins" else self._allocated

    @property
    def _allocated(self) -> int:
        return round((self.participations or 1) * self.clients / self.cohort)

    @property
    def rounds_of(self) -> RoundsOf:
        """The rounds, as the kind of mechanism makes them."""
        kind: Any = _ROUNDS[self.mechanism]
        made: RoundsOf = kind(plan=self)
        return made

    @property
    def has_noise_multiplier(self) -> bool:
        """Whether there is a noise multiplier to solve for: not with coins, which are the noise."""
        return self.rounds_of.has_noise_multiplier

    @property
    def stream(self) -> str:
        """The name of the plan's schedule: one that no schedule of `before` has, since the plan draws anew."""
        parts = () if self.before is None else self.before.parts
        taken = {schedule.stream for part, _ in parts if (schedule := schedule_of(part)) is not None}
        return next(name for name in ("", *(f"plan {k}" for k in range(len(taken)))) if name not in taken)

    @property
    def sampler(self) -> Sampling:
        """How a cohort is drawn."""
        if self.sampling == "fixed":
            return FixedSizeSampling(cohort=self.cohort, clients=self.clients)
        if self.sampling == "all":
            return FullParticipation()
        if self.sampling == "balls-and-bins":
            return BallsAndBins(bins=self.period, stream=self.stream)
        if self.sampling == "allocation":
            return Allocation(participations=self.participations or 1, rounds=self._allocated, stream=self.stream)
        if self.sampling == "min-separation":
            rate = self.cohort / self.clients
            return MinSeparation(separation=self.separation or 1, probability=rate, stream=self.stream)
        if self.sampling == "cyclic":
            return Cyclic(period=self.period, stream=self.stream)
        return PoissonSampling(probability=self.cohort / self.clients)

    @property
    def noise_kept(self) -> float:
        """Fraction of the noise variance asked for that is accounted."""
        return self.rounds_of.noise_kept

    def round(self, noise_multiplier: float | None = None) -> SingleRelease:
        """The mechanism of one round: what its ledger line states (of correlated noise, `correlated.round` is it).
        InvalidParameter for a noise multiplier of coins, which have none, or none of what has one."""
        if noise_multiplier is not None and not self.has_noise_multiplier:
            raise InvalidParameter(
                f"noise_multiplier={require.shown(noise_multiplier)} with mechanism={self.mechanism!r}: its coins are "
                "the noise. Remove it."
            )
        return self.rounds_of.round(noise_multiplier)

    def run(self, noise_multiplier: float | None, rounds: int) -> Composed:
        """The mechanism of all rounds, and of what was released before. InvalidParameter for more rounds than the
        participations of a client allow."""
        if self.correlated is not None:
            return self.correlated.run(require.noise_multiplier(noise_multiplier), rounds)
        if self.most_rounds is not None and rounds > self.most_rounds:
            raise InvalidParameter(
                f"rounds={rounds} with participations={self.participations} of cohort={self.cohort} of "
                f"clients={self.clients}: that is {self.most_rounds} rounds. Change one of them."
            )
        if self.noise_schedule is None:
            return repeated(self.round(noise_multiplier), rounds, before=self.before)
        return self.first(noise_multiplier, rounds, of=rounds)

    def first(self, noise_multiplier: float | None, count: int, *, of: int) -> Composed:
        """The mechanism of the first `count` rounds of a run `of` so many whose noise differs (`noise_schedule`), and
        of what was released before. Rounds beyond the run have the least noise (`NoiseSchedule.factor`)."""
        if self.noise_schedule is None:
            raise InvalidParameter("noise_schedule is missing: first() is for noise that differs. Use run().")
        run, left, z = self.before, require.count(rounds=count), require.noise_multiplier(noise_multiplier)
        schedule = NoiseSchedule(factors=self.noise_schedule, rounds=of)
        for factor, rounds in (*schedule.parts, (schedule.least, left)):
            if left > 0:
                run = repeated(self.round(z * factor), min(rounds, left), before=run)
            left -= rounds
        assert run is not None
        return run

    def notes(self, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """What a reader of the epsilon should know."""
        if self.correlated is not None:
            return self.correlated.notes(require.noise_multiplier(noise_multiplier), rounds)
        return self.rounds_of.notes(noise_multiplier, rounds)
