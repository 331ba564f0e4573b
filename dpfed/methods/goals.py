"""What a private run promises: the mechanism of its rounds, from the configuration."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from accounting import budget
from accounting.budget import NoiseSchedule, Plan
from accounting.budget.integers import IntegerNoise
from accounting.compose.accountant import Accountant, guarantee
from accounting.compose.over_rounds import epsilons
from accounting.compose.twins import overflow
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.integers.fixed_point import NoiseLaw
from accounting.ledger import Planned
from accounting.mechanisms import (
    Composed,
    CorrelatedRounds,
    Gaussian,
    GaussianShares,
    SingleRelease,
    Subsampled,
    schedule_of,
    subsample,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.bernoulli import BernoulliAggregate
from accounting.mechanisms.slots import default_slots
from accounting.rounding import upwards
from dpfed.aggregation.summed import least_uploads
from dpfed.config.privacy_tables import PrivacyTable
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods.aborts import check_aborts, participants_follow_clients
from dpfed.methods.choices import coins_of_moves, edge_of, integer_noise, others_of, seen, signs_are_coins, tolerance_of
from dpfed.methods.facts import MethodFacts
from dpfed.participation.of_run import allocated, sampler_of, stream_of


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


@dataclass(frozen=True, kw_only=True)
class PrivacyGoal:
    """What the run promises: the mechanism of a round, delta, and the epsilon it may not exceed (None: only stated).

    noise_multiplier: of Gaussian noise, None for coins
    schedule:         factors of the noise multiplier over the rounds; `mechanism` is then that of the least noise
    varies:           rounds are charged with what arrived; `mechanism` is then that of `least` uploads, the fewest that
                      a round may end with
    """

    mechanism: SingleRelease
    delta: float
    budget: float | None
    accountant: Accountant
    noise_multiplier: float | None
    clip_norm: float
    varies: bool = False
    least: int | None = None
    integers: IntegerTerms | None = None
    schedule: NoiseSchedule | None = None
    unit: Literal["client"] = "client"

    def of_round(self, number: int) -> SingleRelease:
        """The mechanism of round `number`, counted from 0, at the most that it may be charged."""
        if self.schedule is None:
            return self.mechanism
        assert self.noise_multiplier is not None
        noise = Gaussian(
            noise_multiplier=self.noise_multiplier * self.schedule.factor(number), adjacency=self.mechanism.adjacency
        )
        return replace(self.mechanism, mechanism=noise) if isinstance(self.mechanism, Subsampled) else noise

    def run(self, rounds: int) -> Composed:
        """The first `rounds` rounds, at the most that they may be charged."""
        if self.schedule is None:
            return Composed(parts=((self.mechanism, rounds),))
        return Composed.of([self.of_round(number) for number in range(rounds)])

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


def goal_of(config: Config, facts: MethodFacts, sent: int) -> PrivacyGoal:
    """What the run promises; ConfigError for choices without an account."""
    goal = _goal_of(config, facts, sent)
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


def _goal_of(config: Config, facts: MethodFacts, sent: int) -> PrivacyGoal:
    table = config.privacy
    assert table is not None
    if facts.coins or signs_are_coins(config, facts):
        return _coin_goal(config, table, sent, signs=not facts.coins or coins_of_moves(config))
    kind = integer_noise(config)
    if kind is not None:
        return _integer_goal(config, table, sent, kind)
    return _dithered_goal(config, table) if facts.dithered else _gaussian_goal(config, table)


def _gaussian_goal(config: Config, table: PrivacyTable) -> PrivacyGoal:
    clip = _clip_norm(table)
    charged = table.missing_shares == "charged"
    plan = _plan(config, table)
    z = table.noise_multiplier or _calibrated(plan, table, config.federation.rounds)
    worst, least, schedule = z, None, None
    if plan.noise_schedule is not None:
        schedule = NoiseSchedule(factors=plan.noise_schedule, rounds=config.federation.rounds)
        worst = z * schedule.least
    if charged:
        uploads = plan.cohort
        z *= 1.0 if table.noise_multiplier else (1 - config.aggregation.dropout) ** -0.5
        least = least_uploads(uploads, tolerance_of(config) or 0.0)
        worst = z * math.sqrt(least / uploads)
    return PrivacyGoal(
        mechanism=_as_drawn(_round(plan, worst, config.federation.rounds), config),
        delta=plan.delta,
        budget=table.epsilon,
        accountant=table.accountant,
        noise_multiplier=z,
        clip_norm=clip,
        varies=charged,
        least=least,
        schedule=schedule,
    )


def _dithered_goal(config: Config, table: PrivacyTable) -> PrivacyGoal:
    """Noise in shares of the uploads: as many as are in every sum, or under Poisson sampling as `slots` says."""
    plan, rounds = _plan(config, table), config.federation.rounds
    if plan.adjacency is Adjacency.ADD_REMOVE and table.adjacency is None:
        plan = replace(plan, adjacency=Adjacency.ZERO_OUT)
    delta, (shares, overflow) = plan.delta, (plan.cohort, 0.0)
    if plan.sampling.name == "poisson":
        shares, overflow = default_slots(
            plan.cohort, plan.clients, delta=delta, adjacency=plan.adjacency, slots=table.slots
        )
    z = table.noise_multiplier
    if z is None:  # at what of delta is left: 1e-5 of it a round is charged for cohorts that are too large
        z = _calibrated(replace(plan, delta=max(delta - rounds * overflow, delta / 2)), table, rounds)
    noise = GaussianShares(noise_multiplier=z, adjacency=plan.adjacency, shares=shares, overflow=overflow)
    return PrivacyGoal(
        mechanism=_as_drawn(subsample(noise, plan.sampler), config),
        delta=delta,
        budget=table.epsilon,
        accountant=table.accountant,
        noise_multiplier=z,
        clip_norm=_clip_norm(table),
    )


def _round(plan: Plan, noise_multiplier: float, rounds: int) -> SingleRelease:
    """One of so many rounds; of correlated noise, of the matrix that is made for them."""
    return plan.round(noise_multiplier, rounds)


def _integer_goal(config: Config, table: PrivacyTable, sent: int, kind: NoiseLaw) -> PrivacyGoal:
    federation, sums = config.federation, config.aggregation
    charged, tolerance = table.missing_shares == "charged", tolerance_of(config) or 0.0
    plan = Plan(
        clients=federation.clients,
        cohort=federation.clients if federation.sampling == "all" else federation.cohort,
        dimension=sent,
        mechanism=kind,
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
    assert isinstance(made, IntegerNoise)  # `kind` names it
    uploads = made.uploads(plan)
    slots = uploads if made.is_filled(plan) or table.placement == "clients" else None
    if table.adjacency is None and made.secure and participants_follow_clients(config, slots):
        plan = plan.changed(adjacency=_kept_in_number(plan.adjacency))
    z = table.noise_multiplier
    if z is None:
        z = _calibrated(
            replace(plan, mechanism=replace(made, dropout=sums.dropout)) if charged else plan, table, federation.rounds
        )
        z /= math.sqrt(1 - sums.dropout) if charged else 1.0
    noise = made.release(plan, z)
    least = least_uploads(uploads, tolerance) if charged else None
    return PrivacyGoal(
        mechanism=_as_drawn(subsample(noise if least is None else replace(noise, shares=least), plan.sampler), config),
        delta=plan.delta,
        budget=table.epsilon,
        accountant=table.accountant,
        noise_multiplier=z,
        clip_norm=_clip_norm(table),
        varies=charged,
        least=least,
        integers=IntegerTerms(
            kind=kind,
            placement=table.placement,
            uploads=uploads,
            share_variance=int(noise.share_variance),
            scale=float(made.scale or 0),
            slots=slots,
        ),
    )


def _kept_in_number(adjacency: Adjacency | None) -> Adjacency | None:
    """The adjacency under which neighbours have equally many clients, where none is asked for; it costs the same."""
    return Adjacency.ZERO_OUT if adjacency is Adjacency.ADD_REMOVE else adjacency


def slots_of(goal: PrivacyGoal) -> int | None:
    """The fixed number of uploads that the account of a round rests on, if it does."""
    release = goal.mechanism
    inside = release.mechanism if isinstance(release, Subsampled) else release
    if isinstance(inside, BernoulliAggregate):
        return inside.cohort
    if isinstance(inside, GaussianShares):
        return inside.shares
    return goal.integers.slots if goal.integers is not None else None


def _clip_norm(table: PrivacyTable) -> float:
    assert table.clip_norm is not None  # refused
    return table.clip_norm


def _calibrated(plan: Plan, table: PrivacyTable, rounds: int) -> float:
    """The smallest noise multiplier for the epsilon that is asked for."""
    assert table.epsilon is not None  # refused
    return budget.noise_multiplier(plan, epsilon=table.epsilon, rounds=rounds, accountant=table.accountant)


def _coin_goal(config: Config, table: PrivacyTable, sent: int, *, signs: bool) -> PrivacyGoal:
    """Who sends single uploads is seen (`_sampling`). m trials are m coins for each number that is sent, whose
    probabilities move together: sqrt(m) times as far."""
    federation, released, root = config.federation, seen(config), math.sqrt(table.trials)
    plan = Plan(
        clients=federation.clients,
        cohort=federation.clients if federation.sampling == "all" else federation.cohort,
        dimension=table.trials * sent,
        edge=edge_of(config),
        mechanism="bernoulli-aggregate" if released == "sum" else "bernoulli-channel",
        sampling=_sampling(config),
        adjacency=Adjacency(table.adjacency) if table.adjacency else None,
        delta=table.delta,
        clip_norm=root * table.clip_norm if table.clip_norm else (None if table.linf_clip else 1.0),
        linf_clip=table.linf_clip,
        noise_std=table.noise_std or 0.0,
        slots=table.slots,
        clip_metric=table.clip_metric,
        others=others_of(config) if released == "sum" else "anywhere",
        reference=0.5 if signs else None,
    )
    clip = table.clip_norm
    if clip is None:
        assert table.epsilon is not None  # refused
        found = budget.clip_norm(plan, epsilon=table.epsilon, rounds=federation.rounds, accountant=table.accountant)
        clip = found / root
    return PrivacyGoal(
        mechanism=_as_drawn(plan.changed(clip_norm=root * clip).round(), config),
        delta=plan.delta,
        budget=table.epsilon,
        accountant=table.accountant,
        noise_multiplier=None,
        clip_norm=clip,
    )


def _plan(config: Config, table: PrivacyTable) -> Plan:
    federation = config.federation
    all_take_part = _sampling(config) == "all"
    # A client more or less would be a share of noise, or an upload, more or less.
    add_remove_fails = seen(config) == "uploads" or (table.placement == "clients" and federation.sampling == "all")
    default = Adjacency.ZERO_OUT if add_remove_fails else None
    return Plan(
        clients=federation.clients,
        cohort=federation.clients if all_take_part else federation.cohort,
        sampling="all" if all_take_part else federation.sampling,
        adjacency=Adjacency(table.adjacency) if table.adjacency else default,
        delta=table.delta,
        noise_schedule=table.noise_schedule,
        **({} if all_take_part else _schedule(config)),
        **_correlation(config, table),
    )


def _sampling(config: Config) -> str:
    """What the account may rest on. Who sends single uploads is seen: they are charged to every client in every round,
    or by the order of the clients where that is public."""
    name = config.federation.sampling
    return name if seen(config) == "sum" or name == "cyclic" else "all"


def _as_drawn(release: SingleRelease, config: Config) -> SingleRelease:
    """The same, with the name of the stream that a schedule is drawn from."""
    if not isinstance(release, Subsampled) or schedule_of(release) is None:
        return release
    if isinstance(release.sampling, CorrelatedRounds):
        return replace(release, sampling=replace(release.sampling, stream=stream_of(config)))
    return replace(release, sampling=sampler_of(config).law)


def _correlation(config: Config, table: PrivacyTable) -> dict[str, Any]:
    """What a plan needs to know of noise that is taken back. The model is a sum of steps along the mean update."""
    if table.bands is None and table.buffers is None:
        return {}
    steps = config.server.rule == "step"
    return {
        "noise": "banded" if table.bands is not None else "blt",
        "bands": table.bands,
        "buffers": table.buffers,
        "factorisation": table.factorisation,
        "server_momentum": config.server.momentum if steps else 0.0,
    }


def _schedule(config: Config) -> dict[str, Any]:
    """What a plan needs to know of a participation schedule."""
    federation = config.federation
    if federation.sampling == "allocation":
        return {"participations": allocated(federation.clients, federation.cohort, federation.rounds)}
    return {"separation": federation.separation} if federation.sampling == "min-separation" else {}
