"""What the ledger would say of one round: the claim that an audit of uploads puts to the test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting import accountant, profiles
from accounting.coins import BernoulliAggregate, BernoulliChannel
from accounting.integer_noise import DiscreteGaussian, Skellam
from accounting.ledger import Release
from accounting.mechanisms import Gaussian, SingleRelease
from accounting.profiles import Profile
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]
Coins = BernoulliAggregate | BernoulliChannel


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The mechanism that is written for a round, and what follows from it.

    mechanism:   without sampling
    profile:     delta at every epsilon, both orders of neighbours
    epsilon:     at `delta`, by the accountant's best bound
    bound:       the claimed bound on one client's row, L2, in the units of the released vector
    sensitivity: how far apart neighbours' noiseless releases may be, in those units: bound or twice that
    noise_std:   of the released vector in those units; 0 for coins
    seen:        "sum" or "uploads"
    """

    mechanism: SingleRelease
    profile: Profile
    epsilon: float
    delta: float
    bound: float
    sensitivity: float
    noise_std: float
    seen: str

    @property
    def coins(self) -> Coins | None:
        """The mechanism, if its noise is coins."""
        return self.mechanism if isinstance(self.mechanism, Coins) else None

    @property
    def mu(self) -> float | None:
        """Claimed shift over noise; None for coins, which are no Gaussian."""
        return None if self.coins else self.sensitivity / self.noise_std

    @property
    def is_gaussian(self) -> bool:
        """Whether the claim is exactly mu-Gaussian DP, so that a shift above mu refutes it."""
        return isinstance(self.mechanism, Gaussian)

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as the ledger writes it."""
        return self.mechanism.to_dict()


def claim_of(release: Release, *, delta: float) -> Claim:
    """The claim of one release without sampling.

    Sensitivity in the units of the release, from the mechanism alone: mu noise_std for Gaussians, the accounted integer
    bound over steps for integers, the clip for coins. ConfigError for a sampled mechanism: two worlds with and without
    a client need the client to take part.
    """
    mechanism = release.mechanism
    if isinstance(mechanism, Gaussian):
        sensitivity = mechanism.mu * release.noise_std
    elif isinstance(mechanism, DiscreteGaussian | Skellam):
        sensitivity = mechanism.sensitivity / math.sqrt(mechanism.variance) * release.noise_std
    elif isinstance(mechanism, Coins):
        sensitivity = release.clip_norm * mechanism.adjacency.sensitivity_in_clips
    else:
        raise ConfigError(
            f"federation.sampling with {type(mechanism).__name__}: the audit of an upload is about a client that takes "
            "part. Use federation.sampling='all'; samplers are tested by their cohort sizes."
        )
    return Claim(
        mechanism=mechanism,
        profile=profiles.profile(mechanism),
        epsilon=accountant.epsilon(mechanism, delta=delta),
        delta=delta,
        bound=sensitivity / mechanism.adjacency.sensitivity_in_clips,
        sensitivity=sensitivity,
        noise_std=0.0 if isinstance(mechanism, Coins) else release.noise_std,
        seen="uploads" if release.noise_placement == "uploads" else "sum",
    )


def trade_off(profile: Profile, false_positive_rate: Floats) -> Floats:
    """The least false negative rate that a profile allows: sup over eps of 1 - delta(eps) - e^eps FPR, at least 0."""
    eps = np.linspace(-12.0, 12.0, 2401)
    lines = 1 - np.asarray(profile(eps)) - np.exp(eps) * np.asarray(false_positive_rate, dtype=float)[..., None]
    return np.asarray(np.maximum(lines.max(axis=-1), 0.0))
