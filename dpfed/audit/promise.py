"""What the configuration of a run promises, built anew from its tables alone: no data, no model."""

from __future__ import annotations

from dataclasses import dataclass

from accounting.ledger import Release
from dpfed import compress
from dpfed.build.goals import PrivacyGoal, goal_of, privacy_of, signs_by_coins, slots_of
from dpfed.build.sums import check_sums, filled_to, in_integers, integer_upload
from dpfed.canaries import Canaries
from dpfed.compress.code import Code
from dpfed.compress.upload import Upload
from dpfed.config import Config
from dpfed.methods import method
from dpfed.privacy.client_level import Privacy
from dpfed.randomness import Randomness, Secure, Simulated
from dpfed.sampling import Sampler, sampler
from dpfed.seeds import Seeds


@dataclass(frozen=True, kw_only=True, eq=False)
class Promise:
    """Of a client-level private run whose uploads hold `sent` numbers.

    slots: the most uploads of a sum; fill: clients that take part in every sum, drawn or not (`dpfed.parts.Parts`)
    """

    sent: int
    goal: PrivacyGoal
    privacy: Privacy
    slots: int | None
    fill: int | None

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
    return Promise(
        sent=sent,
        goal=goal,
        privacy=privacy_of(config, goal, sampler_of(config), randomness, _code(config, goal, sent, randomness, seeds)),
        slots=slots_of(goal),
        fill=filled_to(config, goal),
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
