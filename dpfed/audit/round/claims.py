"""Claim of one round according to its ledger line, which an audit of uploads tests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accounting.compose import accountant
from accounting.ledger import Release
from accounting.mechanisms import (
    FullParticipation,
    NoisyIntegers,
    Sampling,
    SingleRelease,
    Unsampled,
    noise_of,
    sampling_of,
    unsampled,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel

BernoulliMechanism = BernoulliAggregate | BernoulliChannel


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Mechanism that the ledger records for a round, with its bounds.

    mechanism:   mechanism of the ledger line, with its sampling
    epsilon:     epsilon at `delta` by the accountant's best bound
    bound:       claimed bound on the L2 norm of one client's row, in units of the released vector
    sensitivity: largest distance between noiseless releases of neighbours, in these units: `bound` or twice `bound`
    noise_std:   standard deviation of the noise on the released vector, in these units; 0 for Bernoulli samples
    visible_output: visible output of a round: "sum" or "uploads"
    count_separation:    shift over noise of the released count of clients inside the bound; 0 if no count is released
    """

    mechanism: SingleRelease
    epsilon: float
    delta: float
    bound: float
    sensitivity: float
    noise_std: float
    visible_output: str
    count_separation: float = 0.0

    @property
    def unsampled(self) -> Unsampled:
        """Mechanism without its sampling, for a known cohort."""
        return unsampled(self.mechanism)

    @property
    def sampling(self) -> Sampling:
        """Sampling of the cohort."""
        return sampling_of(self.mechanism)

    @property
    def sampled(self) -> bool:
        """True if the cohort is drawn; False if all clients take part."""
        return not isinstance(self.sampling, FullParticipation)

    @property
    def adjacency(self) -> Adjacency:
        return Adjacency.of(self.mechanism.adjacency)

    @property
    def coins(self) -> BernoulliMechanism | None:
        """Mechanism of Bernoulli samples; None for any other."""
        return self.unsampled if isinstance(self.unsampled, BernoulliMechanism) else None

    @property
    def integers(self) -> NoisyIntegers | None:
        """Mechanism with integer noise; None for any other."""
        return self.unsampled if isinstance(self.unsampled, NoisyIntegers) else None

    @property
    def mu(self) -> float | None:
        """Claimed shift over noise of the vector; None for Bernoulli samples, which are not Gaussian."""
        return None if self.coins else self.sensitivity / self.noise_std

    @property
    def description(self) -> str:
        """Description of the claim: kind of the mechanism, and adjacency."""
        return f"{self.mechanism.to_dict()['kind']}, {self.adjacency} neighbours"


def claim_of(release: Release, *, delta: float, count_separation: float = 0.0) -> Claim:
    """Return the claim of one release. count_separation: as in `Claim`; the count and the vector form one Gaussian
    release.

    The sensitivity, in units of the release, follows from the mechanism alone. For Gaussians it is sqrt(mu^2 -
    count_separation^2) noise_std; for integers the accounted integer bound over the steps of a unit; for Bernoulli
    samples the clip.
    """
    sampled = release.mechanism
    mechanism = unsampled(sampled)
    if gaussian := noise_of(sampled):
        sensitivity = math.sqrt(gaussian.mu**2 - count_separation**2) * release.noise_std
    elif isinstance(mechanism, NoisyIntegers):
        sensitivity = mechanism.sensitivity / math.sqrt(mechanism.variance) * release.noise_std
    else:
        sensitivity = release.clip_norm * mechanism.adjacency.sensitivity_in_clips
    return Claim(
        mechanism=sampled,
        epsilon=accountant.epsilon(sampled, delta=delta),
        delta=delta,
        bound=sensitivity / mechanism.adjacency.sensitivity_in_clips,
        sensitivity=sensitivity,
        noise_std=0.0 if isinstance(mechanism, BernoulliMechanism) else release.noise_std,
        visible_output="uploads" if release.noise_placement == "uploads" else "sum",
        count_separation=count_separation,
    )
