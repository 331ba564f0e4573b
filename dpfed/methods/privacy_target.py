"""Privacy target of a run: the mechanism that is drawn, charged and audited, delta, and the privacy budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from accounting.compose.running import epsilons
from dpfed.config.privacy_tables import BernoulliPrivacy, DitheredPrivacy, GaussianPrivacy, IntegerPrivacy
from dpfed.config.tables import Config
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.dithered import DitheredNoise
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integers import IntegerNoise
from dpfed.mechanisms.target import NoiseSettings
from dpfed.mechanisms.target import PrivacyTarget as PrivacyTarget
from dpfed.methods import choices
from dpfed.methods.specification import MethodSpecification
from dpfed.randomness import Randomness, randomness_of
from dpfed.seeds import Seeds

ROUNDING = 1e-8
"""Relative difference allowed between calibrations on different machines. Calibrated noise exceeds the smallest noise
within epsilon by more (`accounting.budget.calibrate.TOLERANCE`)."""


_STAGES: dict[type, Any] = {
    GaussianPrivacy: GaussianNoise,
    IntegerPrivacy: IntegerNoise,
    BernoulliPrivacy: PrivateCoins,
    DitheredPrivacy: DitheredNoise,
}
"""Stage of each table [privacy]."""


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
    table, tolerance = config.privacy, choices.tolerated_fraction(config)
    assert table is not None
    settings = NoiseSettings(
        config=config,
        sent=sent,
        randomness=randomness or randomness_of(config.run.randomness, Seeds(root=config.run.seed)),
        tolerance=tolerance or 0.0,
        masks=choices.sends_mask_probabilities(config, specification),
    )
    privacy_target: PrivacyTarget = _STAGES[type(table)].calibrated(table, settings)
    mechanism, accountant = privacy_target.mechanism, privacy_target.accountant
    if table.release == "sum":
        adjacency, slots = mechanism.adjacency, privacy_target.slots
        choices.check_aborts(config, adjacency=adjacency, slots=slots, tolerance=tolerance)
    rounds = config.federation.rounds
    if privacy_target.noise_multiplier is not None or accountant != "best":
        # raises if the mechanism has no account
        epsilons(mechanism, delta=privacy_target.delta, rounds=rounds, accountant=accountant)
    return privacy_target
