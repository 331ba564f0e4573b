"""What the configuration of a run promises, built anew from its tables alone: no data, no model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from accounting.ledger import Release
from dpfed.aggregation.ranks import Task
from dpfed.config.tables import Config
from dpfed.methods.catalogue import method
from dpfed.methods.goals import PrivacyGoal, goal_of, slots_of
from dpfed.methods.refusals import refuse
from dpfed.methods.sums import filled_to
from dpfed.participation.canaries import Canaries
from dpfed.seeds import Seeds
from dpfed.server.state import ServerState
from dpfed.stages.maps import Identity
from dpfed.stages.stage import Round

_ROUNDING = 1e-9
"""Relative: by so much a calibration may differ from machine to machine."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Promise:
    """Of a client-level private run whose uploads hold `sent` numbers.

    slots:    the most uploads of a sum; fill: clients that take part in every sum, drawn or not (`dpfed.round.Method`)
    """

    sent: int
    goal: PrivacyGoal
    slots: int | None
    fill: int | None

    def longest_row(self, clip_norm: float) -> float | None:
        """The bound on a row where it goes into the sum, without noise, in the units it is added in; None for coins."""
        if self.goal.noise_multiplier is None:
            return None
        if (rows := self.goal.integer_rows) is not None:
            return math.sqrt(rows.fixed_point.largest_squared_norm(rows.clip_norm))
        return clip_norm

    def release(self, *, clip_norm: float, number: int, uploads: int) -> Release:
        """The ledger line of round `number` (counted from 0) whose sum holds so many uploads."""
        return self.goal.private.release(self._round(clip_norm, number, uploads))

    def _round(self, clip_norm: float, number: int, uploads: int) -> Round:
        """All of a round that a charge may depend on: without clients, and without a model."""
        no_clients, nothing = np.zeros(0, dtype=np.int64), torch.zeros(0)
        state = ServerState(round=number, broadcast=nothing, clip_norm=clip_norm)
        return Round(
            task=Task(state=state, cohort=no_clients, participants=no_clients),
            projection=Identity(size=self.sent),
            reference=nothing,
            uploads=uploads,
        )


def with_more_noise(config: Config, goal: PrivacyGoal, *, noise: float | None, clip: float | None) -> Config | None:
    """The configuration with the noise multiplier, or for coins the clip norm, that a run states, if it was left to the
    account and today's needs less noise; None otherwise, and where they differ by rounding.

    Claim: a run that passes by it has epsilon within its budget by today's account, too. More noise than the budget
    needs comes from an account that was less tight when the run began; less is not taken over, so that it is found.
    """
    table = config.privacy
    assert table is not None
    if goal.noise_multiplier is None:
        more = table.clip_norm is None and clip and clip * (1 + _ROUNDING) < goal.clip_norm
        changed = {"clip_norm": clip}
    else:
        more = table.noise_multiplier is None and noise and noise > goal.noise_multiplier * (1 + _ROUNDING)
        changed = {"noise_multiplier": noise}
    if not more:
        return None
    return config.model_copy(update={"privacy": table.model_copy(update=changed)})


def promise_of(config: Config, sent: int) -> Promise:
    """Through the functions that runs are built with. ConfigError or AccountingError where no run can have had
    this configuration."""
    facts = method(config.method.name)
    refuse(config, facts)
    goal = goal_of(config, facts, sent)
    return Promise(sent=sent, goal=goal, slots=slots_of(goal), fill=filled_to(config, goal))


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


def canaries_present(config: Config, number: int) -> int:
    """Canaries that take part in a round (counted from 1)."""
    return len(canaries_of(config).of_round(number - 1)[0]) if config.audit.canaries else 0
