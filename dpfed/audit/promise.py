"""What the configuration of a run promises, built anew from its tables alone: no data, no model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accounting.ledger import Release
from dpfed import compress
from dpfed.config.tables import Config
from dpfed.methods.catalogue import method
from dpfed.methods.goals import PrivacyGoal, goal_of, privacy_of, signs_by_coins, slots_of
from dpfed.methods.sums import check_sums, filled_to, in_integers, integer_upload
from dpfed.participation.canaries import Canaries
from dpfed.participation.sampling import Sampler, sampler
from dpfed.randomness import Randomness, Secure, Simulated
from dpfed.seeds import Seeds
from dpfed.stages.client_level import Privacy
from dpfed.stages.code import Code
from dpfed.stages.integer_upload import IntegerUpload
from dpfed.stages.upload import Upload


@dataclass(frozen=True, kw_only=True, eq=False)
class Promise:
    """Of a client-level private run whose uploads hold `sent` numbers.

    slots: the most uploads of a sum; fill: clients that take part in every sum, drawn or not (`dpfed.parts.Parts`)
    code:  in integers, or not: how rows are added up
    """

    sent: int
    goal: PrivacyGoal
    privacy: Privacy
    slots: int | None
    fill: int | None
    code: Code

    def longest_row(self, clip_norm: float) -> float | None:
        """The bound on a row where it goes into the sum, without noise, in the units it is added in; None for coins."""
        if self.goal.noise_multiplier is None:
            return None
        if isinstance(self.code, IntegerUpload):
            return math.sqrt(self.code.fixed_point.largest_squared_norm(self.code.clip_norm))
        return clip_norm

    def release(self, *, clip_norm: float, round: int, uploads: int) -> Release:
        """The ledger line of a round (counted from 0) whose sum holds so many uploads."""
        release = self.privacy.release(clip_norm, round, self.sent, uploads)
        assert release is not None
        return release


def promise_of(config: Config, sent: int) -> Promise:
    """Through the goal functions that runs are built with. ConfigError or AccountingError where no run can have had
    this configuration."""
    check_sums(config)
    seeds = Seeds(root=config.run.seed)
    randomness: Randomness = Secure() if config.run.randomness == "secure" else Simulated(seeds=seeds)
    goal = goal_of(config, method(config.method.name), sent)
    code = _code(config, goal, sent, randomness, seeds)
    return Promise(
        sent=sent,
        goal=goal,
        privacy=privacy_of(config, goal, sampler_of(config), randomness, code),
        slots=slots_of(goal),
        fill=filled_to(config, goal),
        code=code,
    )


def sampler_of(config: Config) -> Sampler:
    """Who takes part in a round."""
    federation = config.federation
    return sampler(federation.sampling, clients=federation.clients, cohort=federation.cohort)


def canaries_of(config: Config) -> Canaries:
    """Which canary has which round, and its coin, as the run's seed says. Their directions take the model's size,
    which is not known here."""
    return Canaries(
        count=config.audit.canaries,
        first=config.federation.clients,
        rounds=config.federation.rounds,
        size=1,
        seeds=Seeds(root=config.run.seed),
    )


def canaries_present(config: Config, round: int) -> int:
    """Canaries that take part in a round (counted from 1)."""
    return len(canaries_of(config).of_round(round - 1)[0]) if config.audit.canaries else 0


def _code(config: Config, goal: PrivacyGoal, sent: int, randomness: Randomness, seeds: Seeds) -> Code:
    """Integers where they are sent, since rounding lengthens rows; which other code it is does not bear on privacy."""
    chosen = method(config.method.name)
    tossed = chosen.coins or signs_by_coins(config, chosen)
    if in_integers(config) and not tossed:
        return integer_upload(config, goal, sent, randomness, seeds)
    return Upload(scheme=compress.get("dense"), seeds=seeds)
