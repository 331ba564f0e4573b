"""What a private run promises: its mechanism, which draws, is charged and is read by audits; delta; and a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from accounting import budget
from accounting.budget import NoiseSchedule, Plan, integers
from accounting.caveats import default_delta
from accounting.compose.accountant import Accountant, guarantee
from accounting.compose.over_rounds import epsilons
from accounting.compose.twins import overflow
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.integers.fixed_point import NoiseLaw
from accounting.ledger import Planned
from accounting.mechanisms import (
    Composed,
    DiscreteGaussian,
    GaussianShares,
    SingleRelease,
    Skellam,
    sampling_of,
    subsample,
    unsampled,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.bernoulli import BernoulliAggregate
from accounting.mechanisms.slots import default_slots
from accounting.rounding import upwards
from dpfed.aggregation.summed import least_uploads
from dpfed.config.privacy_tables import CoinPrivacy, DitheredPrivacy, GaussianPrivacy, IntegerPrivacy
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods.aborts import check_aborts, participants_follow_clients
from dpfed.methods.choices import coins_of_moves, edge_of, others_of, seen, tolerance_of
from dpfed.methods.facts import MethodFacts
from dpfed.participation.of_run import allocated, sampler_of, stream_of
from dpfed.randomness import Randomness, randomness_of
from dpfed.seeds import Seeds
from dpfed.stages.clip import Clip
from dpfed.stages.clip_moves import ClipMoves
from dpfed.stages.coins import PrivateCoins
from dpfed.stages.dithered import DitheredNoise
from dpfed.stages.gaussian_noise import GaussianNoise
from dpfed.stages.integer_noise import IntegerNoise
from dpfed.stages.integers import Integers
from dpfed.stages.stage import Private, Stage


@dataclass(frozen=True, kw_only=True)
class IntegerTerms:
    """Noise on sums of integers: as drawn, of `uploads` clients or of the server.

    share_variance: of every draw, in squared steps
    scale:          integer steps to the clip norm
    slots:          how many uploads a sum holds whatever was drawn; None: those that were drawn
    """

    kind: NoiseLaw
    placement: Literal["server", "clients"]
    uploads: int
    share_variance: int
    scale: float
    slots: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivacyGoal:
    """The mechanism of a run's rounds, delta, and the epsilon it may not exceed (None: only stated).

    private: the stage that draws the noise and is charged for it; bound: the stages right before it, which its account
             rests on. noise_multiplier: None for coins. least: the fewest uploads that a round may end with, where
             rounds are charged with what arrived (`varies`)
    """

    private: Private
    bound: tuple[Stage, ...]
    delta: float
    budget: float | None
    accountant: Accountant
    noise_multiplier: float | None
    clip_norm: float
    least: int | None = None
    integers: IntegerTerms | None = None
    unit: Literal["client"] = "client"

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Bound and noise, for rows of a chain."""
        return *self.bound, self.private

    @property
    def varies(self) -> bool:
        return self.least is not None

    @property
    def mechanism(self) -> SingleRelease:
        """Of a round, at the most that it may be charged."""
        return self.private.mechanism(self.least)

    @property
    def schedule(self) -> NoiseSchedule | None:
        return getattr(self.private, "schedule", None)

    @property
    def integer_rows(self) -> Integers | None:
        return next((stage for stage in self.bound if isinstance(stage, Integers)), None)

    def of_round(self, number: int) -> SingleRelease:
        """The mechanism of round `number`, counted from 0, at the most that it may be charged."""
        if isinstance(self.private, GaussianNoise) and self.private.schedule is not None:
            return self.private.in_round(number)
        return self.mechanism

    def run(self, rounds: int) -> Composed:
        """The first `rounds` rounds, at the most that they may be charged."""
        if self.schedule is None:
            return Composed(parts=((self.mechanism, rounds),))
        return Composed.of([self.of_round(number) for number in range(rounds)])

    def is_like(self, other: PrivacyGoal) -> bool:
        """Whether a round of the one is a round of the other."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("mechanism", "delta", "budget", "accountant", "noise_multiplier", "clip_norm", "least")
        )

    def planned(self, rounds: int) -> Planned:
        """The plan of a run of so many rounds, for the header of its ledger."""
        delta = None if self.budget is None else self.delta
        return Planned(rounds=rounds, most=(self.run(rounds),), epsilon=self.budget, delta=delta)

    def require_statement(self, rounds: int) -> None:
        """Raise ContradictoryBounds if the planned rounds have a lower bound above their epsilon: none may be run."""
        with suppress(
            InvalidParameter, UnsupportedMechanism
        ):  # more rounds than have an account, of which fewer are run
            guarantee(self.run(rounds), delta=self.delta, accountant=self.accountant)


def goal_of(config: Config, facts: MethodFacts, sent: int, randomness: Randomness | None = None) -> PrivacyGoal:
    """What the run promises; ConfigError for choices without an account."""
    seeds = Seeds(root=config.run.seed)
    drawn_from = randomness_of(config.run.randomness, seeds) if randomness is None else randomness
    goal = _MADE[type(config.privacy)](config, sent, drawn_from)
    if seen(config) == "sum":
        adjacency, tolerance = goal.mechanism.adjacency, tolerance_of(config)
        check_aborts(config, adjacency=adjacency, slots=slots_of(goal), tolerance=tolerance)
    rounds, lost = config.federation.rounds, overflow(goal.mechanism)
    if rounds * lost >= goal.delta:
        raise ConfigError(
            f"privacy.slots: more clients are drawn than fit with probability {upwards(lost)} a round, over {rounds} "
            f"rounds more than delta={upwards(goal.delta)} allows. Use more slots (none given: as many as delta "
            "wants), or fewer rounds."
        )
    if goal.noise_multiplier is not None or goal.accountant != "best":
        epsilons(goal.mechanism, delta=goal.delta, rounds=rounds, accountant=goal.accountant)  # refuses what has none
    return goal


def _goal(config: Config, private: Private, *bound: Stage, z: float | None, clip: float, **more: Any) -> PrivacyGoal:
    table = config.privacy
    assert table is not None
    return PrivacyGoal(
        private=private,
        bound=bound,
        delta=delta_of(config),
        budget=table.epsilon,
        accountant=table.accountant,
        noise_multiplier=z,
        clip_norm=clip,
        **more,
    )


def delta_of(config: Config) -> float:
    """Return privacy.delta, or its default."""
    assert config.privacy is not None
    return config.privacy.delta or default_delta(config.federation.clients)


def _gaussian(config: Config, sent: int, randomness: Randomness) -> PrivacyGoal:
    table, who = config.privacy, sampler_of(config)
    assert isinstance(table, GaussianPrivacy)
    noise = GaussianNoise.calibrated(
        table,
        who,
        randomness,
        rounds=config.federation.rounds,
        delta=delta_of(config),
        tolerance=tolerance_of(config) or 0.0,
        dropout=config.aggregation.dropout,
        momentum=config.server.momentum if config.server.rule == "step" else 0.0,
        stream=stream_of(config),
    )
    assert table.clip_norm is not None
    least = least_uploads(int(who.expected), tolerance_of(config) or 0.0) if noise.charged else None
    clip = Clip(adaptive=noise.adaptive)
    return _goal(config, noise, clip, z=noise.noise_multiplier, clip=table.clip_norm, least=least)


def _coins(config: Config, sent: int, randomness: Randomness) -> PrivacyGoal:
    """m trials are m coins for each number that is sent, whose probabilities move together: sqrt(m) times as far."""
    table, who = config.privacy, sampler_of(config)
    assert isinstance(table, CoinPrivacy)
    coins, clip = PrivateCoins.calibrated(
        table,
        who,
        randomness,
        sent=sent,
        edge=edge_of(config),
        others=others_of(config),
        reference=None if config.method.name == "fedpm" and not coins_of_moves(config) else 0.5,
        rounds=config.federation.rounds,
        delta=delta_of(config),
    )
    moves = ClipMoves(linf=coins.coins.linf_clip, metric=coins.coins.clip_metric, edge=coins.edge)
    return _goal(config, coins, moves, z=None, clip=clip)


def _dithered(config: Config, sent: int, randomness: Randomness) -> PrivacyGoal:
    """Noise in shares of the uploads: as many as are in every sum, or under Poisson sampling as `slots` says."""
    table, who, rounds, delta = config.privacy, sampler_of(config), config.federation.rounds, delta_of(config)
    assert isinstance(table, DitheredPrivacy)
    default = Adjacency.REPLACE_ONE if config.federation.sampling == "fixed" else Adjacency.ZERO_OUT
    adjacency = Adjacency.of(table.adjacency or default)
    shares, lost = int(who.expected), 0.0
    if config.federation.sampling == "poisson":
        cohort, clients = config.federation.cohort, config.federation.clients
        shares, lost = default_slots(cohort, clients, delta=delta, adjacency=adjacency, slots=table.slots)
    # At what of delta is left: 1e-5 of it a round is charged for cohorts that are too large.
    plain = GaussianNoise(noise_multiplier=1.0, adjacency=adjacency, sampler=who, randomness=randomness)
    left = max(delta - rounds * lost, delta / 2)
    z = table.noise_multiplier or plain.smallest_multiplier(table, rounds=rounds, delta=left)
    noise = GaussianShares(noise_multiplier=z, adjacency=adjacency, shares=shares, overflow=lost)
    made = DitheredNoise(noise=noise, sampling=who.law, divided_by=who.expected, randomness=randomness)
    assert table.clip_norm is not None
    return _goal(config, made, Clip(), z=z, clip=table.clip_norm)


def _integers(config: Config, sent: int, randomness: Randomness) -> PrivacyGoal:
    """Still by `accounting.Plan`, whose integer rounds size shares, slots and steps."""
    from dpfed.methods.sums import integers_of

    table, federation, sums = config.privacy, config.federation, config.aggregation
    assert isinstance(table, IntegerPrivacy)
    charged, tolerance = table.missing_shares == "charged", tolerance_of(config) or 0.0
    plan = Plan(
        clients=federation.clients,
        cohort=federation.clients if federation.sampling == "all" else federation.cohort,
        dimension=sent,
        mechanism=table.noise,
        sampling=federation.sampling,
        adjacency=Adjacency(table.adjacency) if table.adjacency else None,
        delta=table.delta,
        scale=sums.steps,
        rotate=sums.rotation,
        placement=table.placement,
        dropout=0.0 if charged or table.placement == "server" else tolerance,
        slots=table.slots,
        secure=sums.kind != "plain",
        wrap_probability=sums.wrap_probability,
        **_schedule(config),
    )
    made = plan.mechanism
    assert isinstance(made, integers.IntegerNoise)  # `table.noise` names it
    uploads = made.uploads(plan)
    slots = uploads if made.is_filled(plan) or table.placement == "clients" else None
    if table.adjacency is None and made.secure and participants_follow_clients(config, slots):
        kept = Adjacency.ZERO_OUT if plan.adjacency is Adjacency.ADD_REMOVE else plan.adjacency
        plan = replace(plan, adjacency=kept)
    z = table.noise_multiplier
    if z is None:
        assert table.epsilon is not None
        sized = replace(plan, mechanism=replace(made, dropout=sums.dropout)) if charged else plan
        z = budget.noise_multiplier(sized, epsilon=table.epsilon, rounds=federation.rounds, accountant=table.accountant)
        z /= math.sqrt(1 - sums.dropout) if charged else 1.0
    least = least_uploads(uploads, tolerance) if charged else None
    noise, who = made.release(plan, z), sampler_of(config)
    assert isinstance(noise, DiscreteGaussian | Skellam)
    terms = IntegerTerms(
        kind=table.noise,
        placement=table.placement,
        uploads=uploads,
        share_variance=int(noise.share_variance),
        scale=float(made.scale or 0),
        slots=slots,
    )
    assert table.clip_norm is not None
    rows = integers_of(config, table.clip_norm, terms, sent, randomness, Seeds(root=config.run.seed))
    drawn = noise if least is None else replace(noise, shares=least)
    private = IntegerNoise(
        noise=drawn,
        sampling=sampling_of(subsample(drawn, who.law)),
        placement=table.placement,
        randomness=randomness,
        steps_per_unit=rows.fixed_point.steps_per_unit,
        detail={
            "divided_by": who.expected,
            "noise": table.noise,
            "steps_per_unit": rows.fixed_point.steps_per_unit,
            "integers": rows.fixed_point.padded,
            "bits": rows.bits,
        },
        charged=charged,
    )
    return _goal(config, private, Clip(), rows, z=z, clip=table.clip_norm, least=least, integers=terms)


_MADE: dict[type, Callable[[Config, int, Randomness], PrivacyGoal]] = {
    GaussianPrivacy: _gaussian,
    IntegerPrivacy: _integers,
    CoinPrivacy: _coins,
    DitheredPrivacy: _dithered,
}


def slots_of(goal: PrivacyGoal) -> int | None:
    """The fixed number of uploads that the account of a round rests on, if it does."""
    inside = unsampled(goal.mechanism)
    if isinstance(inside, BernoulliAggregate):
        return inside.cohort
    if isinstance(inside, GaussianShares):
        return inside.shares
    return goal.integers.slots if goal.integers is not None else None


def _schedule(config: Config) -> dict[str, Any]:
    """What a plan needs to know of a participation schedule."""
    federation = config.federation
    if federation.sampling == "allocation":
        return {"participations": allocated(federation.clients, federation.cohort, federation.rounds)}
    return {"separation": federation.separation} if federation.sampling == "min-separation" else {}
