"""Do the numbers of clients in a run's rounds follow the sampler that its epsilon rests on?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import binom

from accounting.mechanisms import PoissonSampling, Sampling
from dpfed.audit.promise import canaries_of, sampler_of
from dpfed.audit.run_files import RunFiles
from dpfed.audit.verdict import chance_in_words, rounds_in_words
from dpfed.config import Config

Floats = NDArray[np.float64]
Finding = tuple[bool | None, str]

_FARTHEST = 15.0
"""Standard deviations beyond which a binomial has no mass that matters."""


def cohorts_follow_sampler(files: RunFiles, *, alpha: float) -> Finding:
    """Fixed-size and full participation: exactly. Poisson: exact two-sided tests of the mean and of the mean distance
    from the expected size, alpha / 2 each: cohorts of a fixed size, accounted as Poisson, show within a few rounds."""
    who, sizes = sampler_of(files.config), [one.cohort for one in files.rounds]
    rooms = rooms_of(files, len(sizes))
    if isinstance(who.law, PoissonSampling):
        return _poisson(who.law, who.clients, sizes, rooms, alpha)
    expected = [min(int(who.expected), room) for room in rooms]
    wrong = [number for number, (size, due) in enumerate(zip(sizes, expected, strict=True), 1) if size != due]
    if wrong:
        due = expected[wrong[0] - 1]
        return False, f"{rounds_in_words(wrong)}: {sizes[wrong[0] - 1]} clients, {who.law.name} sampling takes {due}."
    return True, f"{int(who.expected)} clients in each of {len(sizes)} rounds, as {who.law.name} sampling says."


def canaries_present(config: Config, round: int) -> int:
    """Canaries that take part in a round (counted from 1), by the run's seed."""
    return len(canaries_of(config).of_round(round - 1)[0]) if config.audit.canaries else 0


def rooms_of(files: RunFiles, rounds: int) -> list[int]:
    """How many clients each round has room for, beside its canaries."""
    clients = files.config.federation.clients
    slots = files.promise.slots if files.config.privacy is not None and files.released else None
    if slots is None:
        return [clients] * rounds
    return [max(slots - canaries_present(files.config, number), 0) for number in range(1, rounds + 1)]


def _poisson(law: PoissonSampling, clients: int, sizes: list[int], rooms: list[int], alpha: float) -> Finding:
    if not sizes:
        return None, "there are no rounds."
    centre = round(clients * law.probability)
    laws = [size_law(law, clients, room) for room in rooms]
    sums = _of_all([one.mass for one in laws])
    distances = _of_all([distance_law(one, centre) for one in laws])
    p_mean = two_sided(sums, sum(sizes) - sum(one.first for one in laws))
    p_spread = two_sided(distances, sum(abs(size - centre) for size in sizes))
    off = np.mean(np.abs(np.array(sizes) - centre))
    detail = (
        f"{len(sizes)} cohorts of {np.mean(sizes):.1f} clients on average (p = {p_mean:.2g}), off the expected "
        f"{centre} by {off:.1f} (p = {p_spread:.2g}); "
    )
    if p_mean < alpha / 2:
        return False, detail + f"the mean is not that of the charged sampling. {chance_in_words(alpha)}"
    if p_spread < alpha / 2:
        return False, detail + f"they do not vary as Poisson sampling does. {chance_in_words(alpha)}"
    return True, detail + "as Poisson sampling has it."


@dataclass(frozen=True, kw_only=True, eq=False)
class SizeLaw:
    """P(size = first, first + 1, ...)."""

    first: int
    mass: Floats


def size_law(law: Sampling, clients: int, room: int) -> SizeLaw:
    """Of a round's cohort: binomial, sizes above `room` cut down to it."""
    mean, std = clients * law.probability, (clients * law.probability * (1 - law.probability)) ** 0.5
    first = max(0, int(mean - _FARTHEST * (std + 1)))
    last = min(clients, int(mean + _FARTHEST * (std + 1)) + 1)
    mass = np.asarray(binom.pmf(np.arange(first, last + 1), clients, law.probability))
    if room >= last:
        return SizeLaw(first=first, mass=mass)
    if room <= first:
        return SizeLaw(first=room, mass=np.ones(1))
    return SizeLaw(first=first, mass=np.append(mass[: room - first], mass[room - first :].sum()))


def distance_law(sizes: SizeLaw, centre: int) -> Floats:
    """P(|size - centre| = 0, 1, ...)."""
    distances = np.abs(sizes.first + np.arange(len(sizes.mass)) - centre)
    return np.asarray(np.bincount(distances, weights=sizes.mass), dtype=np.float64)


def two_sided(mass: Floats, observed: int) -> float:
    """Twice the smaller tail, the observed value in both; exact but for 1e-13 of convolutions."""
    below = float(mass[: max(observed + 1, 0)].sum())
    above = float(mass[max(observed, 0) :].sum())
    return min(1.0, 2 * min(below, above))


def _of_all(laws: Sequence[Floats]) -> Floats:
    """The law of a sum of independent variables; equal laws are powers of one."""
    total = np.ones(1)
    for content, count in Counter(law.tobytes() for law in laws).items():
        total = _convolved(total, _power(np.frombuffer(content), count))
    return total


def _power(mass: Floats, count: int) -> Floats:
    result = np.ones(1)
    while count:
        if count & 1:
            result = _convolved(result, mass)
        count >>= 1
        mass = _convolved(mass, mass) if count else mass
    return result


def _convolved(first: Floats, second: Floats) -> Floats:
    if min(len(first), len(second)) == 1:
        return np.convolve(first, second)
    return np.asarray(np.maximum(fftconvolve(first, second), 0.0))
