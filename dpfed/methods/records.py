"""Privacy target of a run with private records, from [local.record]."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from accounting.budget import calibrate
from accounting.caveats import default_delta
from accounting.compose.accountant import Accountant
from accounting.compose.histories import largest_epsilon
from accounting.ledger import Planned
from accounting.mechanisms import Composed, DiscreteGaussian, Gaussian
from dpfed.clients.records import RecordLevel, gaussian_noise, step_of
from dpfed.clients.training import LocalTraining
from dpfed.config.tables import Config
from dpfed.config.training_tables import Record
from dpfed.errors import ConfigError
from dpfed.mechanisms.records import IntegerRecords, integer_noise
from dpfed.methods.privacy_target import PrivacyTarget
from dpfed.randomness import Randomness

_CHANCE_OF_AN_EARLY_END = 0.01
"""Probability that some client is drawn more often than the calibration of the noise assumed."""


@dataclass(frozen=True, kw_only=True)
class RecordTarget:
    """A record's privacy within its client: delta, and the epsilon that no client may exceed (None: only stated)."""

    delta: float
    budget: float | None
    accountant: Accountant
    noise_multiplier: float
    clip_norm: float
    noise: Gaussian | DiscreteGaussian
    local: LocalTraining
    unit: Literal["record"] = "record"
    table: ClassVar[str] = "local.record"
    advice: ClassVar[str] = "Raise local.record.noise_multiplier"
    schedule: ClassVar[None] = None
    integers: ClassVar[None] = None

    @property
    def records(self) -> int:
        """Number of records of all clients."""
        return self.local.partition.total

    def require_statement(self, rounds: int) -> None:
        """Accept every plan: bounds on records are compared when the statement is made."""

    def planned(self, rounds: int) -> Planned:
        """Return the plan of a run of `rounds` rounds, for its ledger's header: a client of each size in every
        round.
        """
        batches, sizes = self.local.poisson_batches, np.unique(self.local.partition.sizes)
        most = [
            Composed(parts=((step_of(self.noise, batches, int(size)), rounds * batches.count(int(size))),))
            for size in sizes[sizes > 0]
        ]
        delta = None if self.budget is None else self.delta
        return Planned(rounds=rounds, most=tuple(dict.fromkeys(most)), epsilon=self.budget, delta=delta)


AnyTarget = PrivacyTarget | RecordTarget
"""Privacy target of a run, by its unit: a client or a record. Both have the same methods."""


def private_records(config: Config, local: LocalTraining, randomness: Randomness) -> tuple[LocalTraining, RecordTarget]:
    """Return local training with private records, and its privacy target. ConfigError, CalibrationError."""
    table = config.local.record
    assert table is not None
    delta = default_delta(local.partition.total, unit="record") if table.delta is None else table.delta
    z = _noise_multiplier(config, table, local, delta)
    level = RecordLevel(
        clip_norm=table.clip_norm,
        noise_multiplier=z,
        randomness=randomness,
        integers=_integers(table, z, local.course.size, randomness),
    )
    privacy_target = RecordTarget(
        delta=delta,
        budget=table.epsilon,
        accountant=table.accountant,
        noise_multiplier=_stated_multiplier(table, level),
        clip_norm=table.clip_norm,
        noise=level.noise,
        local=local,
    )
    return replace(local, record=level), privacy_target


def _stated_multiplier(table: Record, level: RecordLevel) -> float:
    """Return the noise multiplier in a run's statement: the given one, or that of the noise that is added."""
    if table.noise_multiplier is not None or level.integers is None:
        return level.noise_multiplier
    return level.integers.noise_std / level.clip_norm


def noise_of_step(table: Record, noise_multiplier: float, size: int) -> Gaussian | DiscreteGaussian:
    """Return the noise that [local.record] adds to the sum of a batch of slopes [size], for the accountant."""
    if table.noise == "gaussian":
        return gaussian_noise(noise_multiplier)
    return integer_noise(noise_multiplier, size=size, steps=table.steps)


def _integers(table: Record, noise_multiplier: float, size: int, randomness: Randomness) -> IntegerRecords | None:
    if table.noise == "gaussian":
        return None
    return IntegerRecords.sized(
        noise_multiplier, size=size, clip_norm=table.clip_norm, steps=table.steps, randomness=randomness
    )


def _noise_multiplier(config: Config, table: Record, local: LocalTraining, delta: float) -> float:
    """Return the given noise multiplier, or the smallest with which a client of the worst size is within epsilon."""
    if table.noise_multiplier is not None:
        return table.noise_multiplier
    if table.epsilon is None:
        raise ConfigError("[local.record]: give noise_multiplier, or epsilon to calibrate one for the rounds, or both.")
    batches, rounds = local.poisson_batches, _most_rounds(config)
    sizes = [int(size) for size in np.unique(local.partition.sizes) if size > 0]

    def cost(z: float) -> float:
        noise = noise_of_step(table, z, local.course.size)
        runs = (Composed(parts=((step_of(noise, batches, size), rounds * batches.count(size)),)) for size in sizes)
        return largest_epsilon(runs, delta=delta, accountant=table.accountant)

    return calibrate.smallest(cost, table.epsilon, name="noise multiplier")


def _most_rounds(config: Config) -> int:
    """Return the number of rounds that, with probability 99%, no client exceeds."""
    from scipy.stats import binom

    federation = config.federation
    if federation.sampling == "all":
        return federation.rounds
    tail = _CHANCE_OF_AN_EARLY_END / federation.clients
    return max(1, int(binom.isf(tail, federation.rounds, federation.cohort / federation.clients)))
