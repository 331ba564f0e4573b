"""Certificates by sampling: an epsilon below the deterministic bound that holds except with a stated probability.

They exist for rests (`min-separation`) and for secret lanes of balls-and-bins, under the server's Gaussian noise. A
certificate covers one (epsilon, delta) of one run. It does not cover another delta, or other releases on the same
clients. Epsilon is calibrated on separate seeds and then verified, on a seed that is a hash of everything that
determines the bound. Every verification adds `FAILURE` to the charge on delta. `certified_noise` searches for the noise
multiplier of an epsilon in the same way.
"""

import contextlib
import hashlib
import json
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from accounting import disk_cache, require
from accounting.budget.answers import Budget
from accounting.compose import sampled_schedules
from accounting.compose.sampled_schedules import CHUNK, Chunk, Pair, ScheduleUnderNoise, Sums, sampled_sums
from accounting.errors import CalibrationError, InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import (
    BallsAndBins,
    Composed,
    Mechanism,
    MinSeparation,
    gaussian_of,
    parts_of,
    schedule_of,
    unsampled,
)
from accounting.roots import bisected_bracket
from accounting.rounding import upwards

FAILURE = 1e-12
"""Probability that one verification is wrong; it is added to delta for each verification."""
SAMPLES = 8_000_000
PILOT = 50_000
"""Number of samples for choosing the tilts."""
_MARGIN = 2.0
"""Margin of the calibrated bound in standard errors."""
STEP = 1.002
"""Factor between the epsilons, or noise multipliers, of consecutive verifications."""
MOST_TRIES = 5
_LARGEST_LOG = 600.0


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Statement of (epsilon, delta)-DP that is wrong with probability at most `failure`, which is a part of delta.

    failure: failure probability of all verifications together (`description` has that of one); tries: number of
    verifications; bounds: upper bounds on both hockey-stick divergences at epsilon, without the failure; seed: hash of
    the `description` of the successful verification
    deterministic: epsilon that holds without sampling"""

    epsilon: float
    delta: float
    failure: float
    tries: int
    samples: int
    bounds: Pair
    seed: str
    deterministic: float
    description: dict[str, Any]

    def __str__(self) -> str:
        tries = "one verification" if self.tries == 1 else f"{self.tries} verifications"
        return (
            f"epsilon {upwards(self.epsilon)} at delta {upwards(self.delta)}, certified by {self.samples:,} samples: "
            f"wrong with probability {self.failure:.0e}, which is a part of delta ({tries}, seed {self.seed[:16]}). "
            f"Without sampling: {upwards(self.deterministic)}"
        )

    @property
    def holds(self) -> bool:
        """True if each bound plus the failure probability is at most delta; False if a bound is nan."""
        return all(bound + self.failure <= self.delta for bound in self.bounds)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return self.description | {name: value for name, value in asdict(self).items() if name != "description"}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Certificate":
        """Return the certificate of a record that `to_dict` wrote. Errors: TypeError, KeyError or ValueError for any
        other record.
        """
        numbers = {name: float(record[name]) for name in ("epsilon", "delta", "failure", "deterministic")}
        if not all(map(math.isfinite, numbers.values())):
            raise ValueError("numbers that are not finite")
        return cls(
            **numbers,
            tries=int(record["tries"]),
            samples=int(record["samples"]),
            bounds=(float(record["bounds"][0]), float(record["bounds"][1])),
            seed=str(record["seed"]),
            description=dict(record["description"]),
        )


def certified(claim: "Claim", *, samples: int = SAMPLES) -> Certificate:
    """Return the certificate of a claim: the smallest epsilon that sampling verifies at its delta.

    Direction of error: upper bound, except with probability `Certificate.failure`.
    Errors: UnsupportedMechanism for runs other than rests or secret lanes under the server's Gaussian noise alone;
    CalibrationError if no verification succeeds.
    """
    require.count(at_least=CHUNK, samples=samples)
    tilts, epsilon = _calibrated_tilts_and_epsilon(claim, samples)
    for tries in range(1, MOST_TRIES + 1):
        if epsilon >= claim.deterministic:
            break
        one = claim.verified(epsilon=epsilon, tilts=tilts, samples=samples, tries=tries)
        if one.holds:
            return one
        epsilon = rounded_up(epsilon * STEP)
    raise CalibrationError(
        f"certificate: {samples:,} samples verify nothing below the deterministic epsilon "
        f"{upwards(claim.deterministic)} at delta {upwards(claim.delta)}. Use more samples, or the deterministic bound."
    )


def cached_or_new_certificate(claim: "Claim", *, samples: int = SAMPLES) -> Certificate:
    """Return the certificate of a claim from the user's cache; if it is missing, compute and store it.

    Audits call `Claim.recomputes` instead, which never reads the cache.
    """
    question = {"about": run_description(claim.run), "delta": claim.delta, "samples": samples, "code": code_hash()}
    question |= {"mechanism": claim.mechanism.to_dict(), "deterministic": claim.deterministic}
    for found in disk_cache.read("certificates", question):
        with contextlib.suppress(TypeError, KeyError, ValueError):
            return Certificate.from_dict(found)
    made = certified(claim, samples=samples)
    disk_cache.write("certificates", question, asdict(made))
    return made


@cache
def code_hash() -> str:
    """Return a hash of the source code and the numpy version that determine a certificate."""
    modules = (sampled_schedules, sys.modules[__name__])
    sources = [Path(module.__file__ or "").read_bytes() for module in modules]
    return hashlib.sha256(b"\0".join([*sources, np.__version__.encode()])).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Mechanism and delta that certificates refer to, with the epsilon that holds without sampling."""

    mechanism: Composed
    delta: float
    deterministic: float

    @classmethod
    def of(cls, budget: Budget) -> "Claim":
        """Return the claim of a budget."""
        return cls(mechanism=budget.mechanism, delta=budget.plan.delta, deterministic=budget.epsilon)

    @property
    def run(self) -> ScheduleUnderNoise:
        """Sampled model of the rounds. Errors: UnsupportedMechanism, InvalidParameter if no certificate covers them."""
        return sampled_run(self.mechanism)

    def verified(self, *, epsilon: float, tilts: Pair, samples: int, tries: int) -> Certificate:
        """Return the result of one verification at this epsilon. It is a certificate only if it `holds`."""
        run = self.run
        description = description_of(self, epsilon=epsilon, tilts=tilts, samples=samples, tries=tries)
        seed = seed_of(description)
        sums = sampled_sums(run, generator_of(seed), samples, epsilon, tilts)
        first, second = sums.bounds(run.largest_weights(epsilon, tilts), FAILURE)
        return Certificate(
            epsilon=epsilon,
            delta=self.delta,
            failure=tries * FAILURE,
            tries=tries,
            samples=sums.count,
            bounds=(float(first), float(second)),
            seed=seed,
            deterministic=self.deterministic,
            description=description,
        )

    def is_of(self, certificate: Certificate) -> bool:
        """Return True if a certificate belongs to this mechanism and delta, and `certified` may have made it.

        A certificate from a file may state samples, tilts or tries for which repeating the sampling has no end or no
        result.
        """
        question = _question_of(certificate)
        described, samples = description_of(self, **question), question["samples"]
        possible = (
            require.is_whole(samples)
            and certificate.samples == -(-samples // CHUNK) * CHUNK > 0
            and question["tilts"] in self.run.tilts
            and 1 <= certificate.tries <= MOST_TRIES
            and 0 <= certificate.epsilon <= certificate.deterministic
        )
        known = described == certificate.description and certificate.seed == seed_of(described)
        return possible and known and certificate.delta == self.delta

    def recomputes(self, certificate: Certificate) -> bool:
        """Return True if repeating the sampling that the certificate describes confirms its statement.

        The bounds may differ by rounding, because processors differ.
        """
        again = self.verified(**_question_of(certificate))
        stated = np.array([*certificate.bounds, certificate.deterministic])
        near = np.allclose([*again.bounds, again.deterministic], stated, rtol=1e-9, atol=0.0)
        same = replace(again, bounds=certificate.bounds, deterministic=certificate.deterministic) == certificate
        return again.holds and bool(near) and same


def _question_of(certificate: Certificate) -> dict[str, Any]:
    stated = certificate.description
    tilts = stated["tilts"][0], stated["tilts"][1]
    return {"epsilon": certificate.epsilon, "tilts": tilts, "samples": stated["samples"], "tries": certificate.tries}


def description_of(claim: Claim, *, epsilon: float, tilts: Pair, samples: int, tries: int) -> dict[str, Any]:
    """Return a JSON object of everything that determines the bound; its hash is the seed."""
    found = {
        "mechanism": claim.mechanism.to_dict(),
        "epsilon": epsilon,
        "delta": claim.delta,
        "failure": FAILURE,
        "try": tries,
        "samples": samples,
        "chunk": CHUNK,
        "tilts": list(tilts),
        "order": claim.run.order,
        "generator": f"numpy {np.__version__}, Philox",
        "rounds": claim.run.rounds,
    }
    read: dict[str, object] = json.loads(json.dumps(found))
    return read


def seed_of(description: dict[str, object]) -> str:
    """Return the SHA-256 of a description, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def generator_of(seed: str) -> np.random.Generator:
    """Return the random generator of a seed."""
    return np.random.Generator(np.random.Philox(key=int(seed[:32], 16)))


def sampled_run(mechanism: Mechanism) -> ScheduleUnderNoise:
    """Return the sampled model of a run. Errors: UnsupportedMechanism for a run that no certificate covers;
    InvalidParameter for noise so small that likelihood ratios overflow.
    """
    ((release, rounds), *more) = parts_of(mechanism)
    schedule, noise = schedule_of(release), gaussian_of(release)
    if more:
        raise UnsupportedMechanism(
            "certificate='sampled' with other releases on the same clients, or noise that differs between rounds: a "
            "certificate covers a single run of equal rounds. Use the deterministic bound."
        )
    known = isinstance(schedule, MinSeparation) or (isinstance(schedule, BallsAndBins) and schedule.secret_lanes)
    if not known or noise is None:
        raise UnsupportedMechanism(
            f"certificate='sampled' with {unsampled(release).kind} noise and the schedule "
            f"{'none' if schedule is None else schedule.name}: certificates are for 'min-separation' with independent "
            "Gaussian noise of the server, and for 'balls-and-bins' in secret lanes. The deterministic bounds of "
            "other settings are already nearly tight."
        )
    assert isinstance(schedule, BallsAndBins | MinSeparation)
    found = ScheduleUnderNoise(schedule=schedule, rounds=rounds, noise_multiplier=noise.noise_multiplier)
    if max(found.largest_log(tilts) for tilts in found.tilts) > _LARGEST_LOG:
        raise InvalidParameter(
            f"certificate='sampled' with noise_multiplier={noise.noise_multiplier}: likelihood ratios overflow. Use "
            "more noise, or the deterministic bound."
        )
    return found


def _calibrated_tilts_and_epsilon(claim: Claim, samples: int) -> tuple[Pair, float]:
    """Return tilts and the smallest epsilon that a verification is likely to confirm. Tilts are chosen by `PILOT`
    samples, epsilon by half the samples of a verification. Both use seeds other than that of the verification.
    """
    run = claim.run
    _, tilts = min((_smallest_certified_epsilon(claim, samples, tilts, PILOT), tilts) for tilts in run.tilts)
    return tilts, rounded_up(_smallest_certified_epsilon(claim, samples, tilts, samples // 2))


def _smallest_certified_epsilon(claim: Claim, samples: int, tilts: Pair, count: int) -> float:
    run, delta = claim.run, claim.delta
    setting = {
        "calibration": run_description(run),
        "tilts": list(tilts),
        "delta": delta,
        "samples": samples,
        "count": count,
    }
    chunks = list(run.samples(generator_of(seed_of(setting)), count, tilts))

    def is_likely(epsilon: float) -> bool:
        return likely_bound(chunks, run, epsilon, tilts, samples) + FAILURE <= delta

    return bisected_bracket(is_likely, 0.0, claim.deterministic, rtol=1e-4)[1]


def likely_bound(chunks: Iterable[Chunk], run: ScheduleUnderNoise, epsilon: float, tilts: Pair, samples: int) -> float:
    """Estimate from these chunks a value that the bound of `samples` samples will probably not exceed."""
    sums = Sums.of(chunks, epsilon)
    bounds = sums.bounds(run.largest_weights(epsilon, tilts), FAILURE, samples)
    errors = [math.sqrt(square / sums.count) * (1 / sums.count + 1 / samples) ** 0.5 for square in sums.squares]
    return float(max(bound + _MARGIN * error for bound, error in zip(bounds, errors, strict=True)))


def run_description(run: ScheduleUnderNoise) -> dict[str, Any]:
    """Return schedule, rounds and noise multiplier of a run as a JSON object."""
    return {"schedule": run.schedule.to_dict(), "rounds": run.rounds, "noise_multiplier": run.noise_multiplier}


def rounded_up(number: float) -> float:
    """Return a number rounded up to four significant digits, so that it does not encode the result of a search on
    samples.
    """
    return float(upwards(number, digits=4))
