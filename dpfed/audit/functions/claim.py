"""Claim about a function: epsilon and delta, a mechanism of `accounting`, a guarantee, or a whole profile."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from accounting import Guarantee, require
from accounting.arrays import Floats
from accounting.compose import accountant, profiles
from accounting.gaussian import smallest_epsilon
from accounting.mechanisms import (
    FixedSizeSampling,
    Gaussian,
    PoissonSampling,
    Subsampled,
    gaussian_of,
    plain_gaussian,
    sampling_of,
    subsample,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings import shift_in_clips
from dpfed.audit.statistics.score_distribution import NormalMixture
from dpfed.audit.statistics.thresholds import PrivacyProfile
from dpfed.errors import ConfigError

Claimed = object
"""Claim: (epsilon, delta), an `accounting.Guarantee`, a mechanism of `accounting`, or a function of epsilons."""

_WIDEST = 60.0
_PROFILE = "A privacy profile takes a NumPy array of epsilons and gives as many deltas (np.where in place of if)."


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnGaussian:
    """Gaussian on a drawn cohort, by the distribution of its best score: not that of a Gaussian of equal epsilon.

    law: of scores in units of the noise. gaussian, sampling: of the claim
    """

    law: NormalMixture
    gaussian: Gaussian
    sampling: PoissonSampling | FixedSizeSampling
    delta: float

    @property
    def centre(self) -> float:
        """Mean in world 0."""
        return float(self.law.weights[0] @ self.law.means[0])

    @property
    def std(self) -> float:
        """Standard deviation within a world, of noise and cohort together."""
        variances = [w @ (m - w @ m) ** 2 for w, m in zip(self.law.weights, self.law.means, strict=True)]
        return float(np.sqrt(1 + np.mean(variances)))

    @property
    def separation(self) -> float:
        """Distance of the worlds' means, over the standard deviation within."""
        return (float(self.law.weights[1] @ self.law.means[1]) - self.centre) / self.std

    @property
    def epsilon(self) -> float:
        return float(accountant.epsilon(subsample(self.gaussian, self.sampling), delta=self.delta))

    def with_noise_short(self, part: float) -> DrawnGaussian:
        """Return the same mechanism with a noise standard deviation smaller by this part."""
        means = self.law.means[0] / (1 - part), self.law.means[1] / (1 - part)
        noise = replace(self.gaussian, noise_multiplier=self.gaussian.noise_multiplier * (1 - part))
        return replace(self, law=replace(self.law, means=means, own=means), gaussian=noise)


@dataclass(frozen=True, kw_only=True)
class FunctionClaim:
    """Claim as a profile: delta at every real epsilon, for both orders of neighbours.

    epsilon:   at `delta`
    mu:        the shift of a Gaussian with this epsilon at `delta`; exact if `gaussian`
    adjacency: of the neighbours of the claim
    drawn:     the distribution for a claimed Gaussian on a drawn cohort
    """

    words: str
    profile: PrivacyProfile
    epsilon: float
    delta: float
    mu: float
    gaussian: bool
    adjacency: Adjacency
    drawn: DrawnGaussian | None = None

    @property
    def separation(self) -> float:
        """Distance of the means of the best score's worlds, over the standard deviation within, if the claim holds
        exactly."""
        return self.mu if self.drawn is None else self.drawn.separation


def claim_of(claim: Claimed, *, delta: float | None = None, adjacency: str | None = None) -> FunctionClaim:
    """Return the claim as a profile.

    delta: of the stated epsilon, by default 1e-5, or the claim's own; adjacency: by default the claim's own, or
    add-remove.
    Errors: ConfigError for anything that is no claim.
    """
    match claim:
        case Guarantee(mechanism=None):
            return claim_of((claim.epsilon, claim.delta), delta=delta, adjacency=adjacency or claim.adjacency)
        case Guarantee():
            return claim_of(claim.mechanism, delta=delta or claim.delta, adjacency=adjacency)
        case tuple() | list():
            return _point_claim(tuple(claim), delta, adjacency)
    at = require.open_probability(delta=1e-5 if delta is None else delta)
    if hasattr(claim, "to_dict") and not isinstance(claim, type):
        return _mechanism_claim(claim, at, adjacency)
    if callable(claim) and not isinstance(claim, type):
        return _profile_claim(claim, at, adjacency)
    raise ConfigError(
        f"claim={claim!r}: must be (epsilon, delta), a mechanism such as accounting.Gaussian(noise_multiplier=1.0, "
        "adjacency='add-remove'), an accounting.Guarantee, or a function from epsilons to deltas."
    )


def point_profile(epsilon: float, delta: float) -> PrivacyProfile:
    """Return the profile that (epsilon, delta) alone implies.

    It is that of randomised response that shows its input with probability delta. At 0 <= e < epsilon: 1 - (1 -
    delta)(1 + e^e) / (1 + e^epsilon) (Kairouz, Oh, Viswanath 2015); at negative e, by symmetry.
    """

    def above_zero(eps: Floats) -> Floats:
        inside = 1 - (1 - delta) * np.exp(np.logaddexp(0.0, np.minimum(eps, epsilon)) - np.logaddexp(0.0, epsilon))
        return np.where(eps >= epsilon, delta, np.maximum(inside, delta))

    return profiles.Profile(above_zero=above_zero, method="epsilon and delta")


