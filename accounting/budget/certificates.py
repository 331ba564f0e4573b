"""Certificates by sampling: an epsilon below the deterministic bound, true except with a stated probability.

Rests (`min-separation`) and secret lanes of balls-and-bins under the server's Gaussian noise have them. A certificate
is about one (epsilon, delta) of one run; other releases on the same clients, or another delta, have none. The numbers
are calibrated on separate seeds and verified once, on a seed that is a hash of everything the bound follows from; every
further try adds `FAILURE` to the charge on delta. `certified_noise` searches the noise of an epsilon in the same way.
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
from accounting.compose import sampled_lanes, sampled_rests, sampled_weights
from accounting.compose.sampled_lanes import LanesUnderNoise
from accounting.compose.sampled_rests import RestsUnderNoise
from accounting.compose.sampled_weights import CHUNK, Chunk, Pair, SampledRun, Sums, sums_of, weights_at
from accounting.errors import CalibrationError, InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import (
    BallsAndBins,
    Composed,
    Gaussian,
    Mechanism,
    MinSeparation,
    gaussian_of,
    parts_of,
    schedule_of,
    unsampled,
)
from accounting.roots import halved
from accounting.rounding import upwards

FAILURE = 1e-12
"""Probability that one verification is wrong; added to delta for each."""
SAMPLES = 8_000_000
PILOT = 50_000
"""Samples that tilts are chosen by."""
_MARGIN = 2.0
"""Margin of the calibrated bound in standard errors."""
STEP = 1.002
"""Factor of epsilon, or of the noise multiplier, from one try to the next."""
MOST_TRIES = 5
_LARGEST_LOG = 600.0


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Statement that is wrong with probability at most `failure`, which is a part of delta.

    failure: of all tries together (`description` has that of one); bounds: of both hockey-stick divergences at epsilon,
    without the failure; seed: hash of `description`, of the verification that passed; tries: number of verifications;
    deterministic: the bound without sampling
    """

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
            f"wrong with a chance of {self.failure:.0e}, which is a part of delta ({tries}, seed {self.seed[:16]}). "
            f"Without it: {upwards(self.deterministic)}"
        )

    @property
    def holds(self) -> bool:
        """True if both bounds, and the failure, are within delta; a bound that is nan is not."""
        return all(bound + self.failure <= self.delta for bound in self.bounds)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return self.description | {name: value for name, value in asdict(self).items() if name != "description"}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Certificate":
        """Return the certificate of these fields. Errors: TypeError, KeyError, ValueError for others."""
        epsilon, delta, failure, sure = (
            float(record[name]) for name in ("epsilon", "delta", "failure", "deterministic")
        )
        if not all(map(math.isfinite, (epsilon, delta, failure, sure))):
            raise ValueError("numbers that are not finite")
        return cls(
            epsilon=epsilon,
            delta=delta,
            failure=failure,
            tries=int(record["tries"]),
            samples=int(record["samples"]),
            bounds=(float(record["bounds"][0]), float(record["bounds"][1])),
            seed=str(record["seed"]),
            deterministic=sure,
            description=dict(record["description"]),
        )


def certified(claim: "Claim", *, samples: int = SAMPLES) -> Certificate:
    """Return the certificate of a claim: the smallest epsilon that sampling verifies at its delta.

    Direction of error: upper bound, except with probability `Certificate.failure`. Errors: UnsupportedMechanism for
    anything but rests or secret lanes under the server's Gaussian noise alone; CalibrationError if no try is verified.
    """
    require.count(at_least=CHUNK, samples=samples)
    tilts, epsilon = _calibrated(claim, samples)
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


def kept_or_certified(claim: "Claim", *, samples: int = SAMPLES) -> Certificate:
    """Return the certificate of a claim, from the user's cache if it is stored there.

    For repeated requests of a user. An audit calls `Claim.recomputes`, which never reads the cache.
    """
    question = {"about": about(claim.run), "delta": claim.delta, "samples": samples, "code": code()}
    question |= {"mechanism": claim.mechanism.to_dict(), "deterministic": claim.deterministic}
    for found in disk_cache.read("certificates", question):
        with contextlib.suppress(TypeError, KeyError, ValueError):
            return Certificate.from_dict(found)
    made = certified(claim, samples=samples)
    disk_cache.write("certificates", question, asdict(made))
    return made


@cache
def code() -> str:
    """Return a hash of the code and the generator that a certificate follows from."""
    modules = (sampled_weights, sampled_rests, sampled_lanes, sys.modules[__name__])
    sources = [Path(module.__file__ or "").read_bytes() for module in modules]
    return hashlib.sha256(b"\0".join([*sources, np.__version__.encode()])).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A mechanism that certificates are about, the delta they are at, and the epsilon that holds for sure."""

    mechanism: Composed
    delta: float
    deterministic: float

    @classmethod
    def of(cls, budget: Budget) -> "Claim":
        """Return the claim of a budget."""
        return cls(mechanism=budget.mechanism, delta=budget.plan.delta, deterministic=budget.epsilon)

    @property
    def run(self) -> SampledRun:
        """The rounds as they are sampled. Errors: UnsupportedMechanism, InvalidParameter where they are not."""
        return run_of(self.mechanism)

    def verified(self, *, epsilon: float, tilts: Pair, samples: int, tries: int) -> Certificate:
        """Return what sampling finds at this epsilon; a certificate only if it `holds`."""
        run = self.run
        description = description_of(self, epsilon=epsilon, tilts=tilts, samples=samples, tries=tries)
        seed = seed_of(description)
        sums = sums_of(run, generator_of(seed), samples, epsilon, tilts)
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
        """Return True if a certificate's description, and with it its seed, is of this mechanism and delta."""
        stated = certificate.description
        described = description_of(
            self,
            epsilon=certificate.epsilon,
            tilts=(stated["tilts"][0], stated["tilts"][1]),
            samples=stated["samples"],
            tries=certificate.tries,
        )
        return described == stated and certificate.seed == seed_of(described) and certificate.delta == self.delta

    def recomputes(self, certificate: Certificate) -> bool:
        """Return True if sampling again, from the certificate's own description, gives its statement.

        Bounds may differ by a rounding of other processors.
        """
        about = certificate.description
        again = self.verified(
            epsilon=certificate.epsilon,
            tilts=(about["tilts"][0], about["tilts"][1]),
            samples=about["samples"],
            tries=certificate.tries,
        )
        stated = np.array([*certificate.bounds, certificate.deterministic])
        near = np.allclose([*again.bounds, again.deterministic], stated, rtol=1e-9, atol=0.0)
        same = replace(again, bounds=certificate.bounds, deterministic=certificate.deterministic) == certificate
        return again.holds and bool(near) and same


