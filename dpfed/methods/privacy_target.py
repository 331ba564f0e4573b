"""Privacy target of a run: the mechanism that is drawn, charged and audited, delta, and the privacy budget."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from accounting import mechanisms
from accounting.budget import NoiseSchedule
from accounting.budget.certificates import sampled_run as sampled_run
from accounting.caveats import default_delta
from accounting.compose.accountant import Accountant, guarantee
from accounting.compose.running import epsilons
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.ledger import Planned
from dpfed.aggregation.sums import least_uploads
from dpfed.config.privacy_tables import BernoulliPrivacy, DitheredPrivacy, GaussianPrivacy, IntegerPrivacy
from dpfed.config.server_tables import StepServer
from dpfed.config.tables import Config
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.dithered import DitheredNoise
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integers import IntegerNoise, Integers
from dpfed.methods import choices
from dpfed.methods.specification import MethodSpecification
from dpfed.participation.sampling import sampler_of, stream_of
from dpfed.randomness import Randomness, randomness_of
from dpfed.seeds import Seeds
from dpfed.stages.clip import Clip, ClipMoves
from dpfed.stages.stage import Private, Stage, stage_attribute

ROUNDING = 1e-8
"""Relative difference allowed between calibrations on different machines. Calibrated noise exceeds the smallest noise
within epsilon by more (`accounting.budget.calibrate.TOLERANCE`)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivacyTarget:
    """Privacy target of a run whose unit is a client.

    private: the stage that draws the noise, and whose mechanism is charged
    bound: the stages directly before it; its account relies on their bound on the rows
    budget: the epsilon that the run may not exceed; None if epsilon is only stated
    noise_multiplier: None for Bernoulli samples
    least_uploads: smallest number of uploads of a round; given if rounds are charged with the noise that
        arrived, else None
    """

    private: Private
    bound: tuple[Stage, ...]
    delta: float
    budget: float | None
    accountant: Accountant
    noise_multiplier: float | None
    clip_norm: float
    least_uploads: int | None = None
    unit: Literal["client"] = "client"
    table: ClassVar[str] = "privacy"
    records: ClassVar[None] = None

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
    def integers(self) -> IntegerNoise | None:
        """Stage that adds integer noise, if the noise is on sums of integers; else None."""
        return self.private if isinstance(self.private, IntegerNoise) else None

    @property
    def integer_rows(self) -> Integers | None:
        return next((stage for stage in self.bound if isinstance(stage, Integers)), None)

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
        delta = None if self.budget is None else self.delta
        most = self.mechanism_of_run(rounds + spare)
        return Planned(rounds=rounds, largest_charges=(most,), epsilon=self.budget, delta=delta, spare=spare)

    def require_consistent_bounds(self, rounds: int) -> None:
        """Raise ContradictoryBounds if the lower bound of the planned rounds is above their epsilon; no round may run
        then."""
        with suppress(
            InvalidParameter, UnsupportedMechanism
        ):  # no account covers the planned rounds: the budget ends the run earlier
            guarantee(self.mechanism_of_run(rounds), delta=self.delta, accountant=self.accountant)


def has_enough_noise(solved: Mapping[str, Any], needed: Mapping[str, Any]) -> bool:
    """Return True if calibrated values of another process are at least the noise of those that this one calibrates.

    Differences by rounding count as equal; coefficients of correlated noise must be equal up to rounding.
    """
    if solved.keys() != needed.keys():
        return False
    columns, expected = (one.get("matrix", {}) for one in (solved, needed))
    same = columns.keys() == expected.keys() and all(
        len(column) == len(expected[name]) and np.allclose(column, expected[name], rtol=ROUNDING, atol=0.0)
        for name, column in columns.items()
    )
    less_clip = solved.get("clip_norm", 0.0) <= needed.get("clip_norm", 0.0) * (1 + ROUNDING)
    noise, least = (one.get("noise_multiplier", 0.0) for one in (solved, needed))
    return bool(same and less_clip and noise * (1 + ROUNDING) >= least)


