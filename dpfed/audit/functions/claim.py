"""Claim about a function: epsilon and delta, a mechanism of `accounting`, a guarantee, or a whole profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
    sampling_of,
    subsample,
    unsampled,
)
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings.independent import shift_in_clips
from dpfed.audit.statistics.power import NormalMixture
from dpfed.audit.statistics.rejection import PrivacyProfile
from dpfed.errors import ConfigError

Claimed = object
"""Claim: (epsilon, delta), an `accounting.Guarantee`, a mechanism of `accounting`, or a function of epsilons."""

_WIDEST, _ROUNDING = 60.0, 1e-9
_PROFILE = (
    "A privacy profile maps a NumPy array of epsilons to an array of deltas of equal shape (np.where in place of if)."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnGaussian:
    """Claimed Gaussian mechanism on a drawn cohort, and the distribution of its best score.

    That distribution is not the one of a Gaussian mechanism of equal epsilon.
    law:       distribution of scores in units of the noise's standard deviation
    gaussian:  claimed mechanism without its sampling; sampling: claimed sampling
    """

    law: NormalMixture
    gaussian: Gaussian
    sampling: PoissonSampling | FixedSizeSampling
    delta: float

    @property
    def centre(self) -> float:
        """Mean of the score in world 0."""
        return float(self.law.weights[0] @ self.law.means[0])

    @property
    def std(self) -> float:
        """Standard deviation of the score within a world, from noise and cohort together."""
        variances = [w @ (m - w @ m) ** 2 for w, m in zip(self.law.weights, self.law.means, strict=True)]
        return float(np.sqrt(1 + np.mean(variances)))

    @property
    def separation(self) -> float:
        """Distance between the mean scores of the two worlds, over the standard deviation within a world."""
        return (float(self.law.weights[1] @ self.law.means[1]) - self.centre) / self.std

    @property
    def epsilon(self) -> float:
        return float(accountant.epsilon(subsample(self.gaussian, self.sampling), delta=self.delta))

    def with_noise_short(self, part: float) -> DrawnGaussian:
        """Return this mechanism with a noise standard deviation that is smaller by `part`."""
        means = self.law.means[0] / (1 - part), self.law.means[1] / (1 - part)
        noise = replace(self.gaussian, noise_multiplier=self.gaussian.noise_multiplier * (1 - part))
        return replace(self, law=replace(self.law, means=means, own=means), gaussian=noise)


@dataclass(frozen=True, kw_only=True)
class FunctionClaim:
    """Claim as a profile: delta at every real epsilon, for both orders of neighbours.

    epsilon:   claimed epsilon at `delta`
    mu:        shift of a Gaussian mechanism with this epsilon at `delta`
    is_gaussian: True if the claim is exactly mu-Gaussian DP
    adjacency: adjacency of the claim
    drawn_cohort: a claimed Gaussian mechanism on a drawn cohort; None for any other claim
    """

    description: str
    profile: PrivacyProfile
    epsilon: float
    delta: float
    mu: float
    is_gaussian: bool
    adjacency: Adjacency
    drawn_cohort: DrawnGaussian | None = None

    @property
    def separation(self) -> float:
        """Distance between the worlds' means of the best score, over its std within a world, if the claim is tight."""
        return self.mu if self.drawn_cohort is None else self.drawn_cohort.separation


def claim_of(claim: Claimed, *, delta: float | None = None, adjacency: str | None = None) -> FunctionClaim:
    """Return the claim as a profile.

    delta: delta of the stated epsilon; by default the claim's delta, or 1e-5 if it has none. adjacency: by default the
    claim's adjacency, or add-remove if it has none.
    Errors: ConfigError for an object that is none of the kinds of `Claimed`.
    """
    match claim:
        case Guarantee(mechanism=None):
            return claim_of((claim.epsilon, claim.delta), delta=delta, adjacency=adjacency or claim.adjacency)
        case Guarantee():
            made = claim_of(claim.mechanism, delta=claim.delta if delta is None else delta, adjacency=adjacency)
            if made.delta != claim.delta or made.epsilon <= claim.epsilon * (1 + _ROUNDING):
                return made
            return claim_of(replace(claim, mechanism=None), delta=delta, adjacency=adjacency)  # a budget below the plan
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


