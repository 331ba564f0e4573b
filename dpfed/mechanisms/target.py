"""Privacy target of a run whose unit is a client, and the settings from which a kind of noise calibrates it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from accounting import budget, mechanisms
from accounting.budget import NoiseSchedule
from accounting.compose.accountant import Accountant, guarantee
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.ledger import Planned
from accounting.mechanisms import Adjacency, Composed, Sampling
from accounting.mechanisms.samplings.planned import Sampler
from dpfed.config.privacy_tables import NoiseMultiplierTable
from dpfed.config.tables import Config
from dpfed.participation.sampling import sampler_of
from dpfed.randomness import Randomness
from dpfed.stages.stage import Private, Stage, stage_attribute


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """Privacy target of a run, whose unit is a client or a record.

    budget: the epsilon that the run may not exceed; None if epsilon is only stated
    noise_multiplier: None for Bernoulli samples
    """

    delta: float
    budget: float | None
    accountant: Accountant
    noise_multiplier: float | None
    clip_norm: float

    def plan(self, rounds: int, spare: int, most: tuple[Composed, ...]) -> Planned:
        """Return the plan of a run of `rounds` rounds and `spare` repeated ones, with its largest possible charges."""
        delta = None if self.budget is None else self.delta
        return Planned(rounds=rounds, largest_charges=most, epsilon=self.budget, delta=delta, spare=spare)


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivacyTarget(Target):
    """Privacy target of a run whose unit is a client.

    private: the stage that draws the noise, and whose mechanism is charged
    bound: the stages directly before it; its account relies on their bound on the rows
    least_uploads: smallest number of uploads of a round; given if rounds are charged with the noise that
        arrived, else None
    """

    private: Private
    bound: tuple[Stage, ...]
    least_uploads: int | None = None
    unit: Literal["client"] = "client"
    table: ClassVar[str] = "privacy"

    @property
    def advice(self) -> str:
        """Advice for messages: the change of the configuration that lowers the epsilon of a round."""
        return "Lower privacy.clip_norm" if self.noise_multiplier is None else "Raise privacy.noise_multiplier"

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Stages of a chain that clip the rows and add the noise."""
        return *self.bound, self.private

    @property
    def charge_varies(self) -> bool:
        return self.least_uploads is not None

    @property
    def mechanism(self) -> mechanisms.SingleRelease:
        """Mechanism of a round with the largest possible charge, that of the fewest uploads."""
        return self.private.mechanism(self.least_uploads)

    @property
    def schedule(self) -> NoiseSchedule | None:
        schedule: NoiseSchedule | None = stage_attribute(self.private, "schedule")
        return schedule

    @property
    def slots(self) -> int | None:
        """Fixed number of uploads that the account of a round relies on; None if it does not rely on one."""
        slots: int | None = stage_attribute(self.private, "slots")
        return slots

    @property
    def integer_rows(self) -> Any:
        """Stage `Integers` that rounds rows, if it is before the noise; else None."""
        return next((stage for stage in self.bound if stage.summed_as is not None), None)

    @property
    def solved(self) -> dict[str, object]:
        """Calibrated values for the header of the ledger, from which later processes read them."""
        z = self.noise_multiplier
        drawn: Any = getattr(self.private, "correlated", None)
        matrix = None if drawn is None else mechanisms.noise_matrix(drawn)
        names = ("coefficients", "weights", "decays")
        columns = {name: list(getattr(matrix, name)) for name in names if getattr(matrix, name, ())}
        return {
            **({"clip_norm": self.clip_norm} if z is None else {"noise_multiplier": z}),
            **({"matrix": columns} if columns else {}),
        }

    def mechanism_of_round(self, number: int) -> mechanisms.SingleRelease:
        """Return the mechanism of round `number` (from 0) with the largest possible charge, that of the fewest
        uploads."""
        released: mechanisms.SingleRelease = stage_attribute(self.private, "in_round")(number, self.least_uploads)
        return released

    def mechanism_of_run(self, rounds: int) -> mechanisms.Composed:
        """Return the composed mechanism of the first `rounds` rounds with their largest possible charge."""
        released: mechanisms.Composed = stage_attribute(self.private, "run")(rounds, self.least_uploads)
        return released

    def has_equal_rounds(self, other: PrivacyTarget) -> bool:
        """Return True if both targets have the same mechanism, delta, budget, accountant, noise and clip norm."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("mechanism", "delta", "budget", "accountant", "noise_multiplier", "clip_norm", "least_uploads")
        )

    def planned_releases(self, rounds: int, spare: int = 0) -> Planned:
        """Return the plan of a run of `rounds` rounds and `spare` repeated ones, for the header of its ledger."""
        return self.plan(rounds, spare, (self.mechanism_of_run(rounds + spare),))

    def require_consistent_bounds(self, rounds: int) -> None:
        """Raise ContradictoryBounds if the lower bound of the planned rounds is above their epsilon; no round may run
        then."""
        # without an account of the planned rounds, the budget ends the run earlier
        with suppress(InvalidParameter, UnsupportedMechanism):
            guarantee(self.mechanism_of_run(rounds), delta=self.delta, accountant=self.accountant)


@dataclass(frozen=True, kw_only=True)
class NoiseSettings:
    """Settings of a private run from which its noise is calibrated.

    sent: number of values that a client sends
    tolerance: fraction of uploads that may be missing
    masks: True if uploads are samples of the mask's probabilities; False for samples of moves from 1/2
    """

    config: Config
    sent: int
    randomness: Randomness
    tolerance: float
    masks: bool

    @cached_property
    def who(self) -> Sampler:
        """Sampler of the cohorts."""
        return sampler_of(self.config)

    def multiplier(
        self,
        table: NoiseMultiplierTable,
        run: Callable[[float], Composed],
        adjacency: Adjacency,
        law: Sampling,
        enlarged: Callable[[float], float] = float,
    ) -> float:
        """Return the noise multiplier: the given one, that of an earlier process, or the smallest within epsilon.

        run: composition of all rounds with a noise multiplier
        enlarged: calibrated multiplier -> multiplier that suffices if a fraction of the noise is missing
        """
        if (given := table.noise_multiplier or table.solved.get("noise_multiplier")) is not None:
            return float(given)
        assert table.epsilon is not None
        z = budget.multiplier_for(
            run,
            epsilon=table.epsilon,
            delta=self.config.delta,
            rounds=self.config.charged_rounds,
            shift=2.0 if law.fixed_size else adjacency.sensitivity_in_clips,
            probability=law.probability,
            accountant=table.accountant,
        )
        return enlarged(z)

    def target(
        self, private: Private, *bound: Stage, z: float | None, clip: float | None, least_uploads: int | None = None
    ) -> PrivacyTarget:
        """Return the target of a run with this stage and bound, noise multiplier and clip norm."""
        table = self.config.privacy
        assert table is not None
        assert clip is not None
        return PrivacyTarget(
            private=private,
            bound=bound,
            delta=self.config.delta,
            budget=table.epsilon,
            accountant=table.accountant,
            noise_multiplier=z,
            clip_norm=clip,
            least_uploads=least_uploads,
        )