def privacy_target_of(
    config: Config, specification: MethodSpecification, sent: int, randomness: Randomness | None = None
) -> PrivacyTarget:
    """Return the privacy target of a run; raises ConfigError for settings without an account.

    sent: number of values that a client sends
    """
    seeds = Seeds(root=config.run.seed)
    drawn_from = randomness_of(config.run.randomness, seeds) if randomness is None else randomness
    table = config.privacy
    assert table is not None
    match table:
        case GaussianPrivacy():
            privacy_target = _gaussian_target(config, table, drawn_from)
        case IntegerPrivacy():
            privacy_target = _integer_target(config, table, sent, drawn_from)
        case BernoulliPrivacy():
            privacy_target = _bernoulli_target(config, table, specification, sent, drawn_from)
        case DitheredPrivacy():
            privacy_target = _dithered_target(config, table, drawn_from)
    if table.release == "sum":
        adjacency, tolerance = privacy_target.mechanism.adjacency, choices.tolerated_fraction(config)
        choices.check_aborts(config, adjacency=adjacency, slots=privacy_target.slots, tolerance=tolerance)
    rounds = config.federation.rounds
    if privacy_target.noise_multiplier is not None or privacy_target.accountant != "best":
        epsilons(
            privacy_target.mechanism, delta=privacy_target.delta, rounds=rounds, accountant=privacy_target.accountant
        )  # raises if the mechanism has no account
    return privacy_target


def _make_target(
    config: Config, private: Private, *bound: Stage, z: float | None, clip: float, **more: Any
) -> PrivacyTarget:
    table = config.privacy
    assert table is not None
    return PrivacyTarget(
        private=private,
        bound=bound,
        delta=delta_of_config(config),
        budget=table.epsilon,
        accountant=table.accountant,
        noise_multiplier=z,
        clip_norm=clip,
        **more,
    )


def delta_of_config(config: Config) -> float:
    """Return privacy.delta, or its default."""
    assert config.privacy is not None
    return config.privacy.delta or default_delta(config.federation.clients)


def _gaussian_target(config: Config, table: GaussianPrivacy, randomness: Randomness) -> PrivacyTarget:
    who, server = sampler_of(config), config.server
    noise = GaussianNoise.calibrated(
        table,
        who,
        randomness,
        rounds=config.charged_rounds,
        spare=config.run.spare_rounds,
        delta=delta_of_config(config),
        tolerance=choices.tolerated_fraction(config) or 0.0,
        dropout=config.aggregation.dropout,
        momentum=server.momentum if isinstance(server, StepServer) and server.rule == "step" else 0.0,
        stream=stream_of(config),
    )
    assert table.clip_norm is not None
    if table.certificate == "sampled":
        sampled_run(noise.run(config.federation.rounds, None))  # raises if no sampled certificate covers the run
    least = least_uploads(int(who.expected), choices.tolerated_fraction(config) or 0.0) if noise.charged else None
    clip = Clip(adaptive=noise.adaptive)
    return _make_target(config, noise, clip, z=noise.noise_multiplier, clip=table.clip_norm, least_uploads=least)


def _bernoulli_target(
    config: Config, table: BernoulliPrivacy, specification: MethodSpecification, sent: int, randomness: Randomness
) -> PrivacyTarget:
    """Return the privacy target of Bernoulli samples.

    m trials are m samples of each probability. Their probabilities move together, so the L2 norm of the moves is
    sqrt(m) times that of one trial.
    """
    who = sampler_of(config)
    coins, clip = PrivateCoins.calibrated(
        table,
        who,
        randomness,
        sent=sent,
        edge=choices.edge_of_probabilities(config, specification),
        others=choices.bound_on_other_clients(config),
        reference=None if specification.sends_masks and choices.bound_of_moves(config) is None else 0.5,
        rounds=config.charged_rounds,
        delta=delta_of_config(config),
    )
    moves = ClipMoves(linf=coins.coins.linf_clip, metric=coins.coins.clip_metric, edge=coins.edge)
    return _make_target(config, coins, moves, z=None, clip=clip)


def _dithered_target(config: Config, table: DitheredPrivacy, randomness: Randomness) -> PrivacyTarget:
    rounds, delta = config.charged_rounds, delta_of_config(config)
    noise = DitheredNoise.calibrated(table, sampler_of(config), randomness, rounds=rounds, delta=delta)
    assert table.clip_norm is not None
    return _make_target(config, noise, Clip(), z=noise.noise.noise_multiplier, clip=table.clip_norm)


def _integer_target(config: Config, table: IntegerPrivacy, sent: int, randomness: Randomness) -> PrivacyTarget:
    federation = config.federation
    noise, rows, z = IntegerNoise.calibrated(
        table,
        config.aggregation,
        sampler_of(config),
        randomness,
        sent=sent,
        cohort=federation.cohort,
        canaries=-(-config.audit.canaries // federation.rounds),
        rounds=config.charged_rounds,
        delta=delta_of_config(config),
        tolerance=choices.tolerated_fraction(config) or 0.0,
        seeds=Seeds(root=config.run.seed),
    )
    assert table.clip_norm is not None
    least = noise.noise.shares if noise.charged else None
    return _make_target(config, noise, Clip(), rows, z=z, clip=table.clip_norm, least_uploads=least)