def overridden_claim(beside: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings `given`, with the claim that their epsilon, delta, noise_multiplier or adjacency state.

    beside: settings of `@claim` on the function, which these override.
    """
    found = dict(given)
    epsilon, multiplier = found.pop("epsilon", None), found.pop("noise_multiplier", None)
    adjacency = found.get("adjacency")
    if adjacency is None and (multiplier is not None or epsilon is not None) and "claim" in beside:
        adjacency = found["adjacency"] = str(claim_of(beside["claim"], adjacency=beside.get("adjacency")).adjacency)
    if multiplier is not None:
        found["claim"] = Gaussian(noise_multiplier=multiplier, adjacency=Adjacency.of(adjacency or "add-remove"))
    elif epsilon is not None:
        found["delta"] = found.get("delta") or beside.get("delta") or 1e-5
        found["claim"] = (epsilon, found["delta"])
    return found


def point_profile(epsilon: float, delta: float) -> PrivacyProfile:
    """Return the largest profile of mechanisms that are (epsilon, delta)-DP.

    It is the profile of randomised response that reveals its input with probability delta. At 0 <= e < epsilon it is
    1 - (1 - delta)(1 + e^e) / (1 + e^epsilon) (Kairouz, Oh, Viswanath 2015), from epsilon on delta; negative e follow
    by symmetry.
    """

    def above_zero(eps: Floats) -> Floats:
        inside = 1 - (1 - delta) * np.exp(np.logaddexp(0.0, np.minimum(eps, epsilon)) - np.logaddexp(0.0, epsilon))
        return np.where(eps >= epsilon, delta, np.maximum(inside, delta))

    return profiles.Profile(above_zero=above_zero, method="epsilon and delta")


def equivalent_shift(epsilon: float, delta: float) -> float:
    """Return the mu (shift over noise) of the Gaussian mechanism that has this epsilon at `delta`."""
    if not math.isfinite(epsilon):
        return math.inf

    def excess_epsilon(mu: float) -> float:
        return float(smallest_epsilon(delta, mu=mu)) - epsilon

    if excess_epsilon(_WIDEST) <= 0:
        return _WIDEST
    return float(brentq(excess_epsilon, 1e-9, _WIDEST)) if excess_epsilon(1e-9) < 0 else 1e-9


def _point_claim(claim: tuple[object, ...], at: float | None, adjacency: str | None) -> FunctionClaim:
    if len(claim) != 2:
        raise ConfigError(f"claim={claim!r}: must be two numbers, epsilon and delta.")
    if isinstance(claim[1], int | float) and claim[1] == 0:
        raise ConfigError(
            f"claim={claim!r}: delta=0 is not supported. A claim at delta 0 holds at any delta: claim "
            f"({claim[0]!r}, 1e-9)."
        )
    epsilon, delta = require.nonnegative(epsilon=claim[0]), require.open_probability(delta=claim[1])
    if at is not None and at != delta:
        raise ConfigError(
            f"delta={at!r}: the claim {claim!r} states another delta. Leave delta out, or claim an epsilon at {at!r}."
        )
    return _claim_of_profile(f"({epsilon!r}, {delta!r})", point_profile(epsilon, delta), epsilon, delta, adjacency)


def _claim_of_profile(
    description: str, profile: PrivacyProfile, epsilon: float, delta: float, adjacency: str | None
) -> FunctionClaim:
    return FunctionClaim(
        description=description,
        profile=profile,
        epsilon=epsilon,
        delta=delta,
        mu=equivalent_shift(epsilon, delta),
        is_gaussian=False,
        adjacency=Adjacency.of(adjacency or "add-remove"),
    )


def _mechanism_claim(claim: Any, delta: float, adjacency: str | None) -> FunctionClaim:
    own = Adjacency.of(claim.adjacency)
    if adjacency is not None and Adjacency.of(adjacency) is not own:
        raise ConfigError(f"adjacency={adjacency!r}: the claimed mechanism has adjacency {own}. Leave adjacency out.")
    plain = gaussian_of(claim) if unsampled(claim) is claim else None
    epsilon = accountant.epsilon(claim, delta=delta)
    return FunctionClaim(
        description=f"{claim.to_dict().get('kind', type(claim).__name__.lower())}, {own} neighbours",
        profile=profiles.profile(claim),
        epsilon=epsilon,
        delta=delta,
        mu=plain.mu if plain is not None else equivalent_shift(epsilon, delta),
        is_gaussian=plain is not None,
        adjacency=own,
        drawn_cohort=_drawn_cohort_scores(claim, delta),
    )


def _drawn_cohort_scores(claim: object, delta: float) -> DrawnGaussian | None:
    """Return the distribution of scores if the client under test sends an update of the clip norm.

    In world 0, by adjacency, it is missing, sends zeros, or sends the opposite update. A cohort of fixed size without
    it contains another client in its place, which sends the opposite update.
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
        places = shift / 2 if sampling.fixed_size else 0.0, shift
    weights = np.array([1 - sampling.probability, sampling.probability])
    means = np.array([0.0, places[0]]), np.array([0.0, places[1]])
    law = NormalMixture(weights=(weights, weights), means=means, own=means)
    return DrawnGaussian(law=law, gaussian=gaussian, sampling=sampling, delta=delta)


def _profile_claim(claim: Callable[[Floats], ArrayLike], delta: float, adjacency: str | None) -> FunctionClaim:
    at = np.linspace(0.0, _WIDEST, 60_001)
    try:
        deltas = np.asarray(claim(at), dtype=float)
    except Exception as error:  # the user's function may raise anything
        raise ConfigError(f"claim: fails for an array of epsilons ({error}). {_PROFILE}") from None
    if deltas.shape != at.shape:
        raise ConfigError(f"claim: gave shape {deltas.shape} for {at.size} epsilons. {_PROFILE}")
    below = deltas <= delta
    epsilon = float(at[int(np.argmax(below))]) if below.any() else math.inf
    return _claim_of_profile("a profile", claim, epsilon, delta, adjacency)


def largest_gap_ratio(mu: float) -> float:
    """Return an upper bound on s / mu, where s is the separation of any score of a mu-GDP mechanism.

    s is the distance between the means of the two worlds over the standard deviation within a world. The bound is a
    little above 1, and far above 1 for large mu (which scores that are signs reach, for example). Let p, q be the
    densities, m = (p + q) / 2. A score's squared gap over its variance under m (variance within a world plus a quarter
    of the squared gap) is at most the integral of (p - q)^2 / m (Cauchy-Schwarz). No post-processing makes the integral
    larger.
    """
    if not 0 < mu < math.inf:
        return math.inf
    at = np.linspace(-10.0, mu + 10.0, 20_001)
    p, q = (np.exp(-((at - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in (0.0, mu))
    m = (p + q) / 2
    total = float(((p - q) ** 2 / np.maximum(m, 1e-300)).sum() * (at[1] - at[0]))
    return math.sqrt(total / max(1 - total / 4, 1e-12)) / mu
