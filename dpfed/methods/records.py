"""Privacy target of a run whose unit is a record, from [local.record]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from accounting.budget import calibrate
from accounting.caveats import default_delta
from accounting.compose.histories import largest_epsilon
from accounting.ledger import Planned
from accounting.mechanisms import Composed, Unsampled
from dpfed.clients.training import LocalTraining
from dpfed.config.tables import Config
from dpfed.config.training_tables import RecordTable
from dpfed.errors import ConfigError
from dpfed.mechanisms.records import (
    GaussianRecords,
    IntegerRecords,
    gaussian_noise,
    integer_noise,
    step_release,
)
from dpfed.mechanisms.target import PrivacyTarget, Target
from dpfed.methods.privacy_target import ROUNDING
from dpfed.randomness import Randomness

_CHANCE_OF_AN_EARLY_END = 0.01
"""Probability that at least one client is drawn more often than the calibration of the noise assumes."""


@dataclass(frozen=True, kw_only=True)
class RecordTarget(Target):
    """Privacy target of a run whose unit is a record.

    record: noise of the steps
    solved: calibrated values for the header of the ledger
    """

    record: GaussianRecords | IntegerRecords
    local: LocalTraining
    solved: Mapping[str, Any]
    unit: Literal["record"] = "record"
    table: ClassVar[str] = "local.record"
    advice: ClassVar[str] = "Raise local.record.noise_multiplier"
    schedule: ClassVar[None] = None
    integer_rows: ClassVar[None] = None

    @property
    def mechanism(self) -> Unsampled:
        """Noise of a step on the sum of a whole batch."""
        return self.record.noise

    def require_consistent_bounds(self, rounds: int) -> None:
        """Accept every plan; for records, upper and lower bounds are compared when epsilon is stated."""

    def planned_releases(self, rounds: int, spare: int = 0) -> Planned:
        """Return the plan of a run of `rounds` rounds and `spare` repeated ones, for the header of its ledger.

        The plan contains one client of each size that takes part in every round and every repetition.
        """
        most = tuple(dict.fromkeys(_clients_of_every_size(self.mechanism, self.local, rounds + spare)))
        return self.plan(rounds, spare, most)


AnyTarget = PrivacyTarget | RecordTarget
"""Privacy target of a run whose unit is a client or a record."""


def private_records(config: Config, local: LocalTraining, randomness: Randomness) -> tuple[LocalTraining, RecordTarget]:
    """Return local training with private records, and its privacy target.

    Raises ConfigError if neither noise nor epsilon is given, CalibrationError if no noise multiplier reaches epsilon.
    """
    table = config.local.record
    assert table is not None
    delta = default_delta(local.partition.total, unit="record") if table.delta is None else table.delta
    z = _noise_multiplier(config, table, local, delta)
    record: GaussianRecords | IntegerRecords
    if table.noise == "gaussian":
        record = GaussianRecords(clip_norm=table.clip_norm, noise=gaussian_noise(z), randomness=randomness)
    else:
        record = IntegerRecords.for_rows(
            z, size=local.course.size, clip_norm=table.clip_norm, steps=table.steps, randomness=randomness
        )
    privacy_target = RecordTarget(
        delta=delta,
        budget=table.epsilon,
        accountant=table.accountant,
        noise_multiplier=table.noise_multiplier or record.noise_multiplier,
        clip_norm=table.clip_norm,
        record=record,
        local=local,
        solved={"noise_multiplier": z},
    )
    return replace(local, record=record), privacy_target


def noise_of_step(table: RecordTable, noise_multiplier: float, size: int) -> Unsampled:
    """Return the accountant's mechanism for the noise on a batch's sum of gradients, each of `size` numbers."""
    if table.noise == "gaussian":
        return gaussian_noise(noise_multiplier)
    return integer_noise(noise_multiplier, size=size, steps=table.steps)


def _noise_multiplier(config: Config, table: RecordTable, local: LocalTraining, delta: float) -> float:
    """Return the given noise multiplier, or the smallest one with which clients of every size stay within epsilon."""
    if table.noise_multiplier is not None:
        return table.noise_multiplier
    if "noise_multiplier" in table.solved:
        return float(table.solved["noise_multiplier"])
    if table.epsilon is None:
        raise ConfigError("[local.record]: give noise_multiplier, or epsilon to calibrate one for the rounds, or both.")
    rounds = _most_rounds_of_a_client(config)

    def epsilon_of_worst_client(z: float) -> float:
        runs = _clients_of_every_size(noise_of_step(table, z, local.course.size), local, rounds)
        return largest_epsilon(runs, delta=delta, accountant=table.accountant)

    return calibrate.smallest(epsilon_of_worst_client, table.epsilon, name="noise multiplier")


def _clients_of_every_size(noise: Unsampled, local: LocalTraining, rounds: int) -> Iterator[Composed]:
    """Yield the composition of `rounds` rounds of one client of each number of records."""
    batches = local.poisson_batches
    for size in np.unique(local.partition.sizes[local.partition.sizes > 0]).tolist():
        yield Composed(parts=((step_release(noise, batches, size), rounds * batches.count(size)),))


def has_enough_record_noise(config: Config, plan: Planned, delta: float) -> bool:
    """Return True if the planned steps of every client are within epsilon, in as many rounds as noise is calibrated
    for."""
    table = config.local.record
    if table is None or table.epsilon is None or table.noise_multiplier is not None or plan.rounds is None:
        return True
    whole, most = plan.rounds + plan.spare, _most_rounds_of_a_client(config)
    runs = (
        Composed(parts=tuple((step, count // whole * most) for step, count in one.parts))
        for one in plan.largest_charges
    )
    return largest_epsilon(runs, delta=delta, accountant=table.accountant) <= table.epsilon * (1 + ROUNDING)


def _most_rounds_of_a_client(config: Config) -> int:
    """Return a number of rounds, repeated ones included, that with probability 99% no client exceeds."""
    from scipy.stats import binom

    federation, rounds = config.federation, config.charged_rounds
    if federation.sampling == "all":
        return rounds
    tail = _CHANCE_OF_AN_EARLY_END / federation.clients
    return max(1, int(binom.isf(tail, rounds, federation.cohort / federation.clients)))
