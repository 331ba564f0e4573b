"""Noise multiplier for an epsilon that is certified by sampling: found on separate seeds, then verified.

Only the verification supports the claim. It tests one rounded noise multiplier. Every verification is counted, charged
to delta and stated by the certificate, as in `certificates`. In secret lanes the matrix of the noise is searched as
well, unless the plan has one. The candidates are powers of prefix sums, because the best matrix for public lanes
reveals too much about the lane.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache

from accounting import disk_cache, require
from accounting.budget.answers import Budget, solve
from accounting.budget.calibrate import least_place
from accounting.budget.certificates import (
    FAILURE,
    MOST_TRIES,
    PILOT,
    SAMPLES,
    STEP,
    Certificate,
    Claim,
    code_hash,
    generator_of,
    likely_bound,
    rounded_up,
    sampled_run,
    seed_of,
)
from accounting.budget.correlated import BandedNoise
from accounting.budget.plan import Plan
from accounting.compose.sampled_schedules import CHUNK, Pair
from accounting.errors import CalibrationError, InvalidParameter
from accounting.mechanisms.samplings.allocation import BallsAndBins
from accounting.rounding import upwards

_POWERS = (0.34, 0.38, 0.42, 0.46, 0.5, 0.54, 0.58, 0.62)
"""Powers of prefix sums that the search for a matrix compares."""
_COARSE, _FINE = 4e-3, 1e-3
"""Relative tolerances of the noise multiplier: for choosing matrix and tilts, and for the result."""
_LEAST = 0.4
"""Smallest candidate for the noise multiplier, as a share of the deterministic noise multiplier."""


@dataclass(frozen=True, kw_only=True)
class CertifiedNoise:
    """Budget of the calibrated noise multiplier, with its deterministic epsilon, and the certificate of the target."""

    budget: Budget
    certificate: Certificate


def certified_noise(plan: Plan, *, epsilon: float, rounds: int, samples: int = SAMPLES) -> CertifiedNoise:
    """Return nearly the smallest noise multiplier at which sampling verifies `epsilon` at the plan's delta.

    Direction of error: upper bound, except with the probability that the certificate states. Errors:
    UnsupportedMechanism for runs other than rests or secret lanes under the server's Gaussian noise alone;
    CalibrationError if no verification succeeds below the deterministic noise multiplier.
    """
    require.positive(epsilon=epsilon)
    require.count(at_least=CHUNK, samples=samples)
    plan, most = _with_matrix(plan, epsilon=epsilon, rounds=require.count(rounds=rounds), samples=samples)
    search = _Search(plan=plan, epsilon=epsilon, rounds=rounds, samples=samples)
    coarse = search.coarse_multiplier(most)
    tilts = search.tilts(coarse, min(4 * PILOT, samples))
    ends = 0.93 * coarse, min(1.04 * coarse, most)
    z = rounded_up(search.smallest_multiplier(tilts, max(samples // 8, PILOT), ends, _FINE))
    for tries in range(1, MOST_TRIES + 1):
        if z >= most:
            break
        found = solve(plan, noise_multiplier=z, rounds=rounds)
        certificate = Claim.of(found).verified(epsilon=epsilon, tilts=tilts, samples=samples, tries=tries)
        if certificate.holds:
            return CertifiedNoise(budget=found, certificate=certificate)
        z = rounded_up(z * STEP)
    raise CalibrationError(
        f"certificate: {samples:,} samples verify epsilon {upwards(epsilon)} for no noise multiplier below "
        f"{upwards(most)}, at which epsilon holds without sampling. Use more samples, or that noise multiplier."
    )


def cached_or_new_certified_noise(plan: Plan, *, epsilon: float, rounds: int, samples: int = SAMPLES) -> CertifiedNoise:
    """Return the result of `certified_noise` from the user's cache; if it is missing, compute and store it."""
    question = {"plan": repr(plan), "epsilon": epsilon, "rounds": rounds, "samples": samples, "code": code_hash()}
    for kept in disk_cache.read("certified-noise", question):
        with contextlib.suppress(TypeError, KeyError, ValueError, InvalidParameter):
            found = solve(plan.changed(**kept["options"]), noise_multiplier=kept["noise_multiplier"], rounds=rounds)
            certificate = Certificate.from_dict(kept["certificate"])
            if Claim.of(found).is_of(certificate) and certificate.deterministic == found.epsilon:
                return CertifiedNoise(budget=found, certificate=certificate)
    made = certified_noise(plan, epsilon=epsilon, rounds=rounds, samples=samples)
    options = {name: value for name, value in made.budget.plan.options.items() if plan.options.get(name) != value}
    answer = {"options": options, "noise_multiplier": made.budget.noise_multiplier}
    disk_cache.write("certified-noise", question, answer | {"certificate": asdict(made.certificate)})
    return made


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Search for noise multipliers at which a verification with `samples` samples is likely to succeed, on separate
    seeds.
    """

    plan: Plan
    epsilon: float
    rounds: int
    samples: int

    def likely_bound_over_delta(self, z: float, tilts: Pair, count: int) -> float:
        """Return the bound that a verification is unlikely to exceed, divided by delta."""
        run = sampled_run(self.plan.run(z, self.rounds))
        setting = {"rounds": self.rounds, "delta": self.plan.delta, "tilts": list(tilts), "count": count}
        seed = seed_of({"noise for": self.epsilon, **setting})  # one for all multipliers and matrices, to compare them
        chunks = run.samples(generator_of(seed), count, tilts)
        return (likely_bound(chunks, run, self.epsilon, tilts, self.samples) + FAILURE) / self.plan.delta

    def tilts(self, z: float, count: int) -> Pair:
        """Return the tilts with the smallest likely bound at a noise multiplier."""
        tilts = sampled_run(self.plan.run(z, self.rounds)).tilts
        return min(tilts, key=lambda one: self.likely_bound_over_delta(z, one, count))

    def coarse_multiplier(self, most: float) -> float:
        """Return approximately the smallest noise multiplier below `most`, with the tilts whose largest weight is
        smallest.
        """
        z = 0.7 * most
        for _ in range(2):
            run = sampled_run(self.plan.run(z, self.rounds))
            weights = {tilts: max(run.largest_weights(self.epsilon, tilts)) for tilts in run.tilts}
            z = self.smallest_multiplier(min(weights, key=weights.__getitem__), PILOT, (_LEAST * most, most), _COARSE)
        return z

    def smallest_multiplier(self, tilts: Pair, count: int, ends: tuple[float, float], tolerance: float) -> float:
        """Return the smallest noise multiplier between the ends whose likely bound is at most delta; the larger end if
        none is.
        """
        return _falling_root(cache(lambda z: math.log(self.likely_bound_over_delta(z, tilts, count))), *ends, tolerance)


def _falling_root(excess: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Return the root of a decreasing function in [low, high], rounded upwards; `high` if the function is positive
    there, `low` if it is never positive.
    """
    if excess(high) > 0:
        return high
    if excess(low) <= 0:
        return low
    while high / low > 1 + tolerance:
        share = excess(low) / (excess(low) - excess(high))
        middle = low * (high / low) ** min(max(share, 0.1), 0.9)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def _with_matrix(plan: Plan, *, epsilon: float, rounds: int, samples: int) -> tuple[Plan, float]:
    """Return the plan with lanes and a matrix, and the noise multiplier at which epsilon holds without sampling."""
    sure = solve(plan, epsilon=epsilon, rounds=rounds, with_lower_bound=False)
    plan, most = sure.plan, float(sure.noise_multiplier or 0.0)
    noise, sampling = plan.mechanism, plan.sampling
    sampled_run(plan.run(most, rounds))  # raises UnsupportedMechanism for a plan that no certificate covers
    chosen = isinstance(noise, BandedNoise) and (noise.factorisation_power or noise.factorisation != "optimised")
    if not isinstance(noise, BandedNoise) or not isinstance(sampling, BallsAndBins) or chosen:
        return plan, most

    @cache
    def error_and_plan(place: int) -> tuple[float, Plan]:
        matrix = replace(noise, factorisation_power=_POWERS[place])
        one = replace(plan, mechanism=matrix)
        search = _Search(plan=one, epsilon=epsilon, rounds=rounds, samples=samples)
        return matrix.prefix_error(one, search.coarse_multiplier(most), rounds), one

    length = len(_POWERS)
    plan = error_and_plan(least_place(lambda place: error_and_plan(place)[0], length, start=length // 2 - 1))[1]
    return plan, float(solve(plan, epsilon=epsilon, rounds=rounds, with_lower_bound=False).noise_multiplier or 0.0)
