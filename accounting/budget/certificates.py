"""Certificates by sampling: an epsilon below the deterministic bound, true except with a stated probability.

Only rests (`min-separation`) under Gaussian noise of the server have them. A certificate is about one (epsilon, delta)
of one run; other releases on the same clients, or another delta, have none. The numbers are calibrated on separate
seeds and verified once, on a seed that is a hash of everything the bound follows from; every further try adds `FAILURE`
to the charge on delta.
"""

import contextlib
import hashlib
import json
import math
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from accounting import disk_cache, require
from accounting.budget.answers import Budget
from accounting.budget.gaussians import GaussianNoise
from accounting.compose import sampled_rests
from accounting.compose.sampled_rests import CHUNK, Pair, RestsUnderNoise, Sums, sums_of, weights_at
from accounting.errors import CalibrationError, InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import MinSeparation, gaussian_of, parts_of, schedule_of
from accounting.rounding import upwards

FAILURE = 1e-12
"""Probability that one verification is wrong; added to delta for each."""
SAMPLES = 8_000_000
_PILOT = 50_000
_MARGIN = 2.0
"""Margin of the calibrated bound in standard errors."""
_STEP = 1.002
"""Factor of epsilon from one try to the next."""
_MOST_TRIES = 5
_TILTS = ((0.3, 0.2), (0.5, 0.2), (0.7, 0.2), (1.0, 0.2))
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

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return self.description | {name: value for name, value in asdict(self).items() if name != "description"}


def certified(budget: Budget, *, samples: int = SAMPLES) -> Certificate:
    """Return the certificate of a budget: the smallest epsilon that sampling verifies at its delta.

    Direction of error: upper bound, except with probability `Certificate.failure`. Errors: UnsupportedMechanism for
    anything but rests under the server's Gaussian noise alone; CalibrationError if no try is verified.
    """
    rests = _rests_of(budget)
    delta = budget.plan.delta
    require.count(at_least=CHUNK, samples=samples)
    tilts, epsilon = _calibrated(rests, delta, samples, budget.epsilon)
    for tries in range(1, _MOST_TRIES + 1):
        if epsilon >= budget.epsilon:
            break
        one = _verified(rests, budget, epsilon=epsilon, tilts=tilts, samples=samples, tries=tries)
        if max(one.bounds) + one.failure <= delta:
            return one
        epsilon = _rounded_up(epsilon * _STEP)
    raise CalibrationError(
        f"certificate: {samples:,} samples verify nothing below the deterministic epsilon {upwards(budget.epsilon)} "
        f"at delta {upwards(delta)}. Use more samples, or the deterministic bound."
    )


def kept_or_certified(budget: Budget, *, samples: int = SAMPLES) -> Certificate:
    """Return the certificate of a budget, from the user's cache if it is stored there.

    For repeated requests of a user. An audit calls `recomputed`, which never reads the cache.
    """
    question = {"about": _about(_rests_of(budget)), "delta": budget.plan.delta, "samples": samples, "code": _code()}
    question |= {"mechanism": budget.mechanism.to_dict(), "deterministic": budget.epsilon}
    for found in disk_cache.read("certificates", question):
        with contextlib.suppress(TypeError, KeyError, ValueError):
            return Certificate(**{**found, "bounds": (found["bounds"][0], found["bounds"][1])})
    made = certified(budget, samples=samples)
    disk_cache.write("certificates", question, asdict(made))
    return made


@cache
def _code() -> str:
    """Return a hash of the code and the generator that a certificate follows from."""
    sources = [Path(module.__file__ or "").read_bytes() for module in (sampled_rests, sys.modules[__name__])]
    return hashlib.sha256(b"\0".join([*sources, np.__version__.encode()])).hexdigest()


def _verified(
    rests: RestsUnderNoise, budget: Budget, *, epsilon: float, tilts: Pair, samples: int, tries: int
) -> Certificate:
    description = description_of(rests, budget, epsilon=epsilon, tilts=tilts, samples=samples, tries=tries)
    seed = seed_of(description)
    sums = sums_of(rests, _generator(seed), samples, epsilon, tilts)
    return Certificate(
        epsilon=epsilon,
        delta=budget.plan.delta,
        failure=tries * FAILURE,
        tries=tries,
        samples=sums.count,
        bounds=sums.bounds(rests.largest_weights(epsilon, tilts), FAILURE),
        seed=seed,
        deterministic=budget.epsilon,
        description=description,
    )


def recomputed(certificate: Certificate, budget: Budget) -> bool:
    """Return True if sampling again, from the certificate's own description, gives its statement."""
    about = certificate.description
    again = _verified(
        _rests_of(budget),
        budget,
        epsilon=certificate.epsilon,
        tilts=tuple(about["tilts"]),
        samples=about["samples"],
        tries=certificate.tries,
    )
    return again == certificate and max(again.bounds) + again.failure <= certificate.delta


