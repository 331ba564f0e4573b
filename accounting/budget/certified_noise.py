"""Noise multiplier of an epsilon that is certified by sampling: searched on seeds of its own, then verified.

Only the verification counts. It is made at one round noise multiplier, and every further one is counted, charged to
delta and stated by the certificate, as those of `certificates` are. In secret lanes the matrix of the noise is searched
as well, unless the plan has one: a power of prefix sums, since the best matrix of public lanes shows too much of the
lane.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache

from accounting import disk_cache, require
from accounting.budget.answers import Budget, solve
from accounting.budget.certificates import (
    FAILURE,
    MOST_TRIES,
    PILOT,
    SAMPLES,
    STEP,
    Certificate,
    Claim,
    code,
    generator_of,
    likely_bound,
    rounded_up,
    run_of,
    seed_of,
)
from accounting.budget.correlated import BandedNoise
from accounting.budget.plan import Plan
from accounting.budget.samplings import BallsAndBins
from accounting.compose.sampled_weights import CHUNK, Chunk, Pair
from accounting.errors import CalibrationError, InvalidParameter
from accounting.rounding import upwards

_POWERS = (0.34, 0.38, 0.42, 0.46, 0.5, 0.54, 0.58, 0.62)
"""Powers of prefix sums that the search of a matrix tries."""
_COARSE, _FINE = 4e-3, 1e-3
"""Relative tolerances of the noise multiplier, for choices and for the answer."""
_LEAST = 0.4
"""Smallest noise multiplier that is tried, over the deterministic one."""


@dataclass(frozen=True, kw_only=True)
class Certified:
    """The budget of a noise multiplier, with its deterministic epsilon, and the certificate of the epsilon aimed at."""

    budget: Budget
    certificate: Certificate


def certified_noise(plan: Plan, *, epsilon: float, rounds: int, samples: int = SAMPLES) -> Certified:
    """Return nearly the smallest noise multiplier at which sampling verifies `epsilon` at the plan's delta.

    Direction of error: upper bound, but for the chance that the certificate states. Errors: UnsupportedMechanism for
    anything but rests or secret lanes under the server's Gaussian noise by themselves; CalibrationError where no try is
    verified below the noise that holds for sure.
    """
    require.positive(epsilon=epsilon)
    require.count(at_least=CHUNK, samples=samples)
    plan, most = _with_matrix(plan, epsilon=epsilon, rounds=require.count(rounds=rounds), samples=samples)
    search = _Search(plan=plan, epsilon=epsilon, rounds=rounds, samples=samples)
    near = search.coarse(most)
    tilts = search.tilts(near, min(4 * PILOT, samples))
    z = rounded_up(search.smallest(tilts, max(samples // 8, PILOT), (0.93 * near, min(1.04 * near, most)), _FINE))
    for tries in range(1, MOST_TRIES + 1):
        if z >= most:
            break
        found = solve(plan, noise_multiplier=z, rounds=rounds)
        certificate = Claim.of(found).verified(epsilon=epsilon, tilts=tilts, samples=samples, tries=tries)
        if certificate.holds:
            return Certified(budget=found, certificate=certificate)
        z = rounded_up(z * STEP)
    raise CalibrationError(
        f"certificate: {samples:,} samples verify epsilon {upwards(epsilon)} for no noise multiplier below "
        f"{upwards(most)}, at which it holds for sure. Use more samples, or that noise."
    )


def kept_or_certified_noise(plan: Plan, *, epsilon: float, rounds: int, samples: int = SAMPLES) -> Certified:
    """Return the same from the user's cache if it is there, by the hash of all it follows from."""
    question = {"plan": repr(plan), "epsilon": epsilon, "rounds": rounds, "samples": samples, "code": code()}
    for kept in disk_cache.read("certified-noise", question):
        with contextlib.suppress(TypeError, KeyError, ValueError, InvalidParameter):
            found = solve(plan.changed(**kept["options"]), noise_multiplier=kept["noise_multiplier"], rounds=rounds)
            certificate = Certificate.from_dict(kept["certificate"])
            if Claim.of(found).is_of(certificate) and certificate.deterministic == found.epsilon:
                return Certified(budget=found, certificate=certificate)
    made = certified_noise(plan, epsilon=epsilon, rounds=rounds, samples=samples)
    options = {name: value for name, value in made.budget.plan.options.items() if plan.options.get(name) != value}
    answer = {"options": options, "noise_multiplier": made.budget.noise_multiplier}
    disk_cache.write("certified-noise", question, answer | {"certificate": asdict(made.certificate)})
    return made


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Noise multipliers at which a verification of `samples` is likely to succeed; on seeds that are not its own."""

    plan: Plan
    epsilon: float
    rounds: int
    samples: int

    def likely(self, z: float, tilts: Pair, count: int) -> float:
        """Return the larger bound that a verification will hardly exceed, over delta."""
        run = run_of(self.plan.run(z, self.rounds))
        setting = {"rounds": self.rounds, "delta": self.plan.delta, "tilts": list(tilts), "count": count}
        seed = seed_of({"noise for": self.epsilon, **setting})  # of all multipliers and matrices, to compare them
        chunks: Iterator[Chunk] = run.samples(generator_of(seed), count, tilts)
        bound = likely_bound(chunks, run, self.epsilon, tilts, self.samples)
        return (bound + FAILURE) / self.plan.delta

    def tilts(self, z: float, count: int) -> Pair:
        """Return the tilts of the least bound at a noise multiplier."""
        return min(run_of(self.plan.run(z, self.rounds)).tilts, key=lambda tilts: self.likely(z, tilts, count))

    def coarse(self, most: float) -> float:
        """Return nearly the smallest noise multiplier below `most`, by tilts of the least largest weights there."""
        z = 0.7 * most
        for _ in range(2):
            run = run_of(self.plan.run(z, self.rounds))
            weights = {tilts: max(run.largest_weights(self.epsilon, tilts)) for tilts in run.tilts}
            z = self.smallest(min(weights, key=weights.__getitem__), PILOT, (_LEAST * most, most), _COARSE)
        return z

    def smallest(self, tilts: Pair, count: int, ends: tuple[float, float], tolerance: float) -> float:
        """Return the smallest noise multiplier between two with a likely bound of at most delta; else the larger."""
        return _crossing(cache(lambda z: math.log(self.likely(z, tilts, count))), *ends, tolerance)


def _crossing(excess: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Return where a falling function is 0, from above; `high` if it is positive there, or where it stops being so."""
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
    """Return the plan with lanes and a matrix, and the noise multiplier at which epsilon holds for sure."""
    sure = solve(plan, epsilon=epsilon, rounds=rounds, with_lower_bound=False)
    plan, most = sure.plan, float(sure.noise_multiplier or 0.0)
    noise, sampling = plan.mechanism, plan.sampling
    run_of(plan.run(most, rounds))  # refuses what no certificate is about
    chosen = isinstance(noise, BandedNoise) and (noise.factorisation_power or noise.factorisation != "optimised")
    if not isinstance(noise, BandedNoise) or not isinstance(sampling, BallsAndBins) or chosen:
        return plan, most

    @cache
    def tried(place: int) -> tuple[float, Plan]:
        matrix = replace(noise, factorisation_power=_POWERS[place])
        one = replace(plan, mechanism=matrix)
        search = _Search(plan=one, epsilon=epsilon, rounds=rounds, samples=samples)
        return matrix.prefix_error(one, search.coarse(most), rounds), one

    place = len(_POWERS) // 2 - 1
    for step in (1, -1):
        while 0 <= place + step < len(_POWERS) and tried(place + step)[0] < tried(place)[0]:
            place += step
    plan = tried(place)[1]
    return plan, float(solve(plan, epsilon=epsilon, rounds=rounds, with_lower_bound=False).noise_multiplier or 0.0)