def description_of(claim: Claim, *, epsilon: float, tilts: Pair, samples: int, tries: int) -> dict[str, Any]:
    """Return everything that the bound follows from, as JSON has it; its hash is the seed."""
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
    read: dict[str, Any] = json.loads(json.dumps(found))
    return read


def seed_of(description: dict[str, Any]) -> str:
    """Return the SHA-256 of a description, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def generator_of(seed: str) -> np.random.Generator:
    """Return the generator of a seed."""
    return np.random.Generator(np.random.Philox(key=int(seed[:32], 16)))


def run_of(mechanism: Mechanism) -> SampledRun:
    """Return a run as it is sampled. Errors: UnsupportedMechanism for what no certificate is about; InvalidParameter
    for noise so small that likelihood ratios are no doubles."""
    ((release, rounds), *more) = parts_of(mechanism)
    schedule, noise = schedule_of(release), gaussian_of(release)
    if more:
        raise UnsupportedMechanism(
            "certificate='sampled' with other releases on the same clients, or noise that differs: it is about one run "
            "by itself, of equal rounds. Use the deterministic bound."
        )
    known = isinstance(schedule, MinSeparation) or (isinstance(schedule, BallsAndBins) and schedule.secret_lanes)
    if not known or noise is None or not isinstance(unsampled(release), Gaussian):
        raise UnsupportedMechanism(
            f"certificate='sampled' with {unsampled(release).kind} noise and the schedule "
            f"{'none' if schedule is None else schedule.name}: is for 'min-separation' with independent Gaussian noise "
            "of the server, and for 'balls-and-bins' in secret lanes. The deterministic bounds of other settings are "
            "near the truth already."
        )
    found: SampledRun
    if isinstance(schedule, MinSeparation):
        found = RestsUnderNoise(schedule=schedule, rounds=rounds, noise_multiplier=noise.noise_multiplier)
    else:
        assert isinstance(schedule, BallsAndBins)
        found = LanesUnderNoise(schedule=schedule, rounds=rounds, noise_multiplier=noise.noise_multiplier)
    if max(found.largest_log(tilts) for tilts in found.tilts) > _LARGEST_LOG:
        raise InvalidParameter(
            f"certificate='sampled' with noise_multiplier={noise.noise_multiplier}: likelihood ratios are no doubles. "
            "Use more noise, or the deterministic bound."
        )
    return found


def _calibrated(claim: Claim, samples: int) -> tuple[Pair, float]:
    """Return tilts, by a few samples, and the smallest epsilon that is likely to be verified, by half of the
    verification's samples; both with other seeds.
    """
    run = claim.run
    _, tilts = min((_smallest_certified_epsilon(claim, samples, tilts, PILOT), tilts) for tilts in run.tilts)
    return tilts, rounded_up(_smallest_certified_epsilon(claim, samples, tilts, samples // 2))


def _smallest_certified_epsilon(claim: Claim, samples: int, tilts: Pair, count: int) -> float:
    run, delta = claim.run, claim.delta
    setting = {"calibration": about(run), "tilts": list(tilts), "delta": delta, "samples": samples, "count": count}
    chunks = list(run.samples(generator_of(seed_of(setting)), count, tilts))

    def likely(epsilon: float) -> bool:
        return likely_bound(chunks, run, epsilon, tilts, samples) + FAILURE <= delta

    return halved(likely, 0.0, claim.deterministic, rtol=1e-4)[1]


def likely_bound(chunks: Iterable[Chunk], run: SampledRun, epsilon: float, tilts: Pair, samples: int) -> float:
    """Return the bound that `samples` samples will probably not exceed, estimated from these chunks."""
    weights = [weights_at(chunk, epsilon) for chunk in chunks]
    sums = Sums(
        count=len(weights) * CHUNK,
        first=(float(sum(one.sum() for one, _ in weights)), float(sum(one.sum() for _, one in weights))),
        squares=(float(sum(one @ one for one, _ in weights)), float(sum(one @ one for _, one in weights))),
    )
    bounds = sums.bounds(run.largest_weights(epsilon, tilts), FAILURE, samples)
    errors = [math.sqrt(square / sums.count) * (1 / sums.count + 1 / samples) ** 0.5 for square in sums.squares]
    return float(max(bound + _MARGIN * error for bound, error in zip(bounds, errors, strict=True)))


def about(run: SampledRun) -> dict[str, Any]:
    """Return schedule, rounds and noise as a JSON object."""
    return {"schedule": run.schedule.to_dict(), "rounds": run.rounds, "noise_multiplier": run.noise_multiplier}


def rounded_up(number: float) -> float:
    """Return a number with four significant digits, rounded up: a round one that no search has chosen."""
    return float(upwards(number, digits=4))