def equivalent_shift(epsilon: float, delta: float) -> float:
    """Return the shift over noise of a Gaussian whose epsilon at `delta` is this one."""
    if not math.isfinite(epsilon):
        return math.inf

    def above(mu: float) -> float:
        return float(smallest_epsilon(delta, mu=mu)) - epsilon

    if above(_WIDEST) <= 0:
        return _WIDEST
    return float(brentq(above, 1e-9, _WIDEST)) if above(1e-9) < 0 else 1e-9


def _point_claim(claim: tuple[object, ...], at: float | None, adjacency: str | None) -> FunctionClaim:
    if len(claim) != 2:
        raise ConfigError(f"claim={claim!r}: must be two numbers, epsilon and delta.")
    if isinstance(claim[1], int | float) and claim[1] == 0:
        raise ConfigError(
            f"claim={claim!r}: delta=0 is not supported. What holds at delta 0 holds at any delta: claim "
            f"({claim[0]!r}, 1e-9)."
        )
    epsilon, delta = require.nonnegative(epsilon=claim[0]), require.open_probability(delta=claim[1])
    if at is not None and at != delta:
        raise ConfigError(f"delta={at!r}: the claim {claim!r} has its own. Leave delta out, or claim at this one.")
    return FunctionClaim(
        words=f"({epsilon!r}, {delta!r})",
        profile=point_profile(epsilon, delta),
        epsilon=epsilon,
        delta=delta,
        mu=equivalent_shift(epsilon, delta),
        gaussian=False,
        adjacency=Adjacency.of(adjacency or "add-remove"),
    )


def _mechanism_claim(claim: Any, delta: float, adjacency: str | None) -> FunctionClaim:
    own = Adjacency.of(claim.adjacency)
    if adjacency is not None and Adjacency.of(adjacency) is not own:
        raise ConfigError(f"adjacency={adjacency!r}: the claimed mechanism is about {own} neighbours.")
    plain = plain_gaussian(claim)
    epsilon = accountant.epsilon(claim, delta=delta)
    return FunctionClaim(
        words=f"{claim.to_dict().get('kind', type(claim).__name__.lower())}, {own} neighbours",
        profile=profiles.profile(claim),
        epsilon=epsilon,
        delta=delta,
        mu=plain.mu if plain is not None else equivalent_shift(epsilon, delta),
        gaussian=plain is not None,
        adjacency=own,
        drawn=_drawn_cohort_scores(claim, delta),
    )


def _drawn_cohort_scores(claim: object, delta: float) -> DrawnGaussian | None:
    """Return the distribution of scores if the client under test sends its most.

    In world 0 it is missing, sends zeros, or the opposite. In a cohort of fixed size another client, which sends the
    opposite, is drawn in its place.
    """
    if not isinstance(claim, Subsampled):
        return None
    gaussian, sampling = gaussian_of(claim), sampling_of(claim)
    if gaussian is None or not isinstance(sampling, PoissonSampling | FixedSizeSampling):
        return None
    shift = shift_in_clips(sampling, gaussian.adjacency) / gaussian.noise_multiplier
    if gaussian.adjacency is Adjacency.REPLACE_ONE:
        places = -shift / 2, shift / 2
    else:
        places = shift / 2 if isinstance(sampling, FixedSizeSampling) else 0.0, shift
    weights = np.array([1 - sampling.probability, sampling.probability])
    means = np.array([0.0, places[0]]), np.array([0.0, places[1]])
    law = NormalMixture(weights=(weights, weights), means=means, own=means)
    return DrawnGaussian(law=law, gaussian=gaussian, sampling=sampling, delta=delta)


def _profile_claim(claim: Callable[[Floats], ArrayLike], delta: float, adjacency: str | None) -> FunctionClaim:
    at = np.linspace(0.0, _WIDEST, 60_001)
    try:
        deltas = np.asarray(claim(at), dtype=float)
    except Exception as error:  # it is the user's
        raise ConfigError(f"claim: fails for an array of epsilons ({error}). {_PROFILE}") from None
    if deltas.shape != at.shape:
        raise ConfigError(f"claim: gave shape {deltas.shape} for {at.size} epsilons. {_PROFILE}")
    below = deltas <= delta
    epsilon = float(at[int(np.argmax(below))]) if below.any() else math.inf
    return FunctionClaim(
        words="a profile",
        profile=claim,
        epsilon=epsilon,
        delta=delta,
        mu=equivalent_shift(epsilon, delta),
        gaussian=False,
        adjacency=Adjacency.of(adjacency or "add-remove"),
    )


def farthest(mu: float) -> float:
    """Return the largest distance of a mu-GDP mechanism's score, in standard deviations within its worlds, over mu.

    A little more than 1, or for large mu much more (of signs, for example). With densities p, q and m = (p + q) / 2,
    the square of a score's gap over its variance under m (that within, and a quarter of the square) is at most the
    integral of (p - q)^2 / m (Cauchy-Schwarz), and no post-processing makes that larger.
    """
    if not 0 < mu < math.inf:
        return math.inf
    at = np.linspace(-10.0, mu + 10.0, 20_001)
    p, q = (np.exp(-((at - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in (0.0, mu))
    m = (p + q) / 2
    total = float(((p - q) ** 2 / np.maximum(m, 1e-300)).sum() * (at[1] - at[0]))
    return math.sqrt(total / max(1 - total / 4, 1e-12)) / mu
