"""Releases that a run's configuration promises, computed from its tables only, without data and model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from accounting.ledger import Release
from accounting.mechanisms import (
    CappedPoissonSampling,
    Composed,
    PoissonSampling,
    SingleRelease,
    sampling_of,
    subsample,
    unsampled,
)
from accounting.mechanisms.samplings.independent import earlier_overflow
from dpfed.aggregation.ranks import Task
from dpfed.config.tables import Config
from dpfed.mechanisms.integers import IntegerNoise
from dpfed.methods.catalogue import method_specification
from dpfed.methods.privacy_target import PrivacyTarget, privacy_target_of
from dpfed.methods.refusals import refuse
from dpfed.methods.sums import clients_in_filled_sum
from dpfed.server.rules import ServerState
from dpfed.stages.project import Identity
from dpfed.stages.stage import Round

_ROUNDING = 1e-9
"""Relative difference allowed between calibrations on different machines."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Promise:
    """Privacy target of a client-level run whose uploads have `sent` numbers.

    fill: number of uploads to which padding clients fill up every sum (`dpfed.round.Method`); None without padding.
    charges_overflow: True for ledgers up to version 0.3, which charge Poisson sampling and, in delta, the probability
    of exceeding a cap.
    """

    sent: int
    privacy_target: PrivacyTarget
    fill: int | None
    charges_overflow: bool = False

    def longest_row(self, clip_norm: float) -> float | None:
        """Return the bound on the norm of a row without noise, in units of the sum; None for Bernoulli samples."""
        if self.privacy_target.noise_multiplier is None:
            return None
        charged: float = getattr(unsampled(self.privacy_target.mechanism), "l2_bound", clip_norm)
        return charged

    def release(self, *, clip_norm: float, number: int, uploads: int) -> Release:
        """Return the ledger line of round `number` (counted from 0) for a sum of `uploads` uploads."""
        release = self.privacy_target.private.release(self._round_without_clients(clip_norm, number, uploads))
        return replace(release, mechanism=self._as_charged(release.mechanism))

    @property
    def charged_target(self) -> PrivacyTarget:
        """Privacy target; for sums of integers, with the mechanism as the ledger's version charges it."""
        noise, mechanism = self.privacy_target.private, self._as_charged(self.privacy_target.mechanism)
        if not self.charges_overflow or not isinstance(noise, IntegerNoise):
            return self.privacy_target
        described: Any = unsampled(mechanism)
        return replace(self.privacy_target, private=replace(noise, noise=described, sampling=sampling_of(mechanism)))

    def run(self, rounds: int) -> Composed:
        """Return the composition of the first `rounds` rounds, each with its largest possible charge."""
        run = self.privacy_target.mechanism_of_run(rounds)
        return replace(run, parts=tuple((self._as_charged(part), count) for part, count in run.parts))

    def _as_charged(self, release: SingleRelease) -> SingleRelease:
        """Return the release as the ledger's version charges it."""
        sampling, noise = sampling_of(release), unsampled(release)
        if not self.charges_overflow or not isinstance(sampling, CappedPoissonSampling):
            return release
        q = sampling.probability
        overflow = earlier_overflow(sampling.cap, q, sampling.clients, release.adjacency)
        return subsample(replace(noise, overflow=overflow), PoissonSampling(probability=q))  # type: ignore[type-var]

    def _round_without_clients(self, clip_norm: float, number: int, uploads: int) -> Round:
        """Return a round without clients and without a model, since the charge depends on neither."""
        no_clients, nothing = np.zeros(0, dtype=np.int64), torch.zeros(0)
        state = ServerState(round=number, broadcast=nothing, clip_norm=clip_norm)
        return Round(
            task=Task(state=state, cohort=no_clients, participants=no_clients),
            projection=Identity(size=self.sent),
            reference=nothing,
            uploads=uploads,
        )


def config_with_stated_noise(
    config: Config, privacy_target: PrivacyTarget, *, noise: float | None, clip: float | None
) -> Config | None:
    """Return the configuration with the run's stated noise multiplier, if this version would calibrate less noise.

    For Bernoulli samples, the clip norm takes the place of the noise multiplier. Returns None if the configuration
    fixes the value, and for differences by rounding. A run may have more noise than necessary, since an earlier version
    with a looser accountant calibrated it. Less noise is not accepted, so that checks find it.
    Claim: a run that passes with this configuration has epsilon within its budget by this version's accountant, too.
    """
    table = config.privacy
    assert table is not None
    if privacy_target.noise_multiplier is None:
        more = table.clip_norm is None and clip and clip * (1 + _ROUNDING) < privacy_target.clip_norm
        changed = {"clip_norm": clip}
    else:
        more = table.noise_multiplier is None and noise and noise > privacy_target.noise_multiplier * (1 + _ROUNDING)
        changed = {"noise_multiplier": noise}
    if not more:
        return None
    return config.model_copy(update={"privacy": table.model_copy(update=changed)})


def promise_of(config: Config, sent: int) -> Promise:
    """Return the promise of a configuration, computed as a run computes its privacy target.

    Errors: ConfigError or AccountingError if no run can have this configuration.
    """
    facts = method_specification(config.method.name)
    refuse(config, facts)
    privacy_target = privacy_target_of(config, facts, sent)
    return Promise(sent=sent, privacy_target=privacy_target, fill=clients_in_filled_sum(config, privacy_target))