def description_of(
    rests: RestsUnderNoise, budget: Budget, *, epsilon: float, tilts: Pair, samples: int, tries: int
) -> dict[str, Any]:
    """Return everything that the bound follows from; its hash is the seed."""
    return {
        "mechanism": budget.mechanism.to_dict(),
        "epsilon": epsilon,
        "delta": budget.plan.delta,
        "failure": FAILURE,
        "try": tries,
        "samples": samples,
        "chunk": CHUNK,
        "tilts": list(tilts),
        "order": "a chunk: patterns, noise of the first order, noise of the second",
        "generator": f"numpy {np.__version__}, Philox",
        "rounds": rests.rounds,
    }


def seed_of(description: dict[str, Any]) -> str:
    """Return the SHA-256 of a description, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def _generator(seed: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=int(seed[:32], 16)))


def _rests_of(budget: Budget) -> RestsUnderNoise:
    plan, mechanism = budget.plan, budget.mechanism
    ((release, rounds), *more) = parts_of(mechanism)
    schedule, noise = schedule_of(release), gaussian_of(release)
    if plan.before is not None or more:
        raise UnsupportedMechanism(
            "certificate='sampled' with other releases on the same clients: it is about one run by itself. Use the "
            "deterministic bound."
        )
    plain = isinstance(plan.mechanism, GaussianNoise) and plan.mechanism.name == "gaussian"
    if not plain or noise is None or not isinstance(schedule, MinSeparation):
        raise UnsupportedMechanism(
            f"certificate='sampled' with sampling={plan.sampling.name!r}, mechanism={plan.mechanism.name!r}: is for "
            "'min-separation' with independent Gaussian noise of the server. The deterministic bounds of other "
            "settings are near the truth already."
        )
    rests = RestsUnderNoise(schedule=schedule, rounds=rounds, noise_multiplier=noise.noise_multiplier)
    if schedule.most_participations(rounds) * (2 * noise.mu**2 + 16 * noise.mu) > _LARGEST_LOG:
        raise InvalidParameter(
            f"certificate='sampled' with noise_multiplier={noise.noise_multiplier}: likelihood ratios are no doubles. "
            "Use more noise, or the deterministic bound."
        )
    return rests


def _calibrated(rests: RestsUnderNoise, delta: float, samples: int, most: float) -> tuple[Pair, float]:
    """Return tilts, by a few samples, and the smallest epsilon that is likely to be verified, by half of the
    verification's samples; both with other seeds.
    """
    pilots = [(_smallest(rests, delta, samples, most, tilts, _PILOT), tilts) for tilts in _TILTS]
    _, tilts = min(pilots)
    return tilts, _rounded_up(_smallest(rests, delta, samples, most, tilts, samples // 2))


def _smallest(rests: RestsUnderNoise, delta: float, samples: int, most: float, tilts: Pair, count: int) -> float:
    about = {"calibration": _about(rests), "tilts": list(tilts), "delta": delta, "samples": samples, "count": count}
    chunks = list(rests.samples(_generator(seed_of(about)), count, tilts))
    low, high = 0.0, most
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        likely = _likely(chunks, rests, middle, tilts, samples) + FAILURE <= delta
        low, high = (low, middle) if likely else (middle, high)
    return high


def _likely(chunks: list[Any], rests: RestsUnderNoise, epsilon: float, tilts: Pair, samples: int) -> float:
    """Return the bound that `samples` samples will probably not exceed, estimated from these chunks."""
    weights = [weights_at(chunk, epsilon) for chunk in chunks]
    sums = Sums(
        count=len(chunks) * CHUNK,
        first=(float(sum(one.sum() for one, _ in weights)), float(sum(one.sum() for _, one in weights))),
        squares=(float(sum(one @ one for one, _ in weights)), float(sum(one @ one for _, one in weights))),
    )
    bounds = sums.bounds(rests.largest_weights(epsilon, tilts), FAILURE, samples)
    errors = [math.sqrt(square / sums.count) * (1 / sums.count + 1 / samples) ** 0.5 for square in sums.squares]
    return float(max(bound + _MARGIN * error for bound, error in zip(bounds, errors, strict=True)))


def _about(rests: RestsUnderNoise) -> dict[str, Any]:
    """Return schedule, rounds and noise as a JSON object."""
    return {
        "schedule": rests.schedule.to_dict(),
        "rounds": rests.rounds,
        "noise_multiplier": rests.noise_multiplier,
    }


def _rounded_up(epsilon: float) -> float:
    """Return epsilon with four significant digits, rounded up: a round number that no search has chosen."""
    return float(upwards(epsilon, digits=4))
